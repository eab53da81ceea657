//! Weights in fewer bits than the elements that are computed with.

use half::{bf16, f16};

use crate::Float;

/// Outputs whose weights lie side by side, for one input after the other.
pub(crate) const TILE: usize = 32;
/// Inputs of an output that share a scale.
pub(crate) const BLOCK: usize = 32;

/// How a matrix of weights is stored, as bits that only the kernels for it read as numbers.
///
/// The matrix is `[outputs, inputs]`. Its outputs are taken 32 at a time, the last ones filled up with zeros, and of these
/// the weights of the first input come first, then those of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Packing {
    /// bfloat16: the upper half of single precision, 8 bits of exponent and 7 of fraction.
    Bf16,
    /// IEEE 754 half precision: 5 bits of exponent and 10 of fraction.
    F16,
    /// Integers of 8 bits; 32 neighbouring inputs of an output share a scale in half precision. GGUF's format of this name.
    Q8_0,
}

impl Packing {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "Bf16",
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
        }
    }

    /// What the number of inputs must be a multiple of.
    pub const fn group(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 1,
            Self::Q8_0 => BLOCK,
        }
    }

    /// Bytes of 32 outputs' weights for so many inputs, a multiple of [`group`](Self::group).
    pub(crate) const fn tile(self, inputs: usize) -> usize {
        match self {
            Self::Bf16 | Self::F16 => inputs.saturating_mul(2 * TILE),
            Self::Q8_0 => (inputs / BLOCK).saturating_mul((2 + BLOCK) * TILE),
        }
    }

    /// Bytes of a matrix, at most `usize::MAX`.
    pub const fn bytes(self, outputs: usize, inputs: usize) -> usize {
        outputs.div_ceil(TILE).saturating_mul(self.tile(inputs))
    }

    /// Elements that hold a matrix, whatever their type: they have at least four bytes each.
    pub const fn slots(self, outputs: usize, inputs: usize) -> usize {
        self.bytes(outputs, inputs).div_ceil(4)
    }

    /// Stores rows of a matrix of so many inputs, from row `first` on. `values` are whole rows; each is rounded to the
    /// nearest number it can be: a tie to the even one, in `Q8_0` to the one further from zero, as GGUF does.
    ///
    /// # Panics
    /// Rows are not whole, or `slots` holds no matrix with all of them.
    pub fn write<T: Float, E: Float>(self, inputs: usize, first: usize, values: &[T], slots: &mut [E]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(slots);
        for (row, values) in self.rows(inputs, first, values.len()).zip(values.chunks_exact(inputs.max(1))) {
            let tile = &mut bytes[row / TILE * self.tile(inputs)..][..self.tile(inputs)];
            let o = row % TILE;
            match self {
                Self::Bf16 => {
                    for (term, value) in values.iter().enumerate() {
                        put(tile, bf16_at(term, o), bf16_bits(value.to_f64()));
                    }
                }
                Self::F16 => {
                    for (term, value) in values.iter().enumerate() {
                        put(tile, f16_at(term, o), f16_bits(value.to_f64()));
                    }
                }
                Self::Q8_0 => {
                    for (block, values) in tile.chunks_exact_mut((2 + BLOCK) * TILE).zip(values.chunks(BLOCK))
                    {
                        let (scale, quants) = q8_0(values);
                        put(block, o, scale);
                        for (term, q) in quants.into_iter().enumerate() {
                            block[(2 + term) * TILE + o] = q.cast_unsigned();
                        }
                    }
                }
            }
        }
    }

    /// The numbers that rows of a matrix stand for, as many as `values` has room for.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    pub fn read<T: Float, E: Float>(self, inputs: usize, first: usize, slots: &[E], values: &mut [T]) {
        let rows = self.rows(inputs, first, values.len());
        for (row, values) in rows.zip(values.chunks_exact_mut(inputs.max(1))) {
            self.read_some(inputs, row, 0, slots, values);
        }
    }

    /// The numbers that a row's weights stand for, from input `first` on.
    pub(crate) fn read_some<T: Float, E: Float>(
        self,
        inputs: usize,
        row: usize,
        first: usize,
        slots: &[E],
        values: &mut [T],
    ) {
        let bytes: &[u8] = bytemuck::cast_slice(slots);
        let tile = &bytes[row / TILE * self.tile(inputs)..][..self.tile(inputs)];
        let o = row % TILE;
        for (term, value) in (first..).zip(values) {
            *value = T::from_f64(match self {
                Self::Bf16 => f32::from_bits(u32::from(get(tile, bf16_at(term, o))) << 16).into(),
                Self::F16 => f16::from_bits(get(tile, f16_at(term, o))).to_f64(),
                Self::Q8_0 => {
                    let block = &tile[term / BLOCK * (2 + BLOCK) * TILE..];
                    let q = block[(2 + term % BLOCK) * TILE + o].cast_signed();
                    f64::from(q) * f16::from_bits(get(block, o)).to_f64()
                }
            });
        }
    }

    /// The rows that so many values make up.
    fn rows(self, inputs: usize, first: usize, values: usize) -> std::ops::Range<usize> {
        assert!(inputs.is_multiple_of(self.group()), "{} needs inputs in {}s", self.name(), self.group());
        let rows = values.checked_div(inputs).unwrap_or(0);
        assert_eq!(rows * inputs, values, "whole rows of {inputs} weights");
        first..first + rows
    }
}

