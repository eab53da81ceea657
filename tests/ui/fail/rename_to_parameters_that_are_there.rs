use nn::{Linear, T, module};

#[module]
struct Inner {
    dense: Linear<4, 4>,
}

#[module]
impl Inner {
    fn forward(&self, x: T![4]) -> T![4] {
        self.dense(x)
    }
}

#[module]
struct Net {
    #[rename = ""]
    a: Inner,
    #[rename = "dense"]
    b: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
