use nn::*;

#[module(rename_all = "Camelcase")]
struct Net {
    a: Linear<4, 4>,
    b: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
