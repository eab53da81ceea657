use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Fields, GenericParam, ItemStruct};

use crate::errors::{Errors, no_args};

/// `#[layer] pub struct Linear<const IN: usize, const OUT: usize>;`: the struct over dimensions, the alias
/// with `const` parameters, and what lets the arguments be computed.
pub(crate) fn expand(args: TokenStream, item: ItemStruct) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    if !matches!(item.fields, Fields::Unit) {
        errors.at(
            &item.fields,
            "a layer holds nothing: its parameters are in the model's arena; write `struct Name<…>;`",
        );
    }
    let (vis, name, attrs) = (&item.vis, &item.ident, &item.attrs);
    let label = name.to_string();
    let params: Vec<_> = item.generics.params.iter().collect();
    let mut idents = Vec::new();
    let mut bounds = Vec::new();
    let mut alias_params = Vec::new();
    let mut alias_args = Vec::new();
    let mut extents = Vec::new();
    let mut defaults = Vec::new();
    for param in &params {
        match param {
            GenericParam::Const(c) => {
                let id = &c.ident;
                idents.push(id.clone());
                bounds.push(quote!(#id: ::nn::__private::Dim));
                alias_params.push(quote!(#c));
                alias_args.push(quote!(::nn::__private::C<#id>));
                extents.push(quote!(<#id as ::nn::__private::Dim>::EXTENT));
                match &c.default {
                    Some(default) => defaults.push(quote!(::core::option::Option::Some(#default))),
                    None => defaults.push(quote!(::core::option::Option::None)),
                }
            }
            GenericParam::Type(t) => {
                let (id, b, default) = (&t.ident, &t.bounds, &t.default);
                idents.push(id.clone());
                bounds.push(quote!(#id: #b));
                let default = default.as_ref().map(|d| quote!(= #d));
                alias_params.push(quote!(#id #default));
                alias_args.push(quote!(#id));
            }
            GenericParam::Lifetime(l) => errors.at(l, "a layer has no lifetimes"),
        }
    }
    let errors = errors.into_tokens();
    let inherent = quote! {
        /// The name and arguments, those at their defaults left out.
        const SHOWN: ::nn::__private::Text =
            ::nn::__private::label_with_defaults(#label, Self::ARGS, &[#(#defaults),*]);
        /// The dimensions.
        const ARGS: &'static [::nn::__private::Extent] = &[#(#extents),*];
    };
    if idents.is_empty() {
        return quote! {
            #(#attrs)*
            #[derive(Clone, Copy, Debug, Default)]
            #vis struct #name;
            impl #name { #inherent }
            #errors
        };
    }
    let own = format_ident!("{name}Of");
    let note = format!("[`{name}`] over dimensions that are types: typenum's, or computed ones.");
    let rebinds = (1..=idents.len()).map(|n| {
        let rebound: Vec<_> = idents[..n].iter().map(|id| format_ident!("__nn_{id}")).collect();
        let (changed, kept) = idents.split_at(n);
        quote! {
            #[allow(non_camel_case_types, reason = "the names must not meet the parameters'")]
            impl<#(#idents,)* #(#rebound: ::nn::__private::Arg<#changed>),*>
                ::nn::__private::Rebind<(#(#rebound,)*)> for #own<#(#idents),*>
            {
                type To = #own<#(<#rebound as ::nn::__private::Arg<#changed>>::To,)* #(#kept),*>;
            }
        }
    });
    quote! {
        #[doc = #note]
        #vis struct #own<#(#idents),*>(::core::marker::PhantomData<(#(#idents,)*)>);
        #(#attrs)*
        #vis type #name<#(#alias_params),*> = #own<#(#alias_args),*>;
        #(#rebinds)*
        impl<#(#bounds),*> #own<#(#idents),*> { #inherent }
        impl<#(#idents),*> ::core::default::Default for #own<#(#idents),*> {
            fn default() -> Self {
                Self(::core::marker::PhantomData)
            }
        }
        impl<#(#idents),*> ::core::clone::Clone for #own<#(#idents),*> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<#(#idents),*> ::core::marker::Copy for #own<#(#idents),*> {}
        impl<#(#bounds),*> ::core::fmt::Debug for #own<#(#idents),*>
        where
            Self: ::nn::Params,
        {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(<Self as ::nn::Params>::LABEL.as_str())
            }
        }
        #errors
    }
}
