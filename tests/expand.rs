//! The macros' expansions as they are written in `tests/expand` are all there is to it: they compile by
//! themselves. That they are what the macros write is tested in `nn-macros`.

#![deny(warnings)]

use nn::{LayerNorm, Linear, LinearGELU, LinearReLU, Model, T};

include!("expand/chain.expanded.rs");
include!("expand/block.expanded.rs");

#[test]
fn written_expansions_compile_and_run() {
    let mut net = Model::<Net>::init(1, 1).expect("a model of this size fits");
    assert_eq!(net.forward(&[0.5; 784]).expect("one sample fits").len(), 10);
    let mut block = Model::<Tiny>::init(1, 1).expect("a model of this size fits");
    assert_eq!(block.forward(&[0.5; 8]).expect("one sample fits").len(), 8);
}
