use nn::*;

#[module]
struct Net<const A: usize> {
    fc: Linear<A, 4>,
}

#[module]
impl Net<8> {
    fn forward(&self, x: T![8]) -> T![4] {
        self.fc(x)
    }
}

fn main() {}
