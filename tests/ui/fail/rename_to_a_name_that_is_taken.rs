use nn::*;

#[module]
struct Net {
    a: Linear<4, 4>,
    #[rename = "a"]
    b: Linear<4, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.b(self.a(x))
    }
}

fn main() {}
