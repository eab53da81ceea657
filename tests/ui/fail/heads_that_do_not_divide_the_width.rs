use nn::*;

#[module]
struct Net {
    attend: CrossAttention<64, 6, 10, 50>,
}
#[module]
impl Net {
    fn forward(&self, q: T![10, 64], memory: T![50, 64]) -> T![10, 64] {
        self.attend(q, memory, memory)
    }
}

fn main() {}
