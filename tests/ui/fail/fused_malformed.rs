use nn::*;

#[module]
struct Net {
    #[fused("q" + 1)]
    a: Linear<4, 4>,
    #[fused("q")]
    b: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
