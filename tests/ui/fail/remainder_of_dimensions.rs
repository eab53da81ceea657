use nn::*;

#[module]
struct Net<const D: usize> {
    fc: Linear<D, { D % 3 }>,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.fc(x)
    }
}

fn main() {}
