use nn::*;

#[module]
struct Net<const D: usize> {
    act: ReLU,
}

#[module]
impl<const D: usize> Net<D> {
    fn forward(&self, x: T![{ D / 3 }]) -> T![{ D / 3 }] {
        self.act(x)
    }
}

#[module]
type Wrong = Net<10>;

fn main() {}
