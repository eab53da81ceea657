use std::collections::HashMap;
use std::path::PathBuf;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::{LitStr, Token, Type};

use crate::errors::{Errors, check, ends};
use crate::header::{self, Tensor};

/// `"model.safetensors" as MiniLM, prefix = "bert." => "", extra = allow, dtype = F32`.
struct Input {
    path: LitStr,
    model: Type,
    prefixes: Vec<(LitStr, String)>,
    renamed: Vec<(LitStr, String)>,
    only: Vec<LitStr>,
    may_lack: Vec<LitStr>,
    transposed: Vec<LitStr>,
    extra: Extra,
    dtype: Option<Ident>,
}

/// What is said of tensors that are no parameter.
#[derive(Clone, Copy, PartialEq)]
enum Extra {
    Deny,
    Note,
    Allow,
}

const FORM: &str = "write `checkpoint!(\"model.safetensors\" as Model)`";
const OPTIONS: &str = "the options are `extra = deny`, `note` or `allow`, `prefix = \"file.\" => \"model.\"`, \
                       `rename = \"file\" => \"model\"`, `only = \"path\"`, \
                       `may_lack = \"path\"`, `transposed = \"path\"`, `dtype = F32`";

fn expect<T: Parse>(input: ParseStream, else_say: &str) -> syn::Result<T> {
    let span = input.span();
    input.parse().map_err(|_| syn::Error::new(span, else_say))
}

impl Parse for Input {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let path = expect(input, FORM)?;
        expect::<Token![as]>(input, FORM)?;
        let mut all = Self {
            path,
            model: expect(input, FORM)?,
            prefixes: Vec::new(),
            renamed: Vec::new(),
            only: Vec::new(),
            may_lack: Vec::new(),
            transposed: Vec::new(),
            extra: Extra::Deny,
            dtype: None,
        };
        while !input.is_empty() {
            expect::<Token![,]>(input, "a comma stands before each option")?;
            if input.is_empty() {
                break;
            }
            let option: Ident = expect(input, OPTIONS)?;
            expect::<Token![=]>(input, OPTIONS)?;
            match option.to_string().as_str() {
                "extra" => {
                    let choice: Ident = expect(input, OPTIONS)?;
                    all.extra = match choice.to_string().as_str() {
                        "deny" => Extra::Deny,
                        "note" => Extra::Note,
                        "allow" => Extra::Allow,
                        _ => return Err(syn::Error::new(choice.span(), "one of `deny`, `note`, `allow`")),
                    };
                }
                "prefix" => {
                    let file = expect(input, OPTIONS)?;
                    let model = match input.parse::<Option<Token![=>]>>()? {
                        Some(_) => expect::<LitStr>(input, OPTIONS)?.value(),
                        None => String::new(),
                    };
                    all.prefixes.push((file, model));
                }
                "rename" => {
                    let file = expect(input, OPTIONS)?;
                    expect::<Token![=>]>(input, OPTIONS)?;
                    all.renamed.push((file, expect::<LitStr>(input, OPTIONS)?.value()));
                }
                "only" => all.only.push(expect(input, OPTIONS)?),
                "transposed" => all.transposed.push(expect(input, OPTIONS)?),
                "may_lack" => all.may_lack.push(expect(input, OPTIONS)?),
                "dtype" => {
                    let dtype: Ident = expect(input, OPTIONS)?;
                    if !["F64", "F32", "F16", "BF16"].contains(&dtype.to_string().as_str()) {
                        return Err(syn::Error::new(dtype.span(), "one of `F64`, `F32`, `F16`, `BF16`"));
                    }
                    all.dtype = Some(dtype);
                }
                _ => return Err(syn::Error::new(option.span(), OPTIONS)),
            }
        }
        Ok(all)
    }
}

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let input: Input = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let code = input.expand(&mut errors);
    if errors.is_empty() { code } else { errors.into_tokens() }
}

/// FNV-1a: the one that the comparison walks with.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// A path in which these words, whole ones between dots, are replaced.
fn renamed(path: &str, file: &str, model: &str) -> String {
    let (words, file): (Vec<_>, Vec<_>) = (path.split('.').collect(), file.split('.').collect());
    let (mut all, mut rest) = (Vec::new(), &words[..]);
    while let Some((word, after)) = rest.split_first() {
        if rest.starts_with(&file) {
            all.extend((!model.is_empty()).then_some(model));
            rest = &rest[file.len()..];
        } else {
            all.push(word);
            rest = after;
        }
    }
    all.join(".")
}

impl Input {
    fn expand(&self, errors: &mut Errors) -> TokenStream {
        let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
        let file = root.join(self.path.value());
        let tensors = match header::read(&file) {
            Ok(tensors) => tensors,
            Err(why) => {
                let text = format!("`{}`, from the folder of Cargo.toml: {why}", self.path.value());
                errors.at(&self.path, text);
                return TokenStream::new();
            }
        };
        let Some(tracked) = file.to_str() else {
            errors.at(&self.path, "the folder of Cargo.toml has a name that is not Unicode");
            return TokenStream::new();
        };
        let tensors = self.named(tensors, errors);
        self.code(tracked, &tensors)
    }

