use nn::*;

#[module]
struct Part {
    fc: Linear<4, 8>,
}

sequential! {
    Net: [4] -> [8] = Part
}

fn main() {}
