use nn::*;

#[module]
type Tiny = Linear<4, 8>;

fn main() {}
