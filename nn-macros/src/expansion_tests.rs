//! What the macros write, as files to read: `tests/expand/*.expanded.rs` in the workspace, which the facade
//! crate's tests compile. `NN_BLESS=1 cargo test -p nn-macros` writes them anew.

use std::path::PathBuf;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::Item;

use crate::expand;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/expand")
}

/// The items of a file, with every macro of ours expanded.
fn expanded(source: &str) -> String {
    let file: syn::File = syn::parse_str(source).expect("the input is Rust");
    let mut tokens = TokenStream::new();
    for mut item in file.items {
        if let Item::Macro(mac) = &item
            && mac.mac.path.is_ident("sequential")
        {
            tokens.extend(expand::sequential(mac.mac.tokens.clone()));
            continue;
        }
        let attrs = match &mut item {
            Item::Struct(item) => &mut item.attrs,
            Item::Impl(item) => &mut item.attrs,
            Item::Type(item) => &mut item.attrs,
            _ => panic!("an item that no macro of ours is for"),
        };
        attrs.retain(|a| !a.path().is_ident("module"));
        tokens.extend(expand::module(TokenStream::new(), item.into_token_stream()));
    }
    let file = syn::parse2(tokens).expect("an expansion is Rust");
    prettyplease::unparse(&file)
}

fn golden(name: &str) {
    let source = std::fs::read_to_string(folder().join(format!("{name}.rs"))).expect("the input is there");
    let found = format!(
        "// What the macros make of {name}.rs. Written by `NN_BLESS=1 cargo test -p nn-macros`.\n\n{}",
        expanded(&source)
    );
    let path = folder().join(format!("{name}.expanded.rs"));
    if std::env::var_os("NN_BLESS").is_some() {
        std::fs::write(&path, found).expect("the expansion can be written");
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(found.lines()).position(|(a, b)| a != b);
    assert!(
        written == found,
        "{} is not what the macros write, from line {} on. If the change is meant: run \
         `NN_BLESS=1 cargo test -p nn-macros`, read the difference, commit it.",
        path.display(),
        differs.map_or(written.lines().count().min(found.lines().count()), |i| i) + 1,
    );
}

#[test]
fn a_chain_expands_to_what_is_written() {
    golden("chain");
}

#[test]
fn a_generic_block_expands_to_what_is_written() {
    golden("block");
}
