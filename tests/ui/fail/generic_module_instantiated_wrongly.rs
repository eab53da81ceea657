use nn::*;

#[module]
struct Head<const D: usize, const H: usize> {
    q: Linear<D, { D / H }>,
}

#[module]
impl<const D: usize, const H: usize> Head<D, H> {
    fn forward(&self, x: T![D]) -> T![{ D / H }] {
        self.q(x)
    }
}

#[module]
type Good = Head<64, 8>;

#[module]
type Bad = Head<64, 6>;

fn main() {}
