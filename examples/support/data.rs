//! Grey pictures with labels.

/// Pictures with labels, pixels in [0, 1], one sample after the other.
pub(crate) struct Pictures {
    pub(crate) pixels: Vec<f32>,
    pub(crate) labels: Vec<u32>,
    /// Height and width.
    pub(crate) size: [usize; 2],
}

impl Pictures {
    pub(crate) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Values of one sample.
    pub(crate) fn each(&self) -> usize {
        self.size[0] * self.size[1]
    }
}
