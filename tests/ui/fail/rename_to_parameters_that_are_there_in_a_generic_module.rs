use nn::{Linear, T, module};

#[module]
struct Net<const D: usize> {
    #[rename = ""]
    a: Linear<D, D>,
    #[rename = ""]
    b: Linear<D, D>,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.b(self.a(x))
    }
}

#[module]
type Four = Net<4>;

fn main() {}
