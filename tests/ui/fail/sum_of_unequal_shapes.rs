use nn::*;

#[module]
struct Net {
    fc1: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        x + self.fc1(x)
    }
}

fn main() {}
