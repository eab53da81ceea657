//! Whatever the macros are given, they write Rust, and their mistakes are `compile_error!`s: a macro that
//! panics says nothing to its user.

use proc_macro2::{Delimiter, Group, Literal, TokenStream, TokenTree};
use quote::quote;

use crate::expand;

/// Numbers that are the same at every run. Marsaglia 2003, xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn count(tokens: &TokenStream) -> usize {
    tokens
        .clone()
        .into_iter()
        .map(|tree| 1 + if let TokenTree::Group(g) = tree { count(&g.stream()) } else { 0 })
        .sum()
}

fn words() -> Vec<TokenStream> {
    vec![
        quote!(self),
        quote!(..),
        quote!(<),
        quote!(>),
        quote!(::),
        quote!(#),
        quote!(!),
        quote!(=),
        quote!(,),
        quote!(;),
        quote!(mut),
        quote!(_),
        quote!(r#type),
        quote!('a),
        quote!("text"),
        quote!(1e999),
        quote!(-1.5),
        quote!(0xff_u8),
        quote!(()),
        quote!([]),
        quote!({}),
        quote!(T![..]),
        quote!(T![1, 2, 3, 4, 5, 6, 7]),
        quote!(Linear<{ 4 * D }, 8>),
        quote!(&),
        quote!(*),
        quote!(self.fc),
        quote!(dyn Fn()),
        quote!(impl Copy),
        quote!(const N: usize),
        quote!(where D: Copy),
        quote!(|x| x),
        quote!(#[tied = 3]),
        quote!(#[init()]),
        quote!(#[cfg(any())]),
        quote!(99999999999999999999999999),
        quote!(fn),
        quote!(if x { y } else { z }),
        quote!(..=),
        TokenStream::from(TokenTree::Group(Group::new(Delimiter::None, quote!(x + 1)))),
        TokenStream::from(TokenTree::Literal(Literal::f64_unsuffixed(1e300))),
    ]
}

/// The tokens with what stands at `place` left out, doubled, or replaced by a word.
fn mutated(tokens: TokenStream, place: &mut usize, random: &mut Random) -> TokenStream {
    let mut out = TokenStream::new();
    for tree in tokens {
        let here = *place == 0;
        *place = place.wrapping_sub(1);
        let tree = match tree {
            TokenTree::Group(group) if !here => {
                TokenTree::Group(Group::new(group.delimiter(), mutated(group.stream(), place, random)))
            }
            other => other,
        };
        if !here {
            out.extend([tree]);
            continue;
        }
        let words = words();
        let word = words[random.below(words.len())].clone();
        match random.below(5) {
            0 => {}
            1 => out.extend([tree.clone(), tree]),
            2 => out.extend(word),
            3 => out.extend(quote!(#word #tree)),
            _ => out.extend(quote!(#tree #word)),
        }
    }
    out
}

fn try_all(seeds: &[TokenStream], f: impl Fn(TokenStream) -> TokenStream) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in seeds {
        for _ in 0..1000 {
            let mut input = seed.clone();
            for _ in 0..=random.below(3) {
                let mut place = random.below(count(&input));
                input = mutated(input, &mut place, &mut random);
            }
            let output = f(input.clone());
            // As text, which forgets invisible groups: the compiler never sees `TokenStream`s of this kind.
            if let Err(error) = syn::parse2::<syn::File>(output.clone()) {
                panic!("{error}\nof: {input}\nto: {output}");
            }
        }
    }
}

#[test]
fn a_chain_of_anything_is_rust() {
    let seeds = [
        quote!(/** Two. */ pub Net: [784] -> [10] = fc1: Linear<784, 64>, ReLU, #[init(Zero)] Linear<64, 10>),
        quote!(Net<const D: usize>: Ids[..512] -> (T![D], T![{ 2 * D }]) = a::Embedding<{ 4 * D }, D, 1e-5>, Block<D>,),
    ];
    try_all(&seeds, expand::sequential);
}

#[test]
fn a_checkpoint_of_anything_is_rust() {
    let seeds = [
        quote!("../tests/headers/net.json" as Net, extra = note, prefix = "encoder." => "", prefix = "lastNorm", rename = "layer" => "x.y", dtype = F32),
        quote!("../tests/headers/net.json" as a::Gpt<4, { 2 * D }>, only = "x", may_lack = "", extra = allow,),
    ];
    try_all(&seeds, expand::checkpoint);
}

#[test]
fn a_module_of_anything_is_rust() {
    let seeds = [
        quote! {
            /// A block.
            pub(crate) struct Block<const D: usize, const H: usize> {
                /// Up.
                #[rename = "self.up"]
                pub up: Linear<D, { D * H }>,
                #[fused("a" = D, "b" = { 2 * H }, c = 3)]
                ab: Linear<D, { D * H }>,
                #[tied = "up.weight"]
                down: LinearNoBias<{ D - H / 2 + 1 }, D, 1.5>,
                p: Param<T![D]>,
            }
        },
        quote! {
            impl<const D: usize, const H: usize> Block<D, H> {
                /// What it computes.
                fn forward(&self, x: T![..8, D], (ids): Ids<T![D]>) -> (T![D], T![{ D / H }]) {
                    let ((a, _), b) = (self.up(x, ids), self.p * 0.5);
                    let (c, d) = self.down(a - 1.0, 2 / b);
                    let e = -MaxPool2D::<2>(c + d) * 1e-3;
                    (e, ReLU(x))
                }
            }
        },
        quote!(
            pub type Tiny = Gpt<64, 384, 6>;
        ),
        quote!(
            enum Net {
                A(u8),
                B { x: f32 },
            }
        ),
    ];
    try_all(&seeds, |item| expand::module(TokenStream::new(), item));
    try_all(&seeds, |item| expand::module(quote!(shared = 1), item));
    try_all(&seeds, |item| expand::module(quote!(rename_all = "kebab-case"), item));
}

#[test]
fn a_layer_of_anything_is_rust() {
    let seeds = [quote!(
        pub struct Linear<const IN: usize, const OUT: usize = 1, ACT: Activation = Identity>;
    )];
    try_all(&seeds, |item| expand::layer(TokenStream::new(), item));
}
