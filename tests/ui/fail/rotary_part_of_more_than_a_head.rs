use nn::*;

#[module]
struct Net {}

#[module]
impl Net {
    fn forward(&self, x: T![8, 32]) -> T![8, 32] {
        RoPE::<8, 4, 8, 1e4, No, 16>(x)
    }
}

fn main() {}
