use nn::*;

#[module]
enum Net {
    Linear,
}

fn main() {}
