use nn::*;

#[module]
struct Net {
    attn: SelfAttention<32, 64, 8, 3, 0, Yes, 1e4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![..32, 64]) -> T![..32, 64] {
        x + self.attn(x)
    }
}

fn main() {}
