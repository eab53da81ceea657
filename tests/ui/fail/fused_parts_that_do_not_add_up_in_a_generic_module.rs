use nn::{Linear, T, module};

#[module]
struct Net<const D: usize, const KV: usize> {
    #[fused("q_proj" = D, "k_proj" = D / KV, "v_proj" = D / KV)]
    a: Linear<D, { D + D / KV }>,
    b: Linear<{ D + D / KV }, D>,
}

#[module]
impl<const D: usize, const KV: usize> Net<D, KV> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.b(self.a(x))
    }
}

#[module]
type Eight = Net<8, 4>;

fn main() {}
