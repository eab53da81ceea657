use nn::{Linear, LinearNoBias, T, module};

#[module]
struct Net {
    #[fused("q", "k")]
    a: Linear<4, 4>,
    #[tied = "q.weight"]
    b: LinearNoBias<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
