use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

use crate::errors::Errors;

/// The macros' code does not follow a `cfg` that the compiler has not yet decided.
pub(crate) fn no_cfg(attrs: &[Attribute], errors: &mut Errors) {
    for attr in attrs.iter().filter(|a| is_cfg(a)) {
        errors.at(attr, "`cfg` stands above `#[module]`, and is for a whole module");
    }
}

pub(crate) fn is_cfg(attr: &Attribute) -> bool {
    attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr")
}

/// The attributes of a field that the macros understand, and those that pass through.
pub(crate) struct FieldAttrs {
    pub(crate) init: Option<syn::Type>,
    pub(crate) tied: Option<syn::LitStr>,
    pub(crate) others: Vec<Attribute>,
}

impl FieldAttrs {
    pub(crate) fn new(attrs: Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut all = Self { init: None, tied: None, others: Vec::new() };
        no_cfg(&attrs, errors);
        for attr in attrs {
            if attr.path().is_ident("init") {
                match attr.parse_args() {
                    Ok(ty) if all.init.is_none() => all.init = Some(ty),
                    Ok(_) => errors.at(attr, "a field has one initialiser"),
                    Err(_) => errors.at(attr, "write `#[init(Zero)]`, with the name of an initialiser"),
                }
            } else if attr.path().is_ident("tied") {
                match &attr.meta {
                    Meta::NameValue(syn::MetaNameValue {
                        value: Expr::Lit(ExprLit { lit: Lit::Str(path), .. }),
                        ..
                    }) => all.tied = Some(path.clone()),
                    _ => errors.at(attr, "write `#[tied = \"tok.weight\"]`, with the path of a parameter"),
                }
            } else if !is_cfg(&attr) {
                all.others.push(attr);
            }
        }
        all
    }

    /// Method calls on a `Child`.
    pub(crate) fn child(&self) -> TokenStream {
        let init = self.init.as_ref().map(|ty| quote!(.init(<#ty as __nn::Initialiser>::INIT)));
        let tied = self.tied.as_ref().map(|path| quote!(.tied(#path)));
        quote!(#init #tied)
    }
}
