use proc_macro2::{Delimiter, Group, Ident, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Fields, ItemStruct, Path, PathArguments, Type, Visibility};

use crate::attrs::{Case, FieldAttrs, ModuleArgs, is_cfg, no_cfg};
use crate::errors::{Errors, check, ends, respan};
use crate::generics::Consts;

/// A struct of layers, however it was written.
pub(crate) struct Structure<'a> {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    pub(crate) consts: &'a Consts,
    pub(crate) fields: Vec<Field>,
    pub(crate) args: ModuleArgs,
    /// Whether its `forward` stands elsewhere, so that there may be none, or one that leaves fields out.
    pub(crate) forward_elsewhere: bool,
}

pub(crate) struct Field {
    pub(crate) attrs: FieldAttrs,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    /// Its name in messages.
    pub(crate) key: String,
    /// Whether its name is the user's, so that `rename_all` changes it.
    pub(crate) named: bool,
    pub(crate) ty: Type,
}

impl Field {
    /// Its name in a checkpoint.
    fn saved(&self, case: Option<Case>) -> String {
        match (&self.attrs.rename, case) {
            (Some(name), _) => name.value(),
            // The names of what it is in a checkpoint are in its attribute; this is shown.
            (None, Some(case)) if self.named && self.attrs.fused.is_none() => case.apply(&self.key),
            _ => self.key.clone(),
        }
    }
}

/// How code names a module `Block`.
pub(crate) struct Names {
    /// The struct itself: `Block` if it has no parameters, else `BlockOf`, of which `Block` is an alias with
    /// `const` parameters.
    pub(crate) own: TokenStream,
    /// The trait that says which layer each field is.
    pub(crate) fields: TokenStream,
}

impl Names {
    pub(crate) fn new(path: &Path, consts: &Consts) -> Option<Self> {
        let with = |suffix: &str| {
            let mut path = path.clone();
            let last = path.segments.last_mut()?;
            last.arguments = PathArguments::None;
            if !suffix.is_empty() {
                last.ident = format_ident!("{}{suffix}", last.ident, span = last.ident.span());
            }
            Some(path.into_token_stream())
        };
        Some(Self { own: with(if consts.is_empty() { "" } else { "Of" })?, fields: with("Fields")? })
    }
}

