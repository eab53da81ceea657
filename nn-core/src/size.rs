/// An amount of memory that grows with the batch: so much a sample, and so much in any case.
///
/// Counted in elements, whose size is the device's, in [wide](nn_kernels::Memory::Wide) values, of at least four bytes, and in
/// bytes, for what has a size of its own. Every buffer is rounded up to [`Size::ALIGN`], which the fixed part allows for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Size {
    item_elements: usize,
    item_wide: usize,
    item_bytes: usize,
    fixed_elements: usize,
    fixed_wide: usize,
    fixed_bytes: usize,
}

impl Size {
    /// Every buffer starts at a multiple of this many bytes.
    pub const ALIGN: usize = 64;
    /// Nothing.
    pub const ZERO: Self = Self {
        item_elements: 0,
        item_wide: 0,
        item_bytes: 0,
        fixed_elements: 0,
        fixed_wide: 0,
        fixed_bytes: 0,
    };

    /// A buffer of `n` elements a sample.
    pub const fn elements(n: usize) -> Self {
        if n == 0 { Self::ZERO } else { Self { item_elements: n, fixed_bytes: Self::ALIGN, ..Self::ZERO } }
    }
    /// A buffer of `n` wide values a sample: statistics, which must not be rounded to elements.
    pub const fn wide(n: usize) -> Self {
        if n == 0 { Self::ZERO } else { Self { item_wide: n, fixed_bytes: Self::ALIGN, ..Self::ZERO } }
    }
    /// A buffer of `n` bytes a sample.
    pub const fn bytes(n: usize) -> Self {
        if n == 0 { Self::ZERO } else { Self { item_bytes: n, fixed_bytes: Self::ALIGN, ..Self::ZERO } }
    }
    /// A buffer of `n` elements, however large the batch.
    pub const fn fixed_elements(n: usize) -> Self {
        if n == 0 { Self::ZERO } else { Self { fixed_elements: n, fixed_bytes: Self::ALIGN, ..Self::ZERO } }
    }
    /// A buffer of `n` wide values, however large the batch.
    pub const fn fixed_wide(n: usize) -> Self {
        if n == 0 { Self::ZERO } else { Self { fixed_wide: n, fixed_bytes: Self::ALIGN, ..Self::ZERO } }
    }

    /// Whether it is nothing.
    pub const fn is_zero(&self) -> bool {
        // Whatever is in it needs room for its alignment.
        self.fixed_bytes == 0
    }

    /// Both, side by side.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            item_elements: self.item_elements.saturating_add(other.item_elements),
            item_wide: self.item_wide.saturating_add(other.item_wide),
            item_bytes: self.item_bytes.saturating_add(other.item_bytes),
            fixed_elements: self.fixed_elements.saturating_add(other.fixed_elements),
            fixed_wide: self.fixed_wide.saturating_add(other.fixed_wide),
            fixed_bytes: self.fixed_bytes.saturating_add(other.fixed_bytes),
        }
    }

    /// `n` of them, side by side.
    pub const fn times(self, n: usize) -> Self {
        Self {
            item_elements: self.item_elements.saturating_mul(n),
            item_wide: self.item_wide.saturating_mul(n),
            item_bytes: self.item_bytes.saturating_mul(n),
            fixed_elements: self.fixed_elements.saturating_mul(n),
            fixed_wide: self.fixed_wide.saturating_mul(n),
            fixed_bytes: self.fixed_bytes.saturating_mul(n),
        }
    }

    /// Room for either, one after the other.
    pub const fn max(self, other: Self) -> Self {
        const fn larger(a: usize, b: usize) -> usize {
            if a > b { a } else { b }
        }
        Self {
            item_elements: larger(self.item_elements, other.item_elements),
            item_wide: larger(self.item_wide, other.item_wide),
            item_bytes: larger(self.item_bytes, other.item_bytes),
            fixed_elements: larger(self.fixed_elements, other.fixed_elements),
            fixed_wide: larger(self.fixed_wide, other.fixed_wide),
            fixed_bytes: larger(self.fixed_bytes, other.fixed_bytes),
        }
    }

    /// Itself if `wanted`, else nothing.
    pub const fn when(self, wanted: bool) -> Self {
        if wanted { self } else { Self::ZERO }
    }

    /// Bytes for a batch of `batch` samples and elements of `element` bytes, a multiple of [`Size::ALIGN`].
    ///
    /// Rounded down: the fixed part has room for every buffer's rounding up, and so the parts of a sum never
    /// take more than the sum.
    #[inline(always)]
    pub const fn at(self, batch: usize, element: usize) -> usize {
        // More than there can be stays more than there can be: allocating it is an error.
        let wide = if element < 4 { 4 } else { element };
        let item =
            self.item_elements.saturating_mul(element).saturating_add(self.item_wide.saturating_mul(wide));
        let fixed =
            self.fixed_elements.saturating_mul(element).saturating_add(self.fixed_wide.saturating_mul(wide));
        let (item, fixed) = (item.saturating_add(self.item_bytes), fixed.saturating_add(self.fixed_bytes));
        let bytes = batch.saturating_mul(item).saturating_add(fixed);
        bytes / Self::ALIGN * Self::ALIGN
    }
}

/// All of them, side by side.
pub const fn sum(sizes: &[Size]) -> Size {
    let mut total = Size::ZERO;
    let mut i = 0;
    while i < sizes.len() {
        total = total.plus(sizes[i]);
        i += 1;
    }
    total
}

/// Room for any one of them.
pub const fn largest(sizes: &[Size]) -> Size {
    let mut most = Size::ZERO;
    let mut i = 0;
    while i < sizes.len() {
        most = most.max(sizes[i]);
        i += 1;
    }
    most
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn parts_fit_into_their_sum() {
        for n in 1..70 {
            for batch in 1..5 {
                let (a, b) = (Size::elements(n), Size::bytes(3 * n).plus(Size::fixed_elements(n + 5)));
                assert!(a.at(batch, 8) >= (8 * n * batch).next_multiple_of(64));
                assert!(a.at(batch, 8) + 2 * b.at(batch, 8) <= a.plus(b.times(2)).at(batch, 8));
                let (a, b) = (a.plus(Size::wide(n)), b.plus(Size::fixed_wide(n + 3)));
                assert!(
                    a.at(batch, 2)
                        >= (2 * n * batch).next_multiple_of(64) + (4 * n * batch).next_multiple_of(64)
                );
                assert!(a.at(batch, 2) + 2 * b.at(batch, 2) <= a.plus(b.times(2)).at(batch, 2));
            }
        }
    }
}
