use crate::{Memory, View, ViewMut};

/// A block of columns within rows: where it starts, and how far rows are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First column.
    pub offset: usize,
    /// Distance between rows, in elements.
    pub stride: usize,
}

/// A reordering of axes: axis k of the result is axis `axes[k]` of the input, as PyTorch's `permute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermuteSpec {
    /// How many axes there are, 6 at most.
    pub rank: usize,
    /// The input's axes; those past the rank are 1.
    pub dims: [usize; 6],
    /// Which input axis each axis of the result is.
    pub axes: [usize; 6],
}

impl PermuteSpec {
    /// The reordering that undoes this one, which is also its gradient.
    pub const fn inverse(&self) -> Self {
        let mut dims = [1; 6];
        let mut axes = [0, 1, 2, 3, 4, 5];
        let mut k = 0;
        while k < self.rank {
            dims[k] = self.dims[self.axes[k]];
            axes[self.axes[k]] = k;
            k += 1;
        }
        Self { rank: self.rank, dims, axes }
    }
}

/// Rotary embedding of `rows` tokens of `heads` × `dim` values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    /// Tokens, over the whole batch.
    pub rows: usize,
    /// Tokens a sequence has: row r stands at position `offset + r % seq`.
    pub seq: usize,
    /// Position of the first token.
    pub offset: usize,
    /// Heads in a token.
    pub heads: usize,
    /// Values in a head.
    pub dim: usize,
    /// How many of a head's values are turned, its first ones; even. The others stay.
    pub rotary: usize,
    /// Base of the angles: position·theta^(−2j/rotary), in double precision.
    pub theta: f64,
    /// Pairs are (2j, 2j + 1) and not (j, j + rotary/2).
    pub interleaved: bool,
}

/// Sines and cosines of the positions of `rows` tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SinusoidSpec {
    /// Tokens.
    pub rows: usize,
    /// Position of the first.
    pub first: usize,
    /// Values of a token; even.
    pub dim: usize,
    /// Base of the angles: position·theta^(−2j/dim), in double precision.
    pub theta: f64,
}

/// Moving values about.
pub trait Layout: Memory {
    /// For each row, y's block = x's block of the same `cols`.
    fn copy_block(
        &self,
        rows: usize,
        cols: usize,
        x: View<'_, Self>,
        from: Block,
        y: ViewMut<'_, Self>,
        to: Block,
    );
    /// [`copy_block`](Self::copy_block) for blocks whose offsets change from call to call, as a token's place in a sequence
    /// does: a device that replays what it did before replays it wherever they are.
    fn copy_moving_block(
        &self,
        rows: usize,
        cols: usize,
        x: View<'_, Self>,
        from: Block,
        y: ViewMut<'_, Self>,
        to: Block,
    ) {
        self.copy_block(rows, cols, x, from, y, to);
    }
    /// Each of `rows` rows of y = x.
    fn broadcast_rows(&self, rows: usize, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// y += Σ rows of x; the order of the sum does not depend on threads.
    fn sum_rows(&self, rows: usize, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// Reorders the axes of each of `rows` samples.
    fn permute(&self, rows: usize, s: &PermuteSpec, x: View<'_, Self>, y: ViewMut<'_, Self>);
    /// y[t, 2j] = the sine and y[t, 2j + 1] = the cosine of the angle j of position `first` + t.
    fn sinusoids(&self, s: &SinusoidSpec, y: ViewMut<'_, Self>);
    /// Turns each pair by its angle, or back by it: the inverse is the gradient.
    fn rope(&self, s: &RopeSpec, inverse: bool, x: View<'_, Self>, y: ViewMut<'_, Self>);
}
