use nn::*;

#[module]
struct Net {
    #[cfg(any())]
    first: Linear<4, 4>,
    fc: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
