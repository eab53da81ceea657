use nn::*;

#[module]
struct Net {
    a: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        let (p, q) = self.a(x);
        p + q
    }
}

fn main() {}