/// Where a weight lies in its tile, in halves of a word: the outputs o and o + 16 share one, so that a shift makes
/// numbers of half of them, and a mask of the others.
const fn bf16_at(term: usize, o: usize) -> usize {
    term * TILE + o % (TILE / 2) * 2 + o / (TILE / 2)
}

const fn f16_at(term: usize, o: usize) -> usize {
    term * TILE + o
}

fn put(bytes: &mut [u8], at: usize, bits: u16) {
    bytes[2 * at..2 * at + 2].copy_from_slice(&bits.to_ne_bytes());
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]])
}

/// The nearest number with so many binary digits after the first, none finer than those of 2^`lowest`. It is made from
/// double precision in one rounding: by way of single precision a tie could be one that is none.
fn nearest(x: f64, digits: i32, lowest: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // That of a subnormal number is far below `lowest`.
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    let quantum = 2_f64.powi(exponent.max(lowest) - digits);
    // Both are exact: by powers of two that leave room.
    (x / quantum).round_ties_even() * quantum
}

fn bf16_bits(x: f64) -> u16 {
    bf16::from_f64(nearest(x, 7, -126)).to_bits()
}

fn f16_bits(x: f64) -> u16 {
    f16::from_f64(nearest(x, 10, -14)).to_bits()
}

