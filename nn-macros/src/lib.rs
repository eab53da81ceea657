//! The macros of `nn`. Their documentation is in the facade crate, which re-exports them.

mod alias;
mod arithmetic;
mod attrs;
mod checkpoint;
mod errors;
#[cfg(test)]
mod expansion_tests;
mod forward;
mod generics;
mod graph;
mod header;
mod layer;
#[cfg(test)]
mod odd_input_tests;
mod passes;
mod plan;
mod sequential;
mod structure;

use proc_macro::TokenStream;

/// Declares a module: on a struct of layers, on its `impl` with `forward`, and on a type alias that makes a
/// generic module concrete.
#[proc_macro_attribute]
pub fn module(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::module(args.into(), item.into()).into()
}

/// Declares a chain of layers.
#[proc_macro]
pub fn sequential(input: TokenStream) -> TokenStream {
    expand::sequential(input.into()).into()
}

/// Compares a model with the header of a checkpoint.
#[proc_macro]
pub fn checkpoint(input: TokenStream) -> TokenStream {
    expand::checkpoint(input.into()).into()
}

/// Declares a leaf layer: a struct over dimensions and the alias with `const` parameters.
#[proc_macro_attribute]
pub fn layer(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::layer(args.into(), item.into()).into()
}

/// The macros as functions, which tests can call.
mod expand {
    use proc_macro2::TokenStream;
    use syn::Item;

    use crate::{alias, forward, structure};

    pub(crate) use crate::checkpoint::expand as checkpoint;
    pub(crate) use crate::sequential::expand as sequential;

    pub(crate) fn module(args: TokenStream, item: TokenStream) -> TokenStream {
        match syn::parse2(item) {
            Ok(Item::Struct(item)) => structure::expand(args, item),
            Ok(Item::Impl(item)) => forward::expand(args, item),
            Ok(Item::Type(item)) => alias::expand(args, item),
            Ok(other) => {
                let text = "`#[module]` goes on a struct of layers, on an impl with `fn forward`, or on a type alias";
                syn::Error::new_spanned(other, text).into_compile_error()
            }
            Err(error) => error.into_compile_error(),
        }
    }

    pub(crate) fn layer(args: TokenStream, item: TokenStream) -> TokenStream {
        match syn::parse2(item) {
            Ok(item) => crate::layer::expand(args, item),
            Err(error) => error.into_compile_error(),
        }
    }
}
