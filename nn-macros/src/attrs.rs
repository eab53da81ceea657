use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, Expr, ExprLit, Lit, Meta};

use crate::errors::Errors;

/// The attributes of a field that the macros understand, and those that pass through.
pub(crate) struct FieldAttrs {
    pub(crate) init: Option<syn::Type>,
    pub(crate) tied: Option<syn::LitStr>,
    pub(crate) others: Vec<Attribute>,
}

impl FieldAttrs {
    pub(crate) fn new(attrs: Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut all = Self { init: None, tied: None, others: Vec::new() };
        for attr in attrs {
            if attr.path().is_ident("init") {
                match attr.parse_args() {
                    Ok(ty) => all.init = Some(ty),
                    Err(_) => errors.at(attr, "write `#[init(Zero)]`, with the name of an initialiser"),
                }
            } else if attr.path().is_ident("tied") {
                match &attr.meta {
                    Meta::NameValue(syn::MetaNameValue {
                        value: Expr::Lit(ExprLit { lit: Lit::Str(path), .. }), ..
                    }) => all.tied = Some(path.clone()),
                    _ => errors.at(attr, "write `#[tied = \"tok.weight\"]`, with the path of a parameter"),
                }
            } else {
                all.others.push(attr);
            }
        }
        all
    }

    /// Method calls on a `Child`.
    pub(crate) fn child(&self) -> TokenStream {
        let init = self.init.as_ref().map(|ty| quote!(.init(<#ty as ::nn::__private::Initialiser>::INIT)));
        let tied = self.tied.as_ref().map(|path| quote!(.tied(#path)));
        quote!(#init #tied)
    }
}
