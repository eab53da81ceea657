use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::parse::discouraged::Speculative;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Generics, Ident, Pat, Path, Token, Type, Visibility, bracketed, token};

use crate::arithmetic::{Arithmetic, one_or_tuple};
use crate::attrs::{FieldAttrs, ModuleArgs};
use crate::errors::{Errors, ends};
use crate::forward::inert;
use crate::generics::{CHAIN, Consts};
use crate::graph::{Callee, Reader};
use crate::structure::{Field, Names, Structure};

/// `pub LeNet: [1, 28, 28] -> [10] = Conv2D<1, 16, 3>, ReLU, …`.
struct Chain {
    attrs: Vec<Attribute>,
    vis: Visibility,
    name: Ident,
    generics: Generics,
    /// Apart, so that a chain with a mistake in it still has a name.
    body: syn::Result<Body>,
}

struct Body {
    takes: Type,
    gives: Type,
    layers: Vec<Link>,
}

struct Link {
    attrs: Vec<Attribute>,
    name: Option<Ident>,
    ty: Type,
}

const FORM: &str = "a chain is written `Net: [784] -> [10] = Linear<784, 64>, ReLU, Linear<64, 10>`";

/// The next token, or this explanation.
fn expect<T: Parse>(input: ParseStream, else_say: &str) -> syn::Result<T> {
    let span = input.span();
    input.parse().map_err(|_| syn::Error::new(span, else_say))
}

impl Parse for Chain {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let name = expect(input, FORM)?;
        let generics = input.parse()?;
        let ahead = input.fork();
        let body = ahead.parse();
        if body.is_ok() {
            input.advance_to(&ahead);
        } else {
            input.parse::<TokenStream>()?;
        }
        Ok(Self { attrs, vis, name, generics, body })
    }
}

impl Parse for Body {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        expect::<Token![:]>(input, FORM)?;
        let takes = signature(input)?;
        expect::<Token![->]>(input, FORM)?;
        let gives = signature(input)?;
        let equals = expect::<Token![=]>(input, FORM)?;
        let mut layers = Vec::new();
        while !input.is_empty() {
            layers.push(input.parse()?);
            if input.is_empty() {
                break;
            }
            let call = input.peek(token::Paren);
            expect::<Token![,]>(input, if call { LAYER } else { "a comma stands between two layers" })?;
        }
        if layers.is_empty() {
            return Err(syn::Error::new(equals.span(), "a chain has at least one layer"));
        }
        Ok(Self { takes, gives, layers })
    }
}

const LAYER: &str = "a layer is written as a path with arguments: `Linear<784, 64>`";

impl Parse for Link {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let named = input.peek(Ident) && input.peek2(Token![:]) && !input.peek2(Token![::]);
        let name = if named {
            let name = input.parse()?;
            input.parse::<Token![:]>()?;
            Some(name)
        } else {
            None
        };
        Ok(Self { attrs, name, ty: expect(input, LAYER)? })
    }
}

