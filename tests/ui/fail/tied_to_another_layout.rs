use nn::*;

#[module]
struct Net {
    up: Linear<8, 4>,
    #[tied = "up.weight"]
    down: TiedLinear<8, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![8]) -> T![4] {
        self.up(x) + self.down(x)
    }
}

fn main() {}
