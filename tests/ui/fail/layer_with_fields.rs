use nn::*;

#[layer]
pub struct Scaled<const D: usize> {
    weight: Vec<f32>,
}

fn main() {}
