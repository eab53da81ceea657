use nn::{Linear, T, module};

type OutOfIn<const OUT: usize, const IN: usize> = Linear<IN, OUT>;
type Square<const D: usize> = Linear<D, D>;

#[module]
struct Wide<const D: usize> {
    up: OutOfIn<{ 2 * D }, D>,
    turn: Square<{ 2 * D }>,
}

#[module]
impl<const D: usize> Wide<D> {
    fn forward(&self, x: T![D]) -> T![2 * D] {
        self.turn(self.up(x))
    }
}

#[module]
type Eight = Wide<8>;

fn main() {}
