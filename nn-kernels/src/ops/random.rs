use crate::{Memory, View, ViewMut};

/// Which random numbers: the same four always give the same ones, on every device and for any number of
/// threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stream {
    /// The model's seed.
    pub seed: u64,
    /// The layer's place in the model, so that equal layers differ.
    pub place: u32,
    /// Counts steps, so that each draws anew.
    pub step: u64,
    /// A rank or a replica.
    pub rank: u32,
}

/// Random masks.
pub trait Random: Memory {
    /// y = x / (1 − rate) where the element's draw is ≥ rate, else 0. Given the gradient for x, this is the vjp.
    fn dropout(&self, stream: Stream, rate: f64, x: View<'_, Self>, y: ViewMut<'_, Self>);
}
