use std::cell::RefCell;
use std::collections::HashSet;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Expr, ExprLit, ExprUnary, GenericArgument, GenericParam, Generics, Ident, Lit, PathArguments, Token,
    Type, UnOp,
};

use crate::errors::Errors;

/// The `const` parameters of a module. Its struct has a type parameter for each, so that `{4 * D}` can be
/// an argument on stable Rust.
pub(crate) struct Consts {
    /// In the struct's order.
    pub(crate) names: Vec<Ident>,
    set: HashSet<String>,
    /// The `T!` of the user's, if one was read.
    shape_macro: RefCell<Option<syn::Path>>,
}

impl Consts {
    pub(crate) fn new(generics: &Generics, errors: &mut Errors) -> Self {
        let mut names = Vec::new();
        for param in &generics.params {
            match param {
                GenericParam::Const(c) => {
                    if c.ty.to_token_stream().to_string() != "usize" {
                        errors.at(&c.ty, "a module's parameters are dimensions: `const D: usize`");
                    }
                    if let Some(default) = &c.default {
                        errors.at(default, "a module's parameters have no defaults");
                    }
                    names.push(c.ident.clone());
                }
                GenericParam::Type(other) => {
                    errors.at(other, "a module's parameters are dimensions: `const D: usize`");
                    names.push(other.ident.clone());
                }
                GenericParam::Lifetime(other) => errors.at(other, "a module borrows nothing"),
            }
        }
        if let Some(clause) = &generics.where_clause {
            errors.at(
                clause,
                "a module needs no where-clause: its shapes are checked where it is made concrete",
            );
        }
        Self::of(names)
    }

