use nn::*;

#[module]
struct Net {
    fc: Linear<8, 8>,
    scale: Param<T![4]>,
}

#[module]
impl Net {
    fn forward(&self, x: T![8]) -> T![8] {
        self.fc(x) * self.scale
    }
}

fn main() {}
