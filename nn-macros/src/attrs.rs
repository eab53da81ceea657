use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Token};

use crate::errors::Errors;
use crate::generics::Consts;

/// The macros' code does not follow a `cfg` that the compiler has not yet decided.
pub(crate) fn no_cfg(attrs: &[Attribute], errors: &mut Errors) {
    for attr in attrs.iter().filter(|a| is_cfg(a)) {
        errors.at(attr, "`cfg` stands above `#[module]`, and is for a whole module");
    }
}

pub(crate) fn is_cfg(attr: &Attribute) -> bool {
    attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr")
}

/// How a struct's fields are called in a checkpoint.
#[derive(Clone, Copy)]
pub(crate) enum Case {
    Snake,
    Camel,
    Pascal,
    ScreamingSnake,
    Kebab,
    ScreamingKebab,
}

impl Case {
    const ALL: [(&str, Self); 6] = [
        ("snake_case", Self::Snake),
        ("camelCase", Self::Camel),
        ("PascalCase", Self::Pascal),
        ("SCREAMING_SNAKE_CASE", Self::ScreamingSnake),
        ("kebab-case", Self::Kebab),
        ("SCREAMING-KEBAB-CASE", Self::ScreamingKebab),
    ];

    /// A field's name, which is in snake case, in this one.
    pub(crate) fn apply(self, name: &str) -> String {
        let capital = |word: &str| {
            let mut letters = word.chars();
            letters.next().map(|c| c.to_uppercase().chain(letters).collect::<String>()).unwrap_or_default()
        };
        match self {
            Self::Snake => name.to_owned(),
            Self::Pascal => name.split('_').map(capital).collect(),
            Self::Camel => {
                let mut words = name.split('_').filter(|word| !word.is_empty());
                let first = words.next().unwrap_or_default().to_owned();
                words.fold(first, |all, word| all + &capital(word))
            }
            Self::ScreamingSnake => name.to_uppercase(),
            Self::Kebab => name.replace('_', "-"),
            Self::ScreamingKebab => name.to_uppercase().replace('_', "-"),
        }
    }
}

/// The arguments of `#[module(..)]` on a struct.
#[derive(Default)]
pub(crate) struct ModuleArgs {
    pub(crate) rename_all: Option<Case>,
}

impl ModuleArgs {
    pub(crate) fn new(args: TokenStream, errors: &mut Errors) -> Self {
        let mut all = Self::default();
        if args.is_empty() {
            return all;
        }
        const FORM: &str = "a struct takes one argument: `#[module(rename_all = \"camelCase\")]`";
        let Ok(list) =
            syn::parse::Parser::parse2(Punctuated::<Meta, Token![,]>::parse_terminated, args.clone())
        else {
            errors.at(args, FORM);
            return all;
        };
        for arg in list {
            if !arg.path().is_ident("rename_all") {
                errors.at(arg.path(), FORM);
                continue;
            }
            let Some(text) = string(&arg) else {
                errors.at(arg, FORM);
                continue;
            };
            let named = |(name, case): (&str, Case)| (text.value() == name).then_some(case);
            match Case::ALL.into_iter().find_map(named) {
                Some(_) if all.rename_all.is_some() => errors.at(arg, "there is one `rename_all`"),
                Some(case) => all.rename_all = Some(case),
                None => {
                    let known = Case::ALL.map(|(name, _)| format!("`{name}`")).join(", ");
                    errors.at(text, format!("this is none of {known}"));
                }
            }
        }
        all
    }
}

/// The string of `name = "string"`.
fn string(meta: &Meta) -> Option<&LitStr> {
    match meta {
        Meta::NameValue(syn::MetaNameValue {
            value: Expr::Lit(ExprLit { lit: Lit::Str(text), .. }), ..
        }) => Some(text),
        _ => None,
    }
}

/// The attributes of a field that the macros understand, and those that pass through.
pub(crate) struct FieldAttrs {
    pub(crate) init: Option<syn::Type>,
    pub(crate) tied: Option<LitStr>,
    pub(crate) rename: Option<LitStr>,
    pub(crate) fused: Option<Fused>,
    pub(crate) others: Vec<Attribute>,
}

/// `"query", "key"`, or `"q_proj" = H * D, "k_proj" = KV * D`.
pub(crate) struct Fused {
    pub(crate) tokens: TokenStream,
    pieces: Vec<Piece>,
}

struct Piece {
    name: LitStr,
    rows: Option<Expr>,
}

impl Parse for Piece {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let name = if input.peek(Ident) {
            let name: Ident = input.parse()?;
            LitStr::new(name.to_string().trim_start_matches("r#"), name.span())
        } else {
            input.parse()?
        };
        let rows = if input.parse::<Option<Token![=]>>()?.is_some() { Some(input.parse()?) } else { None };
        Ok(Self { name, rows })
    }
}

