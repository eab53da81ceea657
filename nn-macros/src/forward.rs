use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{FnArg, ImplItem, ItemImpl, PathArguments, ReturnType, Type};

use crate::arithmetic::{Arithmetic, one_or_tuple};
use crate::attrs::no_cfg;
use crate::errors::{Errors, ends, no_args};
use crate::generics::Consts;
use crate::graph::Reader;
use crate::structure::Names;

/// `#[module] impl<const D: usize> Block<D> { fn forward(..) { .. } }`.
pub(crate) fn expand(args: TokenStream, item: ItemImpl) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    no_cfg(&item.attrs, &mut errors);
    let Some((names, consts)) = module(&item, &mut errors) else {
        return errors.into_tokens();
    };
    let mut found = None;
    for part in &item.items {
        match part {
            ImplItem::Fn(f) if f.sig.ident == "forward" && found.is_none() => found = Some(f),
            other => errors.at(
                other,
                "this impl holds `fn forward` alone; other methods go in an impl without `#[module]`",
            ),
        }
    }
    let Some(f) = found else {
        if errors.is_empty() {
            errors.at(&item.self_ty, "this impl needs `fn forward(&self, x: T![..]) -> T![..]`");
        }
        let (fallback, errors) = (inert(&names, &consts, None), errors.into_tokens());
        return quote!(#fallback #errors);
    };
    if !f.sig.generics.params.is_empty() {
        errors.at(&f.sig.generics, "`forward` has no parameters of its own: those of the impl are enough");
    }
    if let Some(clause) = &f.sig.generics.where_clause {
        errors.at(
            clause,
            "`forward` needs no where-clause: its shapes are checked where the module is made concrete",
        );
    }
    for attr in f.attrs.iter().filter(|a| !a.path().is_ident("doc")) {
        errors.at(attr, "`forward` takes no attributes but documentation");
    }
    let (constness, asyncness, unsafety, abi) =
        (&f.sig.constness, &f.sig.asyncness, &f.sig.unsafety, &f.sig.abi);
    let qualifiers = quote!(#constness #asyncness #unsafety #abi);
    if !qualifiers.is_empty() {
        errors.at(qualifiers, "`forward` is a plain `fn`");
    }
    let mut reader = Reader::new(&consts, errors);
    let mut params = f.sig.inputs.iter().peekable();
    match params.next_if(|p| matches!(p, FnArg::Receiver(_))) {
        Some(FnArg::Receiver(r))
            if r.reference.is_some() && r.mutability.is_none() && r.colon_token.is_none() => {}
        Some(other) => reader.errors.at(other, "`forward` takes `&self` first"),
        None => reader.errors.at(&f.sig.ident, "`forward` takes `&self` first"),
    }
    for param in params {
        if let FnArg::Typed(param) = param {
            if let (Type::Tuple(tuple), syn::Pat::Ident(_)) = (&*param.ty, &*param.pat) {
                let text = "several values are several parameters: `a: T![4], b: T![4]`";
                reader.errors.at(tuple, text);
            }
            let ty = consts.signature(&param.ty, &mut reader.errors);
            reader.input(&param.pat, ty);
        }
    }
    if reader.graph.inputs.len() > 6 {
        reader.errors.at(&f.sig.inputs, "a module takes at most 6 tensors");
    }
    reader.body(&f.block);
    if reader.graph.outputs.len() > 6 {
        reader.errors.at(&f.sig.output, "a module gives at most 6 tensors");
    }
    let (gives, gives_span) = match &f.sig.output {
        ReturnType::Type(_, ty) => (consts.signature(ty, &mut reader.errors), ends(ty)),
        ReturnType::Default => {
            reader.errors.at(&f.sig.ident, "`forward` says what it gives: `-> T![10]`");
            (quote!(()), ends(&f.sig.ident))
        }
    };
    let Reader { graph, errors, .. } = reader;
    if !errors.is_empty() {
        let takes: Vec<_> = graph.inputs.iter().map(|i| &i.ty).collect();
        let declared = (one_or_tuple(&takes), gives);
        let (fallback, errors) = (inert(&names, &consts, Some(declared)), errors.into_tokens());
        return quote!(#fallback #errors);
    }
    Arithmetic { names: &names, consts: &consts, graph: &graph, gives, gives_span, all_used: true }.expand()
}

/// `Block` and `D` of `impl<const D: usize> Block<D>`, the parameters in the struct's order.
fn module(item: &ItemImpl, errors: &mut Errors) -> Option<(Names, Consts)> {
    let before = errors.is_empty();
    let consts = Consts::new(&item.generics, errors);
    let Type::Path(ty) = &*item.self_ty else {
        errors.at(&item.self_ty, "`#[module]` goes on the impl of a struct declared with `#[module]`");
        return None;
    };
    let last = ty.path.segments.last()?;
    let given = match &last.arguments {
        PathArguments::AngleBracketed(args) => args.args.iter().map(|a| quote!(#a).to_string()).collect(),
        _ => Vec::new(),
    };
    let find = |name: &String| consts.names.iter().find(|own| *own == name).cloned();
    let order: Option<Vec<_>> = given.iter().map(find).collect();
    let (order, whole) = match order {
        Some(order) if order.len() == consts.names.len() && distinct(&given) => (order, true),
        // As many parameters as the struct may have.
        _ => ((0..given.len()).map(|i| format_ident!("__nn_P{i}")).collect(), false),
    };
    if let Some((_, path, _)) = &item.trait_ {
        errors.at(path, "`#[module]` goes on an impl without a trait");
    } else if !whole && (before == errors.is_empty()) {
        errors.at(&item.self_ty, "write the impl for all parameters: `impl<const D: usize> Block<D>`");
    }
    let consts = Consts::of(order);
    let names = Names::new(&ty.path, &consts)?;
    Some((names, consts))
}

fn distinct(names: &[String]) -> bool {
    names.iter().enumerate().all(|(i, name)| !names[..i].contains(name))
}

/// What a module is when its `forward` could not be read: something that fits everywhere, so that one
/// mistake gives one message.
///
/// It takes and gives what is declared, as far as that could be read, so that what uses it is not wrong as well.
pub(crate) fn inert(
    names: &Names,
    consts: &Consts,
    declared: Option<(TokenStream, TokenStream)>,
) -> TokenStream {
    let (takes, gives) = declared.unwrap_or_else(|| (quote!(()), quote!(())));
    let own = &names.own;
    let (params, args, bounds) = (consts.params(), consts.args(), consts.bounds());
    quote! {
        const _: () = {
            use ::nn::__private as __nn;
            impl<#bounds __nn_X: __nn::Signature> __nn::Layer<__nn_X> for #own #args {
                const RULE: __nn::Rule = __nn::Rule::ok(__nn::Sig::POISON);
            }
            impl<#bounds __nn_D: __nn::Device, __nn_X: __nn::Signature> __nn::Module<__nn_D, __nn_X> for #own #args {
                fn forward(_: &mut __nn::Ctx<'_, __nn_D>, _: __nn::Forward<'_, __nn_D>) {}
                fn vjp(_: &mut __nn::Ctx<'_, __nn_D>, _: __nn::Vjp<'_, __nn_D>) {}
            }
            impl #params __nn::Declared for #own #args {
                type In = #takes;
                type Out = #gives;
            }
        };
    }
}
