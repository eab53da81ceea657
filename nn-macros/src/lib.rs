//! The macros of `nn`. Their documentation is in the facade crate, which re-exports them.

mod alias;
mod attrs;
mod errors;
mod forward;
mod generics;
mod graph;
mod layer;
mod plan;
mod sequential;
mod structure;

use proc_macro::TokenStream;
use syn::{Item, parse_macro_input};

/// Declares a module: on a struct of layers, on its `impl` with `forward`, and on a type alias that makes a
/// generic module concrete.
#[proc_macro_attribute]
pub fn module(args: TokenStream, item: TokenStream) -> TokenStream {
    let args = proc_macro2::TokenStream::from(args);
    match parse_macro_input!(item as Item) {
        Item::Struct(item) => structure::expand(args, item),
        Item::Impl(item) => forward::expand(args, item),
        Item::Type(item) => alias::expand(args, item),
        other => syn::Error::new_spanned(
            other,
            "`#[module]` goes on a struct of layers, on an impl with `fn forward`, or on a type alias",
        )
        .into_compile_error(),
    }
    .into()
}

/// Declares a chain of layers.
#[proc_macro]
pub fn sequential(input: TokenStream) -> TokenStream {
    sequential::expand(parse_macro_input!(input as sequential::Chain)).into()
}

/// Declares a leaf layer: a struct over dimensions and the alias with `const` parameters.
#[proc_macro_attribute]
pub fn layer(args: TokenStream, item: TokenStream) -> TokenStream {
    let args = proc_macro2::TokenStream::from(args);
    layer::expand(args, parse_macro_input!(item as syn::ItemStruct)).into()
}
