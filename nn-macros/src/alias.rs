use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemType;

use crate::errors::{Errors, check, ends, no_args};

/// `#[module] type Tiny = Gpt<64, 384, 6>;`: the alias, and the check of what it names.
pub(crate) fn expand(args: TokenStream, item: ItemType) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    if !item.generics.params.is_empty() {
        errors.at(&item.generics, "a checked alias is concrete: `#[module] type Tiny = Gpt<64, 384, 6>;`");
        let errors = errors.into_tokens();
        return quote!(#item #errors);
    }
    let name = &item.ident;
    let fault = quote!(&<#name as ::nn::__private::Layer<<#name as ::nn::__private::Declared>::In>>::RULE.fault);
    let check = check(ends(&item.ty), "accept", fault);
    let errors = errors.into_tokens();
    quote!(#item #check #errors)
}
