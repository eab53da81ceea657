use nn::*;

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        ReLU(x)
    }
}

fn main() {}
