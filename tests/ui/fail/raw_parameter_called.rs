use nn::*;

#[module]
struct Net {
    fc: Linear<8, 8>,
    scale: Param<T![8]>,
}

#[module]
impl Net {
    fn forward(&self, x: T![8]) -> T![8] {
        self.scale(self.fc(x))
    }
}

fn main() {}
