use nn::*;

#[module]
struct Net {
    blocks: RepeatConditional<Add, 4>,
}

#[module]
impl Net {
    fn forward(&self, x: T![16], c: T![8]) -> T![16] {
        let y = self.blocks(x);
        self.blocks(y, c)
    }
}

fn main() {}
