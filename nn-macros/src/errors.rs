use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// Every mistake of one input, so that all are reported at once.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The `compile_error!`s, or nothing.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.0.map(syn::Error::into_compile_error).unwrap_or_default()
    }
}

/// Reports arguments that an attribute doesn't take.
pub(crate) fn no_args(args: TokenStream, errors: &mut Errors) {
    if !args.is_empty() {
        errors.at(args, "this attribute takes no arguments here");
    }
}
