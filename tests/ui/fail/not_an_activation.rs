use nn::*;

struct Tanhh;

#[module]
struct Net {
    fc: LinearAct<4, 8, Tanhh>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![8] {
        self.fc(x)
    }
}

fn main() {}