/// `[1, 28, 28]`, `Ids[512]`, or a type.
fn signature(input: ParseStream) -> syn::Result<Type> {
    if input.peek(token::Bracket) {
        let axes;
        let bracket = bracketed!(axes in input);
        let axes: TokenStream = axes.parse()?;
        let span = bracket.span.join();
        // The brackets keep their span, so that an arrow covers what the user wrote.
        let mut group = proc_macro2::Group::new(proc_macro2::Delimiter::Bracket, axes);
        group.set_span(span);
        let name = Ident::new(CHAIN, span);
        return syn::parse2(quote!(#name! #group));
    }
    if input.peek(Ident) && input.peek2(token::Bracket) {
        let ids: Ident = input.parse()?;
        if ids != "Ids" {
            return Err(syn::Error::new(ids.span(), "write `[64]` for a tensor, `Ids[64]` for indices"));
        }
        let inner = signature(input)?;
        return syn::parse2(quote::quote_spanned!(ids.span()=> ::nn::Ids<#inner>));
    }
    expect(input, "write `[64]` for a tensor, `Ids[64]` for indices, or the name of a type")
}

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let chain: Chain = match syn::parse2(input) {
        Ok(chain) => chain,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let mut args = ModuleArgs::default();
    let (own, attrs): (Vec<_>, Vec<_>) = chain.attrs.into_iter().partition(|a| a.path().is_ident("module"));
    for attr in own {
        match attr.meta {
            syn::Meta::List(list) => args = ModuleArgs::new(list.tokens, &mut errors),
            other => errors.at(other, "a chain is a module without being called one"),
        }
    }
    let consts = Consts::new(&chain.generics, &mut errors);
    let mut fields = Vec::new();
    let (takes, gives, layers) = match chain.body {
        Ok(Body { takes, gives, layers }) => (Some(takes), Some(gives), layers),
        Err(error) => {
            errors.push(error);
            (None, None, Vec::new())
        }
    };
    for (i, link) in layers.into_iter().enumerate() {
        let mut attrs = FieldAttrs::new(link.attrs, &mut errors);
        let named = link.name.is_some();
        let (name, key, vis) = match link.name {
            Some(name) => {
                let key = name.to_string().trim_start_matches("r#").to_owned();
                if !attrs.others.iter().any(|a| a.path().is_ident("doc")) {
                    let note =
                        format!("`{}`", link.ty.to_token_stream()).replace(" <", "<").replace("< ", "<");
                    let note = note.replace(" >", ">").replace(" ,", ",");
                    attrs.others.push(syn::parse_quote!(#[doc = #note]));
                }
                (name, key, chain.vis.clone())
            }
            None => (format_ident!("_{i}", span = link.ty.span()), i.to_string(), Visibility::Inherited),
        };
        fields.push(Field { attrs, vis, name, key, named, ty: link.ty });
    }

    let mut reader = Reader::new(&consts, errors);
    let takes = takes.map(|ty| consts.signature(&ty, &mut reader.errors));
    let whole = Pat::Wild(syn::PatWild { attrs: Vec::new(), underscore_token: Default::default() });
    reader.input(&whole, takes.unwrap_or_default());
    let mut value = 0;
    for field in &fields {
        let span = ends(&field.ty);
        value = reader.graph.node(Callee::Field(field.name.clone()), span, vec![value], &shown(field));
    }
    let (gives, gives_span) = match &gives {
        Some(ty) => (consts.signature(ty, &mut reader.errors), ends(ty)),
        None => (TokenStream::new(), (Span::call_site(), Span::call_site())),
    };
    reader.outputs(vec![value], gives_span);
    let Reader { graph, mut errors, .. } = reader;

    let path = Path::from(chain.name.clone());
    let Some(names) = Names::new(&path, &consts) else { return errors.into_tokens() };
    let structure = Structure {
        attrs,
        vis: chain.vis,
        name: chain.name,
        consts: &consts,
        fields,
        args,
        forward_elsewhere: false,
    };
    let structure = structure.expand(&mut errors);
    let arithmetic = if errors.is_empty() {
        Arithmetic { names: &names, consts: &consts, graph: &graph, gives, gives_span, all_used: false }
            .expand()
    } else {
        let takes: Vec<_> = graph.inputs.iter().map(|i| &i.ty).filter(|ty| !ty.is_empty()).collect();
        let known = !takes.is_empty() && !gives.is_empty();
        inert(&names, &consts, known.then(|| (one_or_tuple(&takes), gives.clone())))
    };
    let errors = errors.into_tokens();
    quote!(#structure #arithmetic #errors)
}

/// What messages call an unnamed layer: by its type.
fn shown(field: &Field) -> String {
    let name = field.name.to_string();
    match &field.ty {
        Type::Path(path) if name.starts_with('_') => {
            path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or(name)
        }
        _ => name,
    }
}
