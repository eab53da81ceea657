use nn::*;

#[module(shared)]
struct Net {
    fc: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
