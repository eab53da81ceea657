use nn::*;

#[module]
struct Two {
    a: Linear<4, 8>,
    b: Linear<4, 8>,
}

#[module]
impl Two {
    fn forward(&self, x: T![4]) -> (T![8], T![8]) {
        (self.a(x), self.b(x))
    }
}

#[module]
struct Net {
    two: Two,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        let (a, b, c) = self.two(x);
        a + b + c
    }
}

fn main() {}
