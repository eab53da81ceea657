use nn::*;

#[module]
struct Memory {
    cell: LSTMCell<4, 3>,
}
#[module]
impl Memory {
    fn forward(&self, x: T![4], h: T![3]) -> (T![3], T![3]) {
        self.cell(x, h)
    }
}

fn main() {}
