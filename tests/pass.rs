//! Models that compile, without a warning: names that could meet those of the generated code, every place a
//! module can stand in, and all of the language.
#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all,
    clippy::pedantic
)]

#[path = "pass/language.rs"]
mod language;
#[path = "pass/names.rs"]
mod names;
#[path = "pass/places.rs"]
pub mod places;

use nn::{Declared, Host, Model, Module};

/// The output of a fresh model.
fn output<M>(x: <M::In as Host>::Slices<'_, f32>) -> Vec<f32>
where
    M: Declared<In: Host, Out: Host> + Module<nn::Cpu<f32>, <M as Declared>::In>,
    for<'a> <M::Out as Host>::Slices<'a, f32>: AsRef<[f32]>,
{
    let mut model = Model::<M>::init(1, 1).expect("a model of this size fits");
    model.forward(x).expect("one sample fits").as_ref().to_vec()
}
