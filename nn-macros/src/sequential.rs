use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Generics, Ident, Token, Type, Visibility, bracketed};

use crate::attrs::FieldAttrs;
use crate::errors::{Errors, ends};
use crate::forward::Forward;
use crate::generics::Consts;
use crate::graph::{Callee, Reader};
use crate::structure::{Field, Structure};

/// `pub LeNet: [1, 28, 28] -> [10] = Conv2D<1, 16, 3>, ReLU, …`.
pub(crate) struct Chain {
    attrs: Vec<Attribute>,
    vis: Visibility,
    name: Ident,
    generics: Generics,
    input: Type,
    output: Type,
    output_span: (Span, Span),
    layers: Vec<Link>,
}

struct Link {
    attrs: Vec<Attribute>,
    name: Option<Ident>,
    ty: Type,
}

impl Parse for Chain {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let name = input.parse()?;
        let generics = input.parse()?;
        input.parse::<Token![:]>()?;
        let takes = signature(input)?;
        input.parse::<Token![->]>()?;
                let gives = signature(input)?;
        let output_span = ends(&gives);
        input.parse::<Token![=]>()?;
        let mut layers = Vec::new();
        while !input.is_empty() {
            layers.push(input.parse()?);
            if input.is_empty() {
                break;
            }
            input.parse::<Token![,]>()?;
        }
        if layers.is_empty() {
            return Err(input.error("a chain has at least one layer"));
        }
        Ok(Self { attrs, vis, name, generics, input: takes, output: gives, output_span, layers })
    }
}

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
        Ok(Self { attrs, name, ty: input.parse()? })
    }
}

/// `[1, 28, 28]`, `Ids[512]`, or a type.
fn signature(input: ParseStream) -> syn::Result<Type> {
    if input.peek(syn::token::Bracket) {
        let axes;
        let bracket = bracketed!(axes in input);
        let axes: TokenStream = axes.parse()?;
        let span = bracket.span.join();
        // The brackets keep their span, so that an arrow covers what the user wrote.
        let mut group = proc_macro2::Group::new(proc_macro2::Delimiter::Bracket, axes);
        group.set_span(span);
        return syn::parse2(quote::quote_spanned!(span=> T! #group));
    }
    if input.peek(Ident) && input.peek2(syn::token::Bracket) {
        let ids: Ident = input.parse()?;
        if ids != "Ids" {
            return Err(syn::Error::new(ids.span(), "write `[64]` for a tensor, `Ids[64]` for indices"));
        }
        let inner = signature(input)?;
        return syn::parse2(quote::quote_spanned!(ids.span()=> ::nn::__private::Ids<#inner>));
    }
    input.parse()
}

pub(crate) fn expand(chain: Chain) -> TokenStream {
    let mut errors = Errors::default();
    let consts = Consts::new(&chain.generics, &mut errors);
    let mut fields = Vec::new();
    let mut taken = std::collections::HashSet::new();
    for (i, link) in chain.layers.into_iter().enumerate() {
        let key = link.name.as_ref().map_or_else(|| i.to_string(), Ident::to_string);
        let name = link.name.unwrap_or_else(|| format_ident!("_{i}", span = link.ty.span()));
        if !taken.insert(name.to_string()) {
            errors.at(&name, format!("there are two layers named `{name}`"));
        }
        let mut attrs = FieldAttrs::new(link.attrs, &mut errors);
        let note = format!("`{}`", link.ty.to_token_stream().to_string().replace(" ", "").replace(",", ", "));
        attrs.others.push(syn::parse_quote!(#[doc = #note]));
        fields.push(Field { attrs, vis: chain.vis.clone(), name, key, ty: link.ty });
    }

    let takes = consts.rewrite(&chain.input, &mut errors);
    let mut reader = Reader::new(&consts, errors);
    let whole: syn::Pat = syn::Pat::Wild(syn::PatWild { attrs: Vec::new(), underscore_token: Default::default() });
    reader.input(&whole, takes);
    let mut value = 0;
    for field in &fields {
        let span = ends(&field.ty);
        value = reader.graph.node(Callee::Field(field.name.clone()), span, vec![value], &shown(field));
    }
    reader.outputs(vec![value], ends(&chain.output));
    let mut errors = reader.errors;
    let gives = consts.rewrite(&chain.output, &mut errors);
    let forward = Forward {
        name: &chain.name,
        consts: &consts,
        graph: &reader.graph,
        gives,
        gives_span: chain.output_span,
        all_used: false,
    };
    let forward = forward.expand();
    let structure = Structure { attrs: chain.attrs, vis: chain.vis, name: chain.name.clone(), consts: Consts::new(&chain.generics, &mut Errors::default()), fields };
    let mut tokens = structure.expand(errors);
    tokens.extend(forward);
    tokens
}

fn shown(field: &Field) -> String {
    let name = field.name.to_string();
    match &field.ty {
        Type::Path(path) if name.starts_with('_') => {
            path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or(name)
        }
        _ => name,
    }
}
