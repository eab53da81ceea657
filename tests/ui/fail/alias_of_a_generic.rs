use nn::*;

#[module]
struct Net<const D: usize> {
    fc: Linear<D, D>,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.fc(x)
    }
}

#[module]
type Two<const D: usize> = Net<D>;

fn main() {}
