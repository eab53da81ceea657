use nn::*;

#[module]
struct Net(Linear<4, 8>);

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        self.0(x)
    }
}

fn main() {}
