use nn::{Linear, T, module};

#[module]
struct Free<const D: usize> {
    fc: Linear<D, D>,
}

#[module]
impl<const D: usize> Free<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        Linear::<D, D>(self.fc(x))
    }
}

#[module]
type Four = Free<4>;

fn main() {}
