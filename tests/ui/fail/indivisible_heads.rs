use nn::*;

#[module]
struct Attention<const S: usize, const D: usize, const H: usize> {
    q: Linear<D, D>,
    rope: RoPE<S, H, { D / H }>,
}

#[module]
impl<const S: usize, const D: usize, const H: usize> Attention<S, D, H> {
    fn forward(&self, x: T![S, D]) -> T![S, D] {
        self.rope(self.q(x))
    }
}

#[module]
type Wrong = Attention<64, 384, 7>;

fn main() {}
