use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Fields, GenericParam, ItemStruct, Token, Type};

use crate::errors::Errors;

/// What `#[layer(..)]` says of the views of its parameters.
enum Views {
    /// Each parameter with its shape.
    Of(Vec<Viewed>),
    /// Written by hand.
    Own,
}

/// `weight: S2<OUT, IN>`, `bias: Option<S1<OUT>>`, or `lora_a = "lora_A.weight": S2<R, IN>`.
struct Viewed {
    name: Ident,
    /// Its name in a checkpoint.
    key: String,
    shape: Type,
    optional: bool,
}

impl Parse for Viewed {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let name: Ident = input.parse()?;
        let key = match input.parse::<Option<Token![=]>>()? {
            Some(_) => input.parse::<syn::LitStr>()?.value(),
            None => name.to_string(),
        };
        input.parse::<Token![:]>()?;
        let shape: Type = input.parse()?;
        if let Type::Path(path) = &shape
            && let Some(last) = path.path.segments.last()
            && last.ident == "Option"
            && let syn::PathArguments::AngleBracketed(args) = &last.arguments
            && let Some(syn::GenericArgument::Type(inner)) = args.args.first()
        {
            return Ok(Self { name, key, shape: inner.clone(), optional: true });
        }
        Ok(Self { name, key, shape, optional: false })
    }
}

impl Parse for Views {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        if input.peek(syn::Ident) && !input.peek2(Token![:]) && !input.peek2(Token![=]) {
            let word: Ident = input.parse()?;
            if word != "own_views" {
                let text =
                    "write the parameters with their shapes: `#[layer(weight: S2<OUT, IN>)]`, or `own_views`";
                return Err(syn::Error::new(word.span(), text));
            }
            return Ok(Self::Own);
        }
        Ok(Self::Of(Punctuated::<Viewed, Token![,]>::parse_terminated(input)?.into_iter().collect()))
    }
}

/// `#[layer] pub struct Linear<const IN: usize, const OUT: usize>;`: the struct over dimensions, the alias
/// with `const` parameters, and what lets the arguments be computed.
pub(crate) fn expand(args: TokenStream, item: ItemStruct) -> TokenStream {
    let mut errors = Errors::default();
    let views = match syn::parse2::<Views>(args) {
        Ok(views) => views,
        Err(error) => {
            errors.push(error);
            Views::Own
        }
    };
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
    let own = if idents.is_empty() { name.clone() } else { format_ident!("{name}Of") };
    let views = view(&views, vis, name, &own, &idents, &bounds);
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
            #views
            #errors
        };
    }
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
        #views
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

/// The struct with a field for each parameter, and what makes one.
fn view(
    views: &Views,
    vis: &syn::Visibility,
    name: &Ident,
    own: &Ident,
    idents: &[Ident],
    bounds: &[TokenStream],
) -> TokenStream {
    let Views::Of(parameters) = views else { return TokenStream::new() };
    let (args, generics) = match idents.is_empty() {
        true => (TokenStream::new(), TokenStream::new()),
        false => (quote!(<#(#idents),*>), quote!(<#(#bounds),*>)),
    };
    if parameters.is_empty() {
        return quote! {
            #[allow(non_camel_case_types, reason = "the name must not meet the layer's parameters")]
            impl #generics ::nn::Views for #own #args
            where
                Self: ::nn::Params,
            {
                type View<__nn_A: ::nn::Access> = ();
            }
        };
    }
    let view = format_ident!("{name}View");
    let title = format!("The parameters of [`{name}`].");
    let fields = parameters.iter().map(|Viewed { name, key, shape, optional }| {
        let note = format!("`{key}`");
        let ty = quote!(::nn::TensorView<__nn_A, #shape>);
        let ty = if *optional { quote!(::core::option::Option<#ty>) } else { ty };
        quote!(#[doc = #note] #vis #name: #ty)
    });
    let values = parameters.iter().map(|Viewed { name, key, optional, .. }| {
        let leaf = quote!(arenas.leaf(#key));
        let missing = format!("the layer has a parameter named `{name}`");
        if *optional { quote!(#name: #leaf) } else { quote!(#name: #leaf.expect(#missing)) }
    });
    quote! {
        #[doc = #title]
        #[allow(non_camel_case_types, reason = "the name must not meet the layer's parameters")]
        #vis struct #view<__nn_A: ::nn::Access, #(#bounds),*> {
            #(#fields,)*
            __nn_layer: ::core::marker::PhantomData<#own #args>,
        }
        #[allow(non_camel_case_types, reason = "the name must not meet the layer's parameters")]
        impl #generics ::nn::Views for #own #args
        where
            Self: ::nn::Params,
        {
            type View<__nn_A: ::nn::Access> = #view<__nn_A, #(#idents),*>;
        }
        #[allow(non_camel_case_types, reason = "the name must not meet the layer's parameters")]
        impl<__nn_A: ::nn::Access, #(#bounds),*> ::nn::FromArenas<__nn_A> for #view<__nn_A, #(#idents),*> {
            fn from_arenas(mut arenas: ::nn::Arenas<__nn_A>) -> Self {
                Self { #(#values,)* __nn_layer: ::core::marker::PhantomData }
            }
        }
    }
}
