use nn::*;

#[module]
struct Net {
    #[rename = "blocks.2"]
    first: Linear<4, 4>,
    blocks: Repeat<Linear<4, 4>, 3>,
}

#[module]
impl Net {
    fn forward(&self, x: T![4]) -> T![4] {
        self.blocks(self.first(x))
    }
}

fn main() {}
