use nn::*;

#[module]
struct Net<const D: usize>
where
    Linear<D, D>: Copy,
{
    fc: Linear<D, D>,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.fc(x)
    }
}

fn main() {}
