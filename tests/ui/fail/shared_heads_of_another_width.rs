use nn::*;

#[module]
struct Net {
    attend: GQAAttention<16, 8, 2, 8>,
}
#[module]
impl Net {
    fn forward(&self, x: T![16, 64]) -> T![16, 64] {
        self.attend(x, x, x)
    }
}

fn main() {}
