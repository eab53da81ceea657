use nn::*;

#[module]
struct Net {
    fc1: Linear<4, 4>,
    deep: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        let h = if true { self.fc1(x) } else { self.deep(x) };
        h
    }
}

fn main() {}
