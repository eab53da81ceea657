//! A hash of a key and an index: cheaper than [`philox`](crate::philox), and good enough for masks.

/// The finaliser of SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, 2014): each bit of
/// the result depends on every bit of `z`, and no two `z` give the same.
#[inline(always)]
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What SplitMix64 counts in: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key for a seed and three counters: any other of the four gives another.
pub const fn key(seed: u64, counters: [u64; 3]) -> u64 {
    let mut key = mix(seed.wrapping_add(STEP));
    let mut i = 0;
    while i < counters.len() {
        key = mix((key ^ counters[i]).wrapping_add(STEP));
        i += 1;
    }
    key
}

/// The word at an index: the upper half of what SplitMix64 gives there, if it starts at the key.
///
/// ```
/// use nn_kernels::hash;
/// // SplitMix64's first outputs from 0, as published with it.
/// assert_eq!(hash::word(0, 0), 0xE220_A839);
/// assert_eq!(hash::word(0, 1), 0x6E78_9E6A);
/// assert_ne!(hash::key(1, [0, 0, 0]), hash::key(0, [1, 0, 0]));
/// ```
#[inline(always)]
pub const fn word(key: u64, index: u64) -> u32 {
    (mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP))) >> 32) as u32
}
