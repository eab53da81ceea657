use nn::*;

#[module]
struct Net<A> {
    act: A,
}

#[module]
impl<A> Net<A> {
    fn forward(&self, x: T![4]) -> T![4] {
        self.act(x)
    }
}

fn main() {}
