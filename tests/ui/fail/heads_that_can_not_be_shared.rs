use nn::*;

#[module]
struct Net {
    q: Linear<64, 64>,
    k: Linear<64, 24>,
    v: Linear<64, 24>,
    attend: GQAAttention<16, 8, 3, 8>,
}
#[module]
impl Net {
    fn forward(&self, x: T![16, 64]) -> T![16, 64] {
        self.attend(self.q(x), self.k(x), self.v(x))
    }
}

fn main() {}
