//! Which way a product or a convolution takes: measured by `cargo run --release -p nn-bench --bin routes -- --write`,
//! which writes the tables of the instruction set it runs with.

use crate::Isa;

/// The ways of an instruction set.
pub(crate) struct Routes {
    /// Of products, by elements of B (up to 2^10, 2^12 and so on) and rows of A (up to 1, 2, 4 and so on), the last of
    /// each for all above: `D`irect, `S`treamed, `P`acked.
    pub(crate) products: [[u8; 8]; 8],
    /// Of convolutions with 3×3 taps side by side, by channels (up to 16, 32, 64, and more) and pixels of y (up to 8²,
    /// 16², and more): `D`irect, `W`inograd.
    pub(crate) convolutions: [[u8; 3]; 4],
}

/// The smallest whole number whose power of two is no less than `n`.
const fn ceil_log2(n: usize) -> usize {
    (usize::BITS - n.saturating_sub(1).leading_zeros()) as usize
}

const fn at_most(n: usize, most: usize) -> usize {
    if n < most { n } else { most }
}

impl Routes {
    /// Those of an instruction set.
    pub(crate) const fn of(isa: Isa) -> &'static Self {
        match isa {
            Isa::Avx512 => &AVX512,
            _ => &AVX2,
        }
    }

    /// That of a product of `rows` rows with `size` elements.
    pub(crate) const fn product(&self, rows: usize, size: usize) -> u8 {
        let line = at_most(ceil_log2(size).saturating_sub(9) / 2, 7);
        self.products[line][at_most(ceil_log2(rows), 7)]
    }

    /// That of a convolution.
    pub(crate) const fn convolution(&self, channels: usize, pixels: usize) -> u8 {
        let line = at_most(ceil_log2(channels).saturating_sub(4), 3);
        self.convolutions[line][at_most(ceil_log2(pixels).saturating_sub(5) / 2, 2)]
    }
}

/// On Intel(R) Xeon(R) Processor, one thread.
const AVX512: Routes = Routes {
    products: [
        *b"DDDDDDDD",
        *b"DDDDDDDD",
        *b"DDDDDDDP",
        *b"DDDDDDDP",
        *b"DDDDDDDP",
        *b"SSSDDDPP",
        *b"SSDDDPPP",
        *b"SSSPPPPP",
    ],
    convolutions: [*b"DDD", *b"DDW", *b"DDW", *b"DDW"],
};

/// On AMD EPYC, one thread.
const AVX2: Routes = Routes {
    products: [
        *b"DDDDDDDD",
        *b"DDDDDDDD",
        *b"DDDDDDDD",
        *b"DDDDDDPP",
        *b"DDDDDPPP",
        *b"DSSSPPPP",
        *b"SSSSPPPP",
        *b"SSSSPPPP",
    ],
    convolutions: [*b"DDD", *b"WWW", *b"WWW", *b"WWW"],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_place() {
        let routes = Routes {
            products: std::array::from_fn(|line| std::array::from_fn(|column| (8 * line + column) as u8)),
            convolutions: std::array::from_fn(|line| std::array::from_fn(|column| (3 * line + column) as u8)),
        };
        assert_eq!([1, 2, 3, 64, 65, 9999].map(|rows| routes.product(rows, 1)), [0, 1, 2, 6, 7, 7]);
        assert_eq!(
            [1 << 10, 1025, 1 << 12, 4097, 1 << 30].map(|size| routes.product(1, size)),
            [0, 8, 8, 16, 56]
        );
        assert_eq!([1, 16, 17, 32, 64, 65, 999].map(|c| routes.convolution(c, 1)), [0, 0, 3, 3, 6, 9, 9]);
        assert_eq!([64, 65, 256, 257, 9999].map(|pixels| routes.convolution(1, pixels)), [0, 1, 1, 2, 2]);
    }
}