    /// The tensors with their names in the model, sorted by the hash of those.
    fn named(&self, tensors: Vec<Tensor>, errors: &mut Errors) -> Vec<(u64, String, Tensor)> {
        for (file, _) in &self.prefixes {
            if !tensors.iter().any(|t| t.name.starts_with(&file.value())) {
                errors.at(file, format!("no name in the file begins with `{}`", file.value()));
            }
        }
        let mut names: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                let fits = |(file, model): &(LitStr, String)| {
                    tensor.name.strip_prefix(&file.value()).map(|rest| format!("{model}{rest}"))
                };
                self.prefixes.iter().find_map(fits).unwrap_or_else(|| tensor.name.clone())
            })
            .collect();
        for (file, model) in &self.renamed {
            let new: Vec<_> = names.iter().map(|name| renamed(name, &file.value(), model)).collect();
            if new == names {
                errors.at(file, format!("no name in the file has the part `{}`", file.value()));
            }
            names = new;
        }
        let mut seen: HashMap<String, String> = HashMap::new();
        let mut all = Vec::new();
        for (tensor, name) in tensors.into_iter().zip(names) {
            if let Some(other) = seen.insert(name.clone(), tensor.name.clone()) {
                errors.at(&self.path, format!("`{other}` and `{}` would both be `{name}`", tensor.name));
            }
            all.push((hash(&name), name, tensor));
        }
        all.sort_by_key(|a| a.0);
        all
    }

    fn code(&self, tracked: &str, tensors: &[(u64, String, Tensor)]) -> TokenStream {
        let (model, count) = (&self.model, Literal::usize_unsuffixed(tensors.len()));
        let entries = tensors.iter().map(|(hash, name, tensor)| {
            let (hash, file, dtype) = (Literal::u64_unsuffixed(*hash), &tensor.name, &tensor.dtype);
            let shape = tensor.shape.iter().map(|n| Literal::usize_unsuffixed(*n));
            quote!(__nn::Entry { hash: #hash, name: #name, file: #file, dtype: #dtype, shape: &[#(#shape),*] })
        });
        let mut order: Vec<_> = (0..tensors.len()).collect();
        order.sort_by_key(|i| &tensors[*i].2.name);
        let order = order.into_iter().map(Literal::usize_unsuffixed);
        let path = |path: &LitStr| path.value().trim_end_matches('.').to_owned();
        let paths = self.only.len() + self.may_lack.len() + self.transposed.len();
        if paths > 64 {
            let text = format!("`only`, `may_lack` and `transposed` can be 64 together, and are {paths}");
            return syn::Error::new_spanned(&self.path, text).into_compile_error();
        }
        let (only, may_lack) = (self.only.iter().map(path), self.may_lack.iter().map(path));
        let transposed = self.transposed.iter().map(path);
        let dtype = self.dtype.as_ref().map(Ident::to_string).unwrap_or_default();
        let span = ends(&self.model);
        // What is no model is reported at its name, once.
        let part = quote_spanned!(span.0=> <#model as __nn::Params>);
        let accept = |span: (Span, Span), field: &str| {
            let field = format_ident!("{field}");
            check(span, "accept", quote!(&COMPARED.#field))
        };
        let mut checks: Vec<_> =
            ["missing", "misshapen", "mistyped", "nothing"].map(|field| accept(span, field)).into();
        for (i, literal) in self.only.iter().chain(&self.may_lack).chain(&self.transposed).enumerate() {
            let (i, path) = (Literal::usize_unsuffixed(i), path(literal));
            checks.push(check(ends(literal), "accept", quote!(&COMPARED.check_path(#i, #path, &WANTED))));
        }
        checks.push(match self.extra {
            Extra::Deny => accept(ends(&self.path), "extra"),
            Extra::Note => self.notes(tensors),
            Extra::Allow => TokenStream::new(),
        });
        quote! {
            const _: () = {
                use ::nn::__private as __nn;
                // Never compiled, so that the file is not in the program, but read, so that a change of it counts.
                #[allow(dead_code, reason = "only the dependency matters")]
                fn tracked() -> &'static [u8] {
                    ::core::include_bytes!(#tracked)
                }
                const ENTRIES: &[__nn::Entry; #count] = &[#(#entries),*];
                const ORDER: &[usize; #count] = &[#(#order),*];
                const WANTED: __nn::Wanted = __nn::Wanted {
                    model: #part::LABEL,
                    only: &[#(#only),*],
                    may_lack: &[#(#may_lack),*],
                    transposed: &[#(#transposed),*],
                    dtype: #dtype,
                };
                #[allow(long_running_const_eval, reason = "a file with thousands of tensors takes its time, and ends")]
                const COMPARED: __nn::Compared<#count> = __nn::compare(#part::TREE, ENTRIES, ORDER, &WANTED);
                #(#checks)*
            };
        }
    }

    /// A warning for each of the first few tensors that are no parameter. Which these are the compiler knows only
    /// when it has evaluated the comparison: it then chooses, by the tensor's number, among as many deprecated
    /// constants as there are tensors.
    fn notes(&self, tensors: &[(u64, String, Tensor)]) -> TokenStream {
        const SHOWN: usize = 8;
        let none = Literal::usize_unsuffixed(tensors.len());
        let each = tensors.iter().enumerate().map(|(i, (_, _, tensor))| {
            let (i, note) =
                (Literal::usize_unsuffixed(i), format!("the model does not use `{}`", tensor.name));
            quote!(impl Tensor<#i> { #[deprecated(note = #note)] const UNUSED: () = (); })
        });
        let span = self.path.span();
        let uses = (0..SHOWN.min(tensors.len())).map(|k| {
            let k = Literal::usize_unsuffixed(k);
            quote_spanned!(span=> const _: () = Tensor::<{ COMPARED.nth_extra(#k, ENTRIES, ORDER) }>::UNUSED;)
        });
        quote! {
            struct Tensor<const I: usize>;
            #(#each)*
            impl Tensor<#none> { const UNUSED: () = (); }
            #(#uses)*
        }
    }
}