/// `#[module] struct Block<const D: usize> { fc1: Linear<D, D>, .. }`.
pub(crate) fn expand(args: TokenStream, item: ItemStruct) -> TokenStream {
    let mut errors = Errors::default();
    let args = ModuleArgs::new(args, &mut errors);
    let consts = Consts::new(&item.generics, &mut errors);
    let mut fields = Vec::new();
    match item.fields {
        Fields::Named(named) => {
            for field in named.named {
                let Some(name) = field.ident else { continue };
                let key = name.to_string().trim_start_matches("r#").to_owned();
                let attrs = FieldAttrs::new(field.attrs, &mut errors);
                fields.push(Field { attrs, vis: field.vis, name, key, named: true, ty: field.ty });
            }
        }
        Fields::Unit => {}
        Fields::Unnamed(other) => {
            errors.at(other, "a module's layers have names: `struct Net { fc1: Linear<784, 64> }`")
        }
    }
    let structure = Structure {
        attrs: item.attrs,
        vis: item.vis,
        name: item.ident,
        consts: &consts,
        fields,
        args,
        forward_elsewhere: true,
    };
    let structure = structure.expand(&mut errors);
    let errors = errors.into_tokens();
    quote!(#structure #errors)
}

impl Structure<'_> {
    /// The struct, what it has for parameters, and which layer each field is.
    pub(crate) fn expand(&self, errors: &mut Errors) -> TokenStream {
        let Self { attrs, vis, name, consts, .. } = self;
        let Some(Names { own, fields: fields_trait }) = Names::new(&Path::from(name.clone()), consts) else {
            return TokenStream::new();
        };
        no_cfg(attrs, errors);
        for attr in attrs.iter().filter(|a| a.path().is_ident("derive")) {
            errors.at(attr, "a module has `Clone`, `Debug` and `Default` without a derive");
        }
        let attrs: Vec<_> = attrs.iter().filter(|a| !a.path().is_ident("derive") && !is_cfg(a)).collect();
        let fields = self.distinct_fields(errors);
        let (params, args) = (consts.params(), consts.args());
        let dims = &consts.names;

        let fine = errors.is_empty();
        let types: Vec<_> = fields
            .iter()
            .map(|f| errors.clean(|errors| consts.layer(&f.ty, errors)).filter(|_| fine))
            .map(|ty| ty.unwrap_or_else(|| quote!(::nn::__private::Inert)))
            .collect();
        let names: Vec<_> = fields.iter().map(|f| &f.name).collect();
        let visibilities = fields.iter().map(|f| &f.vis);
        let others = fields.iter().map(|f| &f.attrs.others);
        let case = self.args.rename_all;
        let children: Vec<_> = fields
            .iter()
            .map(|f| {
                let (saved, field, with) = (f.saved(case), &f.name, f.attrs.child(consts, errors));
                quote!(__nn::Child::new(#saved, __nn::Part::<<Self as #fields_trait>::#field>::TREE)#with)
            })
            .collect();
        let values = names.iter().map(|n| quote!(#n: __nn::Part::<<Self as #fields_trait>::#n>::value()));
        let debugs = names.iter().zip(&fields).map(|(n, f)| {
            let key = &f.key;
            quote!(.field(#key, __nn::Part::<<Self as #fields_trait>::#n>::debug(&self.#n)))
        });
        let generic = !consts.is_empty();
        let held = quote!(::core::marker::PhantomData<(#(#dims,)*)>);
        let marker = generic.then(|| quote!(__nn_dims: #held,));
        let marker_value = generic.then(|| quote!(__nn_dims: ::core::marker::PhantomData,));
        let alias = generic.then(
            || quote!(#(#attrs)* #vis type #name<#(const #dims: usize),*> = #own<#(::nn::C<#dims>),*>;),
        );
        let rebind = generic.then(|| {
            let new: Vec<_> = dims.iter().map(|d| format_ident!("__nn_{d}")).collect();
            let new_types: Vec<_> = new.iter().zip(dims).map(|(n, d)| quote!(<#n as __nn::Arg<#d>>::To)).collect();
            quote! {
                impl<#(#dims: __nn::Dim,)* #(#new: __nn::Arg<#dims>),*> __nn::Rebind<(#(#new,)*)> for #own #args
                where
                    #(#new_types: __nn::Dim,)*
                {
                    type To = #own<#(#new_types),*>;
                }
            }
        });
        let note = format!("[`{name}`] over dimensions that are types.");
        let own_attrs = if generic { quote!(#[doc = #note]) } else { quote!(#(#attrs)*) };
        let keyword = syn::Token![struct](name.span());
        let bounds = types.iter().zip(&fields).map(|(_, f)| quote_spanned!(ends(&f.ty).0=> ::nn::Views));
        let label = name.to_string();
        let label = label.trim_start_matches("r#");
        let macros = consts.macros();
        let checks = errors.is_empty().then(|| self.checks(&own, &fields_trait, &fields));
        let (view_struct, view_impls) = self.view(&own, &fields_trait, &fields);

        // One place for all of it, which compilers point to when they speak of the struct.
        let body = quote!(#(#(#others)* #visibilities #names: #types,)* #marker);
        let mut body = Group::new(Delimiter::Brace, body);
        body.set_span(name.span());

        let computed = generic.then(
            || quote!(#[allow(clippy::type_complexity, reason = "computed arguments are written as types")]),
        );

        quote! {
            #own_attrs
            #computed
            #vis #keyword #own #params #body
            #alias
            #view_struct

            #[doc(hidden)]
            #[allow(non_camel_case_types, reason = "named as the fields are")]
            trait #fields_trait {
                #(type #names: #bounds;)*
                const NAMES: &'static [&'static str];
            }

            #[allow(non_camel_case_types, non_upper_case_globals, reason = "`__nn_` keeps these names from meeting the user's")]
            #computed
            const _: () = {
                use ::nn::__private as __nn;
                #[allow(unused_imports, reason = "where every field is a layer, as it should be")]
                use __nn::{NoPart as _, NoUses as _};

                impl #params #fields_trait for #own #args {
                    #(type #names = #types;)*
                    const NAMES: &'static [&'static str] = &[#(stringify!(#names)),*];
                }
                impl #params __nn::Params for #own #args {
                    const LABEL: __nn::Text = __nn::label(#label, &[#(<#dims as __nn::Dim>::EXTENT),*]);
                    const TREE: &'static __nn::Node = &__nn::Node::new(&[], &[#(#children),*]);
                }
                #view_impls
                #rebind
                impl #params ::core::default::Default for #own #args {
                    fn default() -> Self {
                        Self { #(#values,)* #marker_value }
                    }
                }
                impl #params ::core::clone::Clone for #own #args {
                    fn clone(&self) -> Self {
                        Self::default()
                    }
                }
                impl #params ::core::fmt::Debug for #own #args {
                    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                        f.debug_struct(<Self as __nn::Params>::LABEL.as_str()) #(#debugs)* .finish()
                    }
                }
                #macros
                #checks
            };
        }
    }

    /// The fields, without those whose name is taken.
    fn distinct_fields(&self, errors: &mut Errors) -> Vec<&Field> {
        let mut fields: Vec<&Field> = Vec::new();
        let case = self.args.rename_all;
        for field in &self.fields {
            let saved = field.saved(case);
            if saved == "__metadata__" {
                let text = "no parameter can be called `__metadata__` in a checkpoint: what the file says of itself is";
                errors.at(&field.name, text);
            }
            let same = |f: &&&Field| f.saved(case) == saved && !saved.is_empty();
            if fields.iter().any(|f| f.name == field.name) {
                errors.at(&field.name, format!("there are two layers named `{}`", field.name));
                continue;
            }
            if let Some(other) = fields.iter().find(same) {
                let text = format!("`{}` and this are both `{saved}` in a checkpoint", other.key);
                match &field.attrs.rename {
                    Some(name) => errors.at(name, text),
                    None => errors.at(&field.name, text),
                }
            }
            fields.push(field);
        }
        fields
    }

    /// The struct whose fields are the views of the layers, and what makes one. It is generic over what says which layer each
    /// field is, so that a field that is no layer is a mistake in one place only.
    fn view(
        &self,
        own: &TokenStream,
        fields_trait: &TokenStream,
        fields: &[&Field],
    ) -> (TokenStream, TokenStream) {
        let Self { vis, name, consts, .. } = self;
        let view = format_ident!("{name}View", span = name.span());
        let (params, args) = (consts.params(), consts.args());
        let title = format!("The parameters of [`{name}`], a field each layer.");
        let default = consts.is_empty().then(|| quote!(= #own));
        let of = |f: &Field| {
            let field = &f.name;
            quote!(<__nn_M::#field as ::nn::Views>)
        };
        let typed = fields.iter().map(|f| {
            let (name, of) = (&f.name, of(f));
            let note = format!("The parameters of `{}`.", f.key);
            quote!(#[doc = #note] #vis #name: #of::View<__nn_A>)
        });
        let values = fields.iter().enumerate().map(|(i, f)| {
            let (name, i) = (&f.name, proc_macro2::Literal::usize_unsuffixed(i));
            quote!(#name: arenas.child(#i))
        });
        let arenas = if fields.is_empty() { quote!(_) } else { quote!(mut arenas) };
        let structure = quote! {
            #[doc = #title]
            #[allow(non_camel_case_types, reason = "`__nn_` keeps these names from meeting the user's")]
            #[allow(private_bounds, private_interfaces, reason = "which layer a field is may be private")]
            #[allow(clippy::pub_underscore_fields, reason = "a layer without a name has its number, `_0`")]
            #vis struct #view<__nn_A: ::nn::Access, __nn_M: #fields_trait #default> {
                #(#typed,)*
                __nn_model: ::core::marker::PhantomData<(__nn_A, __nn_M)>,
            }
        };
        let impls = quote! {
            impl<__nn_A: __nn::Access, __nn_M: #fields_trait> __nn::FromArenas<__nn_A> for #view<__nn_A, __nn_M> {
                fn from_arenas(#arenas: __nn::Arenas<__nn_A>) -> Self {
                    Self { #(#values,)* __nn_model: ::core::marker::PhantomData }
                }
            }
            impl #params __nn::Views for #own #args {
                type View<__nn_A: __nn::Access> = #view<__nn_A, Self>;
            }
        };
        (structure, impls)
    }

    /// What stops the compiler, each at the user's own token.
    fn checks(&self, own: &TokenStream, fields_trait: &TokenStream, fields: &[&Field]) -> TokenStream {
        let renamed = fields.iter().any(|f| f.attrs.rename.is_some() || f.attrs.fused.is_some());
        let faults = fields.iter().enumerate().filter(|_| self.consts.is_empty()).flat_map(|(i, f)| {
            let i = proc_macro2::Literal::usize_unsuffixed(i);
            let one = |span, method: &str| {
                let method = format_ident!("{method}");
                check(span, "accept", quote!(&<#own as __nn::Params>::TREE.#method(#i)))
            };
            let tie = f.attrs.tied.as_ref().map(|path| one(ends(path), "check_tie"));
            let pieces = f.attrs.fused.as_ref().map(|fused| one(ends(&fused.tokens), "check_pieces"));
            let name = match (&f.attrs.fused, &f.attrs.rename) {
                (Some(fused), _) => ends(&fused.tokens),
                (None, Some(name)) => ends(name),
                (None, None) => (f.name.span(), f.name.span()),
            };
            let names = renamed.then(|| one(name, "check_name"));
            [tie, pieces, names].into_iter().flatten()
        });
        let forward = self.forward_elsewhere.then(|| {
            // Which fields are used doesn't depend on the parameters: any numbers will do.
            let any = self.consts.names.iter().map(|_| quote!(__nn::C<1>));
            let any = if self.consts.is_empty() { quote!(#own) } else { quote!(#own<#(#any),*>) };
            let used = fields.iter().map(|f| {
                let (field, name) = (&f.name, f.name.to_string());
                let label = quote!(__nn::Part::<<__nn_Any as #fields_trait>::#field>::LABEL);
                let span = (f.name.span(), f.name.span());
                check(span, "accept", quote!(&__nn::check_used(__nn_USED, #name, &#label)))
            });
            // That there is a `forward` is asked at the struct's name.
            let span = self.name.span();
            let known = respan(span, quote!(const _: () = __nn::has_forward::<#any>();));
            let used = (!fields.is_empty()).then(|| quote! {
                type __nn_Any = #any;
                const __nn_USED: ::core::option::Option<&'static [&'static str]> = __nn::UsesOf::<__nn_Any>::FIELDS;
                #(#used)*
            });
            quote!(#known #used)
        });
        quote!(#(#faults)* #forward)
    }
}
