use nn::*;

#[module]
struct Pair {
    fc: Linear<4, 8>,
}

#[module]
impl Pair {
    fn forward(&self, x: T![4], y: T![8]) -> T![8] {
        self.fc(x) + y
    }
}

sequential! {
    Net: [4] -> [8] = Pair
}

fn main() {}
