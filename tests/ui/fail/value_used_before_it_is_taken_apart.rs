use nn::*;

#[module]
struct Two {
    a: Linear<4, 4>,
}

#[module]
impl Two {
    fn forward(&self, x: T![4]) -> (T![4], T![4]) {
        (self.a(x), x)
    }
}

#[module]
struct Net {
    two: Two,
    join: Two,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        let pair = self.two(x);
        let z = Add(pair);
        let (a, b) = pair;
        a + b + z
    }
}

fn main() {}
