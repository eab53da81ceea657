use nn::*;

#[module]
struct Branch<const D: usize> {
    down: Linear<D, { D / 2 }>,
    up: Linear<D, D>,
}

#[module]
impl<const D: usize> Branch<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        x + self.up(self.down(x))
    }
}

#[module]
struct Net {
    first: Linear<3, 16>,
    branch: Branch<16>,
}

#[module]
impl Net {
    fn forward(&self, x: T![3]) -> T![16] {
        self.branch(self.first(x))
    }
}

fn main() {}
