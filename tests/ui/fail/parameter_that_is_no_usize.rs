use nn::*;

#[module]
struct Net<const BIAS: bool> {
    fc: Linear<4, 8>,
}

#[module]
impl<const BIAS: bool> Net<BIAS> {
    fn forward(&self, x: T![4]) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
