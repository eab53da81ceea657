use nn::*;

#[module]
struct Net {
    fc: Linear<4, 8>,
}

#[module]
impl Net {}

fn main() {}
