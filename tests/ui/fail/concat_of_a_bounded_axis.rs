use nn::*;

#[module]
struct Net {
    fc: Linear<8, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![..16, 8]) -> T![32, 8] {
        Concat::<0>(x, self.fc(x))
    }
}

fn main() {}
