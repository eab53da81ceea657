use nn::*;

#[module]
struct Net {
    a: LinearNoBias<4, 4>,
    #[tied = "a.weight"]
    #[fused("q", "k")]
    b: LinearNoBias<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