/// A block's scale, max|x|/127, and its numbers as multiples of it before it is rounded, as GGUF has them. A block with
/// a number that is infinite, or none at all, becomes NaN, so that it shows.
fn q8_0<T: Float>(values: &[T]) -> (u16, [i8; BLOCK]) {
    let mut quants = [0; BLOCK];
    if !values.iter().all(|x| x.is_finite()) {
        return (f16::NAN.to_bits(), quants);
    }
    let most = values.iter().fold(0.0, |most: f64, x| most.max(x.to_f64().abs()));
    let scale = most / 127.0;
    if scale > 0.0 {
        for (q, x) in quants.iter_mut().zip(values) {
            *q = (x.to_f64() / scale).round() as i8;
        }
    }
    (f16_bits(scale), quants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::Philox;

    /// All numbers of 16 bits, those half-way between two neighbours, and what is next to these.
    fn check(number: impl Fn(u16) -> f64, bits: impl Fn(f64) -> u16) {
        for i in 0..=u16::MAX {
            let x = number(i);
            if x.is_nan() {
                assert!(number(bits(x)).is_nan());
                continue;
            }
            assert_eq!(bits(x), i, "{x} is a number of this kind");
            let next = number(i.wrapping_add(1));
            if !x.is_finite() || !next.is_finite() || x.is_sign_negative() != next.is_sign_negative() {
                continue;
            }
            let middle = f64::midpoint(x, next);
            assert_eq!(bits(middle), i + i % 2, "half-way between {x} and {next}");
            // Far nearer to the middle than single precision tells apart.
            let (less, more) = (middle * (1.0 - 1e-15), middle * (1.0 + 1e-15));
            if middle.abs() > 1e-300 {
                assert_eq!([bits(less), bits(more)], [i, i + 1], "around {middle}");
            }
        }
    }

    #[test]
    fn numbers_of_16_bits_are_the_nearest() {
        check(|bits| bf16::from_bits(bits).to_f64(), bf16_bits);
        check(|bits| f16::from_bits(bits).to_f64(), f16_bits);
        // Beyond the largest.
        assert_eq!([f16_bits(65519.9), f16_bits(65520.0)], [0x7BFF, 0x7C00]);
        assert_eq!([bf16_bits(f64::from(f32::MAX)), bf16_bits(-1e300)], [0x7F80, 0xFF80]);
        let mut random = Philox::new(1, 0);
        for _ in 0..10_000 {
            // Of single precision, where another implementation rounds once, too.
            let x = (random.normal() * 10_f64.powf(6.0 * random.uniform() - 4.0)) as f32;
            assert_eq!(f16_bits(x.into()), f16::from_f32(x).to_bits(), "{x}");
            assert_eq!(bf16_bits(x.into()), bf16::from_f32(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn integers_are_the_nearest_multiples_of_a_127th_of_the_largest() {
        let mut random = Philox::new(2, 0);
        for size in [1e-3, 1.0, 300.0] {
            let x: Vec<f64> = (0..3 * 96).map(|_| random.normal() * size).collect();
            let mut slots = vec![0.0_f32; Packing::Q8_0.slots(40, 96)];
            Packing::Q8_0.write(96, 37, &x, &mut slots);
            let mut back = vec![0.0_f64; x.len()];
            Packing::Q8_0.read(96, 37, &slots, &mut back);
            for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                let most = x.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let scale = f16::from_f64(most / 127.0).to_f64();
                for (x, back) in x.iter().zip(back) {
                    assert_eq!(*back, (x * 127.0 / most).round() * scale);
                }
            }
            // What was packed once is packed again as it is.
            let before = slots.clone();
            Packing::Q8_0.write(96, 37, &back, &mut slots);
            assert!(slots.iter().zip(&before).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn a_block_without_a_scale_is_zero_or_shows() {
        let mut slots = vec![0.0_f64; Packing::Q8_0.slots(2, 64)];
        let mut x = vec![0.0_f64; 128];
        x[40] = f64::NAN;
        x[70] = f64::INFINITY;
        x[100] = 1e-12;
        Packing::Q8_0.write(64, 0, &x, &mut slots);
        let mut back = vec![1.0_f64; 128];
        Packing::Q8_0.read(64, 0, &slots, &mut back);
        assert!(back[..32].iter().chain(&back[96..]).all(|x| *x == 0.0));
        assert!(back[32..96].iter().all(|x| x.is_nan()));
    }

    #[test]
    fn rows_are_written_by_themselves() {
        for packing in [Packing::Bf16, Packing::F16, Packing::Q8_0] {
            let mut random = Philox::new(3, 0);
            let x: Vec<f32> = (0..70 * 64).map(|_| random.normal() as f32).collect();
            let [mut whole, mut parts] = [0, 1].map(|_| vec![0.0_f64; packing.slots(70, 64)]);
            packing.write(64, 0, &x, &mut whole);
            for rows in [33..70, 0..1, 1..33] {
                packing.write(64, rows.start, &x[rows.start * 64..rows.end * 64], &mut parts);
            }
            assert!(whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
