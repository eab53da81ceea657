use nn::*;

#[module]
struct Net {
    fc: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&mut self, x: T![4]) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
