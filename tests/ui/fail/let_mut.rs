use nn::*;

#[module]
struct Net {
    fc1: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        let mut h = self.fc1(x);
        h
    }
}

fn main() {}
