use nn::{Linear, Repeat, T, module};

#[module]
struct Net {
    #[fused("q", "k")]
    a: Repeat<Linear<4, 4>, 2>,
    b: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
