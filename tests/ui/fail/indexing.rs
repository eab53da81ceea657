use nn::*;

#[module]
struct Net {
    fc1: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.fc1(x[0])
    }
}

fn main() {}
