use nn::*;

struct Thing;

#[module]
struct Net {
    fc: Linear<4, 8>,
    thing: Thing,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        self.thing(self.fc(x))
    }
}

fn main() {}
