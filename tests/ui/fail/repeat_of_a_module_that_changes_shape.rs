use nn::*;

#[module]
struct Block<const D: usize> {
    fc: Linear<D, { D / 2 }>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![{ D / 2 }] {
        self.fc(x)
    }
}

sequential! {
    Net: [8] -> [8] = Repeat<Block<8>, 4>
}

fn main() {}
