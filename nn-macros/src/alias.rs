use proc_macro2::TokenStream;
use quote::quote;
use syn::ItemType;

use crate::errors::{Errors, check, ends, no_args, respan};

/// `#[module] type Tiny = Gpt<64, 384, 6>;`: the alias, and the check of what it names.
pub(crate) fn expand(args: TokenStream, item: ItemType) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    if !item.generics.params.is_empty() {
        errors.at(&item.generics, "a checked alias is concrete: `#[module] type Tiny = Gpt<64, 384, 6>;`");
    }
    if !errors.is_empty() {
        let errors = errors.into_tokens();
        return quote!(#item #errors);
    }
    let (name, span) = (&item.ident, ends(&item.ty));
    // Where it is no model, that is said of what it names.
    let model = respan(span.0, quote!(#name));
    let fault = quote!(&<#model as __nn::Layer<<#model as __nn::Declared>::In>>::RULE.fault);
    let check = check(span, "accept", respan(span.0, fault));
    quote! {
        #item
        const _: () = {
            use ::nn::__private as __nn;
            #check
        };
    }
}
