/// A residual block.
#[module]
pub struct Block<const D: usize> {
    norm: LayerNorm<D>,
    up: LinearGELU<D, { 4 * D }>,
    down: Linear<{ 4 * D }, D>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        x + self.down(self.up(self.norm(x)))
    }
}

/// A block that is checked where it stands.
#[module]
pub type Tiny = Block<8>;
