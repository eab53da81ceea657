use nn::*;

#[module]
struct Net {}

#[module]
impl Net {
    fn forward(&self, both: (T![4], T![4])) -> T![4] {
        Add(both)
    }
}

fn main() {}