const NAME: &str = "a name in a checkpoint is words with dots between: `self.query`";

/// Whether this can be a part of a parameter's path.
fn check_name(name: &LitStr, errors: &mut Errors) {
    let text = name.value();
    let word = |word: &str| !word.is_empty() && !word.contains(|c: char| c == '/' || c.is_whitespace());
    if !text.split('.').all(word) {
        errors.at(name, NAME);
    }
}

impl FieldAttrs {
    pub(crate) fn new(attrs: Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut all = Self { init: None, tied: None, rename: None, fused: None, others: Vec::new() };
        no_cfg(&attrs, errors);
        for attr in attrs {
            if attr.path().is_ident("init") {
                match attr.parse_args() {
                    Ok(ty) if all.init.is_none() => all.init = Some(ty),
                    Ok(_) => errors.at(attr, "a field has one initialiser"),
                    Err(_) => errors.at(attr, "write `#[init(Zero)]`, with the name of an initialiser"),
                }
            } else if attr.path().is_ident("tied") {
                match string(&attr.meta) {
                    Some(path) => all.tied = Some(path.clone()),
                    None => errors.at(attr, "write `#[tied = \"tok.weight\"]`, with the path of a parameter"),
                }
            } else if attr.path().is_ident("rename") {
                match string(&attr.meta) {
                    Some(_) if all.rename.is_some() => errors.at(attr, "a field has one name"),
                    Some(name) => {
                        if !name.value().is_empty() {
                            check_name(name, errors);
                        }
                        all.rename = Some(name.clone());
                    }
                    None => {
                        errors.at(attr, "write `#[rename = \"self.query\"]`, with the name in a checkpoint")
                    }
                }
            } else if attr.path().is_ident("fused") {
                all.fuse(&attr, errors);
            } else if attr.path().is_ident("module") {
                errors.at(attr, "a field's name in a checkpoint is given by `#[rename = \"self.query\"]`");
            } else if !is_cfg(&attr) {
                all.others.push(attr);
            }
        }
        if let (Some(fused), Some(_)) = (&all.fused, &all.tied) {
            errors.at(&fused.tokens, "a tied field has no parameters of its own that could have names");
            all.fused = None;
        }
        if let (Some(_), Some(name)) = (&all.fused, &all.rename) {
            errors.at(name, "the names in `#[fused(..)]` are in the place of the field's");
        }
        all
    }

    fn fuse(&mut self, attr: &Attribute, errors: &mut Errors) {
        const FORM: &str = "write `#[fused(\"query\", \"key\", \"value\")]` for equal parts, \
             `#[fused(\"query\" = 64, \"key\" = 32)]` for so many rows each";
        let Ok(pieces) = attr.parse_args_with(Punctuated::<Piece, Token![,]>::parse_terminated) else {
            return errors.at(attr, FORM);
        };
        if self.fused.is_some() {
            return errors.at(attr, "a field is split once");
        }
        if pieces.len() < 2 {
            return errors.at(attr, "several layers of a checkpoint are fused: give two names or more");
        }
        let sized = pieces.iter().filter(|p| p.rows.is_some()).count();
        for (i, piece) in pieces.iter().enumerate() {
            check_name(&piece.name, errors);
            if pieces.iter().take(i).any(|p| p.name.value() == piece.name.value()) {
                errors.at(&piece.name, format!("there are two parts named `{}`", piece.name.value()));
            }
            if sized > 0 && piece.rows.is_none() {
                errors.at(&piece.name, "the other parts have a number of rows: this needs one, too");
            }
        }
        let tokens = match &attr.meta {
            Meta::List(list) => list.tokens.clone(),
            other => other.to_token_stream(),
        };
        self.fused = Some(Fused { tokens, pieces: pieces.into_iter().collect() });
    }

    /// Method calls on a `Child`.
    pub(crate) fn child(&self, consts: &Consts, errors: &mut Errors) -> TokenStream {
        let init = self.init.as_ref().map(|ty| quote!(.init(<#ty as __nn::Initialiser>::INIT)));
        let tied = self.tied.as_ref().map(|path| quote!(.tied(#path)));
        let fused = self.fused.as_ref().map(|fused| {
            let pieces = fused.pieces.iter().map(|Piece { name, rows }| match rows {
                None => quote!(__nn::Piece::equal(#name)),
                Some(rows) => {
                    let rows = consts.dim(rows, errors);
                    quote!(__nn::Piece::of(#name, <#rows as __nn::Dim>::EXTENT))
                }
            });
            quote!(.fused(&[#(#pieces),*]))
        });
        quote!(#init #tied #fused)
    }
}
