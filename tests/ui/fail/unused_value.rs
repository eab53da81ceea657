use nn::*;

#[module]
struct Net {
    fc1: Linear<4, 8>,
    fc2: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        let h = self.fc1(x);
        self.fc2(x)
    }
}

fn main() {}
