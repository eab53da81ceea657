use nn::*;

#[module]
struct Rest<const A: usize, const B: usize> {
    fc: Linear<A, { A - B }>,
}

#[module]
impl<const A: usize, const B: usize> Rest<A, B> {
    fn forward(&self, x: T![A]) -> T![{ A - B }] {
        self.fc(x)
    }
}

#[module]
type Bad = Rest<3, 5>;

fn main() {}
