//! Tensors of which several threads write rows.

use std::marker::PhantomData;

use crate::cpu::Real;
use crate::cpu::size::reach;
use crate::ops::Strides;

/// Rows of `width` values that several threads write, each thread its own.
pub(super) struct Sheet<'a, E> {
    data: *mut E,
    at: Strides,
    batch: usize,
    tokens: usize,
    heads: usize,
    width: usize,
    life: PhantomData<&'a mut [E]>,
}

// SAFETY: a sheet stands for a `&mut [E]`; threads write through it only rows that `row`'s caller promises to be theirs.
unsafe impl<E: Send> Sync for Sheet<'_, E> {}

/// How large a tensor `[batch, tokens, heads, width]` is, and where its rows lie.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) at: Strides,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
}

impl Extent {
    fn is_empty(&self) -> bool {
        self.batch == 0 || self.tokens == 0 || self.heads == 0 || self.width == 0
    }

    /// How far a token reaches, not empty.
    fn token(&self, name: &str) -> usize {
        reach(name, self.heads - 1, self.at.head, self.width)
    }

    /// How far a sample reaches, not empty.
    fn sample(&self, name: &str) -> usize {
        reach(name, self.tokens - 1, self.at.token, self.token(name))
    }

    /// How many values there must be.
    pub(crate) fn len(&self, name: &str) -> usize {
        if self.is_empty() { 0 } else { reach(name, self.batch - 1, self.at.batch, self.sample(name)) }
    }

    /// Panics if they are more than `len` values or if rows overlap.
    #[track_caller]
    pub(crate) fn check_written(&self, name: &str, len: usize) {
        assert!(self.len(name) <= len, "{name}: {len} values where {} are written", self.len(name));
        assert!(self.is_empty() || self.is_injective(name), "{name}: rows that are written overlap");
    }

    /// Whether no two rows share a value: along each axis, from the narrowest to the widest, a step is at least as long
    /// as all that came before.
    fn is_injective(&self, name: &str) -> bool {
        let mut axes =
            [(self.at.batch, self.batch), (self.at.token, self.tokens), (self.at.head, self.heads)];
        axes.sort_unstable();
        let mut end = self.width;
        axes.iter().filter(|(_, n)| *n > 1).all(|&(step, n)| {
            let apart = step >= end;
            end = reach(name, n - 1, step, end);
            apart
        })
    }
}

/// Whether the rows of three tensors in one view share no value, where no two rows of one do. They lie side by side in
/// each sample, or in each token.
pub(crate) fn are_apart(name: &str, all: [(usize, Extent); 3]) -> bool {
    let (mut parts, mut n) = (all, 0);
    for part in all.into_iter().filter(|(_, e)| !e.is_empty()) {
        parts[n] = part;
        n += 1;
    }
    let parts = &parts[..n];
    let Some((_, first)) = parts.first() else { return true };
    // Whether stretches are apart, and from where to where they reach.
    let stretch = |len: &dyn Fn(&Extent) -> usize| {
        let mut ends = [(0, 0); 3];
        for (end, (start, e)) in ends.iter_mut().zip(parts) {
            *end = (*start, reach(name, 1, *start, len(e)));
        }
        let ends = &mut ends[..n];
        ends.sort_unstable();
        (ends.windows(2).all(|w| w[0].1 <= w[1].0), ends[n - 1].1 - ends[0].0)
    };
    let equal = |step: &dyn Fn(&Extent) -> usize| parts.iter().all(|(_, e)| step(e) == step(first));
    let batch = |reach: usize| first.batch == 1 || equal(&|e| e.at.batch) && first.at.batch >= reach;
    let (apart, width) = stretch(&|e| e.sample(name));
    if apart && batch(width) {
        return true;
    }
    let (apart, width) = stretch(&|e| e.token(name));
    let tokens = parts.iter().map(|(_, e)| e.tokens).max().unwrap_or(1);
    apart
        && equal(&|e| e.at.token)
        && first.at.token >= width
        && batch(reach(name, tokens - 1, first.at.token, width))
}

impl<'a, E: Real> Sheet<'a, E> {
    /// Panics if there are fewer values or if rows overlap.
    #[track_caller]
    pub(super) fn new(name: &str, data: &'a mut [E], extent: Extent) -> Self {
        let len = data.len();
        Self::part(name, data.as_mut_ptr(), len, extent)
    }

    /// As `new`, of a part of a view.
    #[track_caller]
    fn part(name: &str, data: *mut E, len: usize, extent: Extent) -> Self {
        extent.check_written(name, len);
        let Extent { at, batch, tokens, heads, width } = extent;
        Self { data, at, batch, tokens, heads, width, life: PhantomData }
    }

    /// Three in one view. Panics if there are fewer values or if rows overlap.
    #[track_caller]
    pub(super) fn packed(name: &str, data: &'a mut [E], parts: [(usize, Extent); 3]) -> [Self; 3] {
        let len = data.len();
        assert!(are_apart(name, parts), "{name}: rows that are written overlap");
        let data = data.as_mut_ptr();
        parts.map(|(start, extent)| {
            assert!(start <= len, "{name}: {len} values, and a part that starts at {start}");
            Self::part(name, data.wrapping_add(start), len - start, extent)
        })
    }

    /// One row.
    ///
    /// # Safety
    /// The row is this thread's alone, and no other slice of it is in use.
    #[allow(clippy::mut_from_ref, reason = "that it is exclusive is the caller's promise")]
    pub(super) unsafe fn row(&self, batch: usize, token: usize, head: usize) -> &mut [E] {
        assert!(batch < self.batch && token < self.tokens && head < self.heads, "a row of the tensor");
        let start = batch * self.at.batch + token * self.at.token + head * self.at.head;
        // SAFETY: the row is one of the tensor's, which lie within the view that it was made from, as `part` checked;
        // no other row has one of its values, as `new` and `packed` checked; and the caller has it alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.wrapping_add(start), self.width) }
    }
}
