use nn::*;

#[module]
struct Net {
    a: Conv2D<3, 8, 3>,
    b: Conv2D<3, 8, 5>,
}

#[module]
impl Net {
    fn forward(&self, x: T![3, 32, 32]) -> T![16, 30, 30] {
        Concat::<0>(self.a(x), self.b(x))
    }
}

fn main() {}
