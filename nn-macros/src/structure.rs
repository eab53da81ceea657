use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Attribute, Fields, Ident, ItemStruct, Type, Visibility};

use crate::attrs::FieldAttrs;
use crate::errors::{Errors, check, ends, no_args};
use crate::generics::Consts;

/// A struct of layers, however it was written.
pub(crate) struct Structure {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    pub(crate) consts: Consts,
    pub(crate) fields: Vec<Field>,
}

pub(crate) struct Field {
    pub(crate) attrs: FieldAttrs,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    /// Its name in a checkpoint.
    pub(crate) key: String,
    pub(crate) ty: Type,
}

/// The name of the struct itself: `Block` if it has no parameters, else `BlockOf`, of which `Block` is an
/// alias with `const` parameters.
pub(crate) fn struct_name(name: &Ident, consts: &Consts) -> Ident {
    if consts.is_empty() { name.clone() } else { format_ident!("{name}Of") }
}

/// The trait that says which layer each field of a module is.
pub(crate) fn fields_trait(name: &Ident) -> Ident {
    format_ident!("{name}Fields", span = name.span())
}

pub(crate) fn expand(args: TokenStream, item: ItemStruct) -> TokenStream {
    let mut errors = Errors::default();
    no_args(args, &mut errors);
    let consts = Consts::new(&item.generics, &mut errors);
    let mut fields = Vec::new();
    match item.fields {
        Fields::Named(named) => {
            for field in named.named {
                let Some(name) = field.ident else { continue };
                let key = name.to_string().trim_start_matches("r#").to_owned();
                let attrs = FieldAttrs::new(field.attrs, &mut errors);
                fields.push(Field { attrs, vis: field.vis, name, key, ty: field.ty });
            }
        }
        Fields::Unit => {}
        Fields::Unnamed(other) => errors.at(other, "a module's layers have names: `struct Net { fc1: Linear<784, 64> }`"),
    }
    let structure = Structure { attrs: item.attrs, vis: item.vis, name: item.ident, consts, fields };
    structure.expand(errors)
}

impl Structure {
    /// The struct, what it has for parameters, and which layer each field is.
    pub(crate) fn expand(&self, mut errors: Errors) -> TokenStream {
        let Self { attrs, vis, name, consts, fields } = self;
        let own = struct_name(name, consts);
        let fields_trait = fields_trait(name);
        let (params, args) = (consts.params(), consts.args());
        let dims = &consts.names;

        let types: Vec<_> = fields.iter().map(|f| consts.rewrite(&f.ty, &mut errors)).collect();
        let names: Vec<_> = fields.iter().map(|f| &f.name).collect();
        let visibilities = fields.iter().map(|f| &f.vis);
        let others = fields.iter().map(|f| &f.attrs.others);
        let children = fields.iter().zip(&types).map(|(f, ty)| {
            let (key, with) = (&f.key, f.attrs.child());
            quote!(::nn::__private::Child::new(#key, <#ty as ::nn::__private::Params>::TREE)#with)
        });
        let marker = (!consts.is_empty()).then(|| quote!(__nn_dims: ::core::marker::PhantomData<(#(#dims,)*)>,));
        let marker_value = (!consts.is_empty()).then(|| quote!(__nn_dims: ::core::marker::PhantomData,));
        let alias = (!consts.is_empty()).then(|| {
            let rebound: Vec<_> = dims.iter().map(|d| format_ident!("__nn_{d}")).collect();
            quote! {
                #(#attrs)*
                #vis type #name<#(const #dims: usize),*> = #own<#(::nn::__private::C<#dims>),*>;
                #[allow(non_camel_case_types, reason = "the names must not meet the user's")]
                impl<#(#dims: ::nn::__private::Dim,)* #(#rebound: ::nn::__private::Arg<#dims>),*>
                    ::nn::__private::Rebind<(#(#rebound,)*)> for #own<#(#dims),*>
                where
                    #(<#rebound as ::nn::__private::Arg<#dims>>::To: ::nn::__private::Dim,)*
                {
                    type To = #own<#(<#rebound as ::nn::__private::Arg<#dims>>::To),*>;
                }
            }
        });
        let note = format!("[`{name}`] over dimensions that are types.");
        let own_attrs = if consts.is_empty() { quote!(#(#attrs)*) } else { quote!(#[doc = #note]) };
        let ties = fields.iter().enumerate().filter_map(|(i, f)| {
            let path = f.attrs.tied.as_ref().filter(|_| consts.is_empty())?;
            let fault = quote!(&<#own as ::nn::__private::Params>::TREE.check_tie(#i));
            Some(check(ends(path), "accept", fault))
        });
        let label = name.to_string();
        let shown = (!consts.is_empty()).then(|| quote!(#(.field(stringify!(#dims), &<#dims as ::nn::__private::Dim>::N))*));
        let errors = errors.into_tokens();

        quote! {
            #own_attrs
            #vis struct #own #params { #(#(#others)* #visibilities #names: #types,)* #marker }
            #alias

            #[doc(hidden)]
            #[allow(non_camel_case_types, reason = "named as the fields are")]
            trait #fields_trait {
                #(type #names: ::nn::__private::Params;)*
                const __NN_NAMES: &'static [&'static str];
            }
            impl #params #fields_trait for #own #args {
                #(type #names = #types;)*
                const __NN_NAMES: &'static [&'static str] = &[#(stringify!(#names)),*];
            }
            impl #params ::nn::__private::Params for #own #args {
                const LABEL: ::nn::__private::Text =
                    ::nn::__private::label(#label, &[#(<#dims as ::nn::__private::Dim>::EXTENT),*]);
                const TREE: &'static ::nn::__private::Node =
                    &::nn::__private::Node::new(&[], &[#(#children),*]);
            }
            impl #params ::core::default::Default for #own #args {
                fn default() -> Self {
                    Self { #(#names: ::core::default::Default::default(),)* #marker_value }
                }
            }
            impl #params ::core::clone::Clone for #own #args {
                fn clone(&self) -> Self {
                    *self
                }
            }
            impl #params ::core::marker::Copy for #own #args {}
            impl #params ::core::fmt::Debug for #own #args {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    f.debug_struct(#label)#shown #(.field(stringify!(#names), &self.#names))*.finish()
                }
            }
            #(#ties)*
            #errors
        }
    }
}
