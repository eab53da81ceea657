use nn::*;

#[module]
struct Net {
    a: Linear<4, 8>,
    b: Linear<4, 8>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        let (a, b, c) = (self.a(x), self.b(x));
        a + b + c
    }
}

fn main() {}
