//! Random numbers that are a function of a key and a counter: Philox4x32-10 (Salmon, Moraes, Dror and Shaw,
//! *Parallel random numbers: as easy as 1, 2, 3*, 2011).
//!
//! There is no state to share, so any thread, copy or device can draw the numbers it needs, in any order.

/// Four random words for a counter and a key.
#[inline]
pub const fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut k0, mut k1] = key;
    let mut round = 0;
    while round < 10 {
        let p = 0xD251_1F53_u64 * a as u64;
        let q = 0xCD9E_8D57_u64 * c as u64;
        [a, b, c, d] = [(q >> 32) as u32 ^ b ^ k0, q as u32, (p >> 32) as u32 ^ d ^ k1, p as u32];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
        round += 1;
    }
    [a, b, c, d]
}

/// The upper 24 bits as a number in [0, 1), exact in single precision.
#[inline]
pub const fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// A sequence of random numbers, for initialisers and for shuffling.
///
/// Two generators with the same seed and stream draw the same numbers; streams of one seed are independent.
///
/// ```
/// use nn_kernels::philox::Philox;
///
/// let mut rng = Philox::new(7, 0);
/// let x = rng.uniform();
/// assert!((0.0..1.0).contains(&x));
/// assert_eq!(Philox::new(7, 0).uniform(), x);
/// assert_ne!(Philox::new(7, 1).uniform(), x);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Philox {
    seed: u64,
    stream: u64,
    /// How many blocks of four words have been drawn.
    block: u64,
    words: [u32; 4],
    /// How many of `words` are left; they are handed out from the front.
    left: usize,
    /// The second of a pair of normal numbers.
    spare: Option<f64>,
}

impl Philox {
    /// The beginning of a seed's stream.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, block: 0, words: [0; 4], left: 0, spare: None }
    }

    /// The four words at a place in the stream, wherever the sequence stands.
    pub const fn at(&self, counter: u64) -> [u32; 4] {
        philox4x32(
            [counter as u32, (counter >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.left == 0 {
            self.words = self.at(self.block);
            self.block += 1;
            self.left = 4;
        }
        self.left -= 1;
        self.words[3 - self.left]
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// A number in [0, 1) of 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number from the normal distribution of mean 0 and variance 1 (Box and Muller's method).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        // 1 − u lies in (0, 1], so its logarithm is finite.
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }

    /// A whole number below `n`, all equally likely (Lemire's method). Panics if `n` is 0.
    pub fn below(&mut self, n: u32) -> u32 {
        assert!(n > 0, "there is no number below 0");
        loop {
            let product = u64::from(self.next_u32()) * u64::from(n);
            // The low word's first 2³² mod n values would make some results likelier.
            if product as u32 >= n.wrapping_neg() % n {
                return (product >> 32) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_sequence_is_the_stream_in_order() {
        let mut rng = Philox::new(3, 4);
        let drawn: Vec<_> = (0..8).map(|_| rng.next_u32()).collect();
        assert_eq!(drawn, [rng.at(0), rng.at(1)].concat());
    }

    #[test]
    fn uniform_and_normal_have_their_moments() {
        let n = if cfg!(miri) { 100 } else { 100_000 };
        let tolerance = 4.0 / f64::from(n).sqrt();
        let mut rng = Philox::new(1, 2);
        let mean = (0..n).map(|_| rng.uniform()).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < tolerance, "{mean}");
        let draws: Vec<_> = (0..n).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let square = draws.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < tolerance && (square - 1.0).abs() < 2.0 * tolerance, "{mean} {square}");
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut rng = Philox::new(0, 0);
        let mut seen = [0; 7];
        (0..700).for_each(|_| seen[rng.below(7) as usize] += 1);
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        assert_eq!(rng.below(1), 0);
    }
}
