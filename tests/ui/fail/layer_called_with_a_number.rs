use nn::*;

#[module]
struct Net {
    fc: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        Scale::<0.5, 3>(self.fc(x))
    }
}

fn main() {}