    pub(crate) fn of(names: Vec<Ident>) -> Self {
        let set = names.iter().map(Ident::to_string).collect();
        Self { names, set, shape_macro: RefCell::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// `<S: Dim, D: Dim>`, or nothing.
    pub(crate) fn params(&self) -> TokenStream {
        let names = &self.names;
        if names.is_empty() { TokenStream::new() } else { quote!(<#(#names: ::nn::Dim),*>) }
    }

    /// `S: Dim, D: Dim,`.
    pub(crate) fn bounds(&self) -> TokenStream {
        let names = &self.names;
        quote!(#(#names: ::nn::Dim,)*)
    }

    /// `<S, D>`, or nothing.
    pub(crate) fn args(&self) -> TokenStream {
        let names = &self.names;
        if names.is_empty() { TokenStream::new() } else { quote!(<#(#names),*>) }
    }

    /// `(PhantomData<(S, D)>)`, or nothing: what a struct over the parameters holds.
    pub(crate) fn held(&self) -> TokenStream {
        let names = &self.names;
        if names.is_empty() {
            TokenStream::new()
        } else {
            quote!((::core::marker::PhantomData<(#(#names,)*)>))
        }
    }

    /// Names the `T!` that was read, which would else count as an unused import; it is no longer needed then.
    pub(crate) fn macros(&self) -> Option<TokenStream> {
        let path = self.shape_macro.take()?;
        Some(quote!(const _: ::core::marker::PhantomData<#path![]> = ::core::marker::PhantomData;))
    }

    fn mentions(&self, tokens: TokenStream) -> bool {
        tokens.into_iter().any(|tree| match tree {
            proc_macro2::TokenTree::Ident(id) => self.set.contains(&id.to_string()),
            proc_macro2::TokenTree::Group(group) => self.mentions(group.stream()),
            _ => false,
        })
    }

    /// A dimension as a type.
    pub(crate) fn dim(&self, expr: &Expr, errors: &mut Errors) -> TokenStream {
        let span = expr.span();
        if matches!(expr, Expr::Lit(lit) if lit.attrs.is_empty()) {
            return quote_spanned!(span=> ::nn::C<#expr>);
        }
        if !self.mentions(expr.to_token_stream()) {
            return quote_spanned!(span=> ::nn::C<{ #expr }>);
        }
        match expr {
            Expr::Path(path) if path.path.get_ident().is_some() && path.attrs.is_empty() => quote!(#path),
            Expr::Paren(inner) => self.dim(&inner.expr, errors),
            Expr::Group(inner) => self.dim(&inner.expr, errors),
            Expr::Block(block) if block.block.stmts.len() == 1 => match &block.block.stmts[0] {
                syn::Stmt::Expr(inner, None) => self.dim(inner, errors),
                other => self.not_a_dim(other, errors),
            },
            Expr::Binary(binary) => {
                let name = match binary.op {
                    syn::BinOp::Add(_) => "Plus",
                    syn::BinOp::Sub(_) => "Minus",
                    syn::BinOp::Mul(_) => "Times",
                    syn::BinOp::Div(_) => "Over",
                    _ => return self.not_a_dim(binary, errors),
                };
                let name = Ident::new(name, span);
                let (a, b) = (self.dim(&binary.left, errors), self.dim(&binary.right, errors));
                quote_spanned!(span=> ::nn::#name<#a, #b>)
            }
            other => self.not_a_dim(other, errors),
        }
    }

    fn not_a_dim(&self, tokens: impl ToTokens, errors: &mut Errors) -> TokenStream {
        errors.at(tokens, "a dimension is computed with `+ - * /` of numbers and the module's parameters");
        quote!(::nn::C<1>)
    }

    /// The type of a layer, with the module's parameters in it, as a type over dimensions.
    pub(crate) fn layer(&self, ty: &Type, errors: &mut Errors) -> TokenStream {
        self.rewrite(ty, "a layer is written as a path with arguments: `Linear<784, 64>`", errors)
    }

    /// What `forward` takes or gives, likewise.
    pub(crate) fn signature(&self, ty: &Type, errors: &mut Errors) -> TokenStream {
        self.rewrite(
            ty,
            "write `T![64, 10]` for a tensor, `Ids<T![64]>` for indices, and tuples of them",
            errors,
        )
    }

    fn rewrite(&self, ty: &Type, else_say: &str, errors: &mut Errors) -> TokenStream {
        match ty {
            Type::Macro(mac)
                if mac.mac.path.segments.last().is_some_and(|s| s.ident == "T" || s.ident == CHAIN) =>
            {
                if !mac.mac.path.is_ident(CHAIN) {
                    *self.shape_macro.borrow_mut() = Some(mac.mac.path.clone());
                }
                match syn::parse2::<Axes>(mac.mac.tokens.clone()) {
                    Ok(axes) if axes.0.len() > 6 => {
                        errors.at(mac, "a tensor has at most 6 axes, not counting the batch");
                        quote!(::nn::__private::Unknown)
                    }
                    Ok(axes) => axes.shape(self, mac.span(), errors),
                    Err(_) => {
                        errors.at(
                            mac,
                            "the axes of a tensor are numbers: `T![64, 10]`, or bounds: `T![..512, 384]`, `T![..64 @ 1, 384]`",
                        );
                        quote!(::nn::__private::Unknown)
                    }
                }
            }
            Type::Tuple(tuple) => {
                if tuple.elems.len() > 6 {
                    errors.at(tuple, "there are at most 6 tensors");
                }
                let elems = tuple.elems.iter().map(|t| self.rewrite(t, else_say, errors));
                quote!((#(#elems,)*))
            }
            Type::Paren(inner) => self.rewrite(&inner.elem, else_say, errors),
            Type::Group(inner) => self.rewrite(&inner.elem, else_say, errors),
            Type::Path(path) => self.rewrite_path(path, errors),
            other => {
                errors.at(other, else_say);
                quote!(::nn::__private::Unknown)
            }
        }
    }

    fn rewrite_path(&self, ty: &syn::TypePath, errors: &mut Errors) -> TokenStream {
        let mut ty = ty.clone();
        let mut bound = Vec::new();
        let mut rebinds = false;
        let span = ty.span();
        if let Some(last) = ty.path.segments.last_mut()
            && let PathArguments::AngleBracketed(args) = &mut last.arguments
        {
            args.colon2_token = None;
            for arg in &mut args.args {
                let computed = match arg {
                    GenericArgument::Const(Expr::Lit(ExprLit { lit: Lit::Float(f), .. })) => {
                        let sci = sci(f.base10_digits(), f.span(), errors);
                        *arg = GenericArgument::Type(Type::Verbatim(sci));
                        None
                    }
                    GenericArgument::Const(Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }))
                        if matches!(&**expr, Expr::Lit(ExprLit { lit: Lit::Float(_), .. })) =>
                    {
                        let digits = expr.to_token_stream().to_string();
                        let sci = sci(&format!("-{digits}"), expr.span(), errors);
                        *arg = GenericArgument::Type(Type::Verbatim(sci));
                        None
                    }
                    GenericArgument::Const(expr) if self.mentions(expr.to_token_stream()) => {
                        Some(self.dim(expr, errors))
                    }
                    GenericArgument::Type(Type::Path(p))
                        if p.path.get_ident().is_some_and(|id| self.set.contains(&id.to_string())) =>
                    {
                        Some(quote!(#p))
                    }
                    GenericArgument::Type(inner) => {
                        let inner = self.layer(inner, errors);
                        *arg = GenericArgument::Type(Type::Verbatim(inner));
                        None
                    }
                    _ => None,
                };
                match computed {
                    Some(dim) => {
                        rebinds = true;
                        let place = proc_macro2::Literal::usize_unsuffixed(bound.len());
                        bound.push(quote!(::nn::Place<#place, #dim>));
                        *arg = syn::parse_quote!({ ::nn::place(#place) });
                    }
                    None => bound.push(quote!(::nn::Keep)),
                }
            }
        }
        if rebinds { quote_spanned!(span=> <#ty as ::nn::Rebind<(#(#bound,)*)>>::To) } else { quote!(#ty) }
    }
}

/// What `sequential!` calls the `T!` that its user does not write.
pub(crate) const CHAIN: &str = "__nn_T";

/// The axes inside `T![..]`.
struct Axes(Punctuated<Axis, Token![,]>);

struct Axis {
    bounded: bool,
    expr: Expr,
    /// Which of the run-time lengths it has, if it is bounded.
    tag: Option<syn::LitInt>,
}

impl Parse for Axis {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let bounded = input.parse::<Option<Token![..]>>()?.is_some();
        let expr = input.parse()?;
        let tag = if bounded && input.parse::<Option<Token![@]>>()?.is_some() {
            Some(input.parse()?)
        } else {
            None
        };
        Ok(Self { bounded, expr, tag })
    }
}

impl Parse for Axes {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        Ok(Self(Punctuated::parse_terminated(input)?))
    }
}

impl Axes {
    fn shape(&self, consts: &Consts, span: Span, errors: &mut Errors) -> TokenStream {
        let shape = format_ident!("S{}", self.0.len(), span = span);
        let axes: Vec<_> = self
            .0
            .iter()
            .map(|axis| {
                let dim = consts.dim(&axis.expr, errors);
                let tag = axis.tag.iter();
                if axis.bounded { quote!(::nn::UpTo<#dim #(, #tag)*>) } else { dim }
            })
            .collect();
        if axes.is_empty() {
            quote_spanned!(span=> ::nn::S0)
        } else {
            quote_spanned!(span=> ::nn::#shape<#(#axes),*>)
        }
    }
}

/// A number as the type `Sci<M, E>`, which is M·10^E.
pub(crate) fn sci(digits: &str, span: Span, errors: &mut Errors) -> TokenStream {
    let value = digits.replace('_', "").parse::<f64>().ok();
    if let Some((mantissa, exponent)) = parse_sci(digits)
        && value.is_some_and(|v| v.is_finite() && (v != 0.0) == (mantissa != 0))
    {
        let mantissa = proc_macro2::Literal::i64_unsuffixed(mantissa);
        let exponent = proc_macro2::Literal::i32_unsuffixed(exponent);
        return quote_spanned!(span=> ::nn::Sci<#mantissa, #exponent>);
    }
    let text = match value {
        Some(v) if v.is_finite() && v != 0.0 => "a number here has at most 18 digits: `0.1`, `1e-5`",
        _ => "this number is out of range",
    };
    errors.push(syn::Error::new(span, text));
    quote_spanned!(span=> ::nn::Sci<1, 0>)
}

fn parse_sci(digits: &str) -> Option<(i64, i32)> {
    let digits = digits.replace('_', "");
    let digits = digits.trim_end_matches("f64").trim_end_matches("f32");
    let (number, exponent) = match digits.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let mut mantissa: i64 = format!("{whole}{fraction}").parse().ok()?;
    let mut exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    while mantissa != 0 && mantissa % 10 == 0 {
        mantissa /= 10;
        exponent = exponent.checked_add(1)?;
    }
    if mantissa == 0 {
        exponent = 0;
    }
    (mantissa.unsigned_abs() < 1_000_000_000_000_000_000).then_some((mantissa, exponent))
}

#[cfg(test)]
mod tests {
    use super::parse_sci;

    #[test]
    fn a_number_has_one_mantissa_and_exponent() {
        assert_eq!(parse_sci("1e-5"), Some((1, -5)));
        assert_eq!(parse_sci("0.10"), Some((1, -1)));
        assert_eq!(parse_sci("100"), Some((1, 2)));
        assert_eq!(parse_sci("1_0.25e3f32"), Some((1025, 1)));
        assert_eq!(parse_sci("0.0"), Some((0, 0)));
        assert_eq!(parse_sci("12345678901234567890"), None);
    }
}
