use std::fmt::Display;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};

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

    pub(crate) fn append(&mut self, other: Self) {
        if let Some(error) = other.0 {
            self.push(error);
        }
    }

    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Runs `f`, and gives its result if it found no mistake.
    pub(crate) fn clean<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let mut own = Self::default();
        let result = f(&mut own);
        match own.0 {
            Some(error) => {
                self.push(error);
                None
            }
            None => Some(result),
        }
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

/// The spans of the first and the last token.
pub(crate) fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens.into_token_stream().into_iter().map(|t| match t {
        TokenTree::Group(group) => (group.span_open(), group.span_close()),
        other => (other.span(), other.span()),
    });
    let (first, mut last) = spans.next().unwrap_or_else(|| (Span::call_site(), Span::call_site()));
    if let Some((_, end)) = spans.last() {
        last = end;
    }
    (first, last)
}

/// `const _: () = __nn::f(args);`, for which rustc's arrow goes from the first span to the last: a call's span
/// reaches from its path to its closing parenthesis.
pub(crate) fn check((first, last): (Span, Span), f: &str, args: TokenStream) -> TokenStream {
    let f = Ident::new(f, first);
    let path = quote_spanned!(first=> __nn::#f);
    let mut args = Group::new(Delimiter::Parenthesis, args);
    args.set_span(last);
    quote_spanned!(first=> const _: () = #path #args;)
}

/// The same tokens, all at one place.
pub(crate) fn respan(span: Span, tokens: TokenStream) -> TokenStream {
    tokens
        .into_iter()
        .map(|tree| match tree {
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), respan(span, group.stream()));
                inner.set_span(span);
                TokenTree::Group(inner)
            }
            mut other => {
                other.set_span(span);
                other
            }
        })
        .collect()
}
