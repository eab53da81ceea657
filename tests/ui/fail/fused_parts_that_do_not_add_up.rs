use nn::{Linear, T, module};

#[module]
struct Net {
    #[fused("q_proj" = 8, "k_proj" = 2, "v_proj" = 3)]
    a: Linear<4, 12>,
    b: Linear<12, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
