//! Registers, for the kernels that are written with them by hand.

/// A register of `LANES` values of `Elem`.
///
/// # Safety
/// Every method needs a processor with the instruction set that the type belongs to. Pointers must be valid for
/// as many values as are read or written; they need not be aligned.
pub trait Vector: Copy {
    /// What it holds.
    type Elem: Copy;
    /// How many.
    const LANES: usize;
    /// The same value everywhere.
    unsafe fn splat(x: Self::Elem) -> Self;
    /// Reads `LANES` values.
    unsafe fn load(from: *const Self::Elem) -> Self;
    /// Reads the first `n`, with 0 for the others.
    unsafe fn load_part(from: *const Self::Elem, n: usize) -> Self;
    /// Writes `LANES` values.
    unsafe fn store(self, to: *mut Self::Elem);
    /// Writes the first `n`.
    unsafe fn store_part(self, to: *mut Self::Elem, n: usize);
    /// self + other.
    unsafe fn add(self, other: Self) -> Self;
    /// self − other.
    unsafe fn sub(self, other: Self) -> Self;
    /// self·other.
    unsafe fn mul(self, other: Self) -> Self;
    /// self·b + c, each rounded as `Real::mul_add` does.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;

    /// The upper (`high`) or lower halves of `LANES` words, as bfloat16.
    unsafe fn bf16(from: *const u8, high: bool) -> Self;
    /// `LANES` numbers of half precision.
    unsafe fn f16(from: *const u8) -> Self;
    /// `LANES` integers of 8 bits.
    unsafe fn i8(from: *const u8) -> Self;

    /// Edge of the blocks that [`transpose`](Self::transpose) turns.
    const BLOCK: usize;
    /// Writes a block's columns as rows: `to[j·to_row + i] = from[i·from_row + j]`.
    unsafe fn transpose(from: *const Self::Elem, from_row: usize, to: *mut Self::Elem, to_row: usize);
}

/// A register as the compiler makes it: `N` values, with fused products or not.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<E, const N: usize, const FMA: bool>([E; N]);

/// A number of half precision, without the instruction for it.
#[inline(always)]
fn from_f16(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7FFF) << 13);
    // The exponent is brought from one bias to the other by a product, which makes subnormal numbers normal, too.
    let scaled = (f32::from_bits(rest) * f32::from_bits(0x7780_0000)).to_bits();
    // Infinity and NaN.
    let scaled = if rest >= 0x0F80_0000 { rest | 0x7F80_0000 } else { scaled };
    f32::from_bits(sign | scaled)
}

macro_rules! lanes {
    ($t:ty) => {
        impl<const N: usize, const FMA: bool> Vector for Lanes<$t, N, FMA> {
            type Elem = $t;
            const LANES: usize = N;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                Self([x; N])
            }
            #[inline(always)]
            unsafe fn load(from: *const $t) -> Self {
                // SAFETY: the caller's pointer is valid for N values, and an array is as aligned as its elements.
                Self(unsafe { from.cast::<[$t; N]>().read() })
            }
            #[inline(always)]
            unsafe fn load_part(from: *const $t, n: usize) -> Self {
                let mut lanes = [0.0; N];
                for (i, lane) in lanes.iter_mut().enumerate().take(n) {
                    // SAFETY: the caller's pointer is valid for n values.
                    *lane = unsafe { from.add(i).read() };
                }
                Self(lanes)
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $t) {
                // SAFETY: the caller's pointer is valid for N values, and an array is as aligned as its elements.
                unsafe { to.cast::<[$t; N]>().write(self.0) }
            }
            #[inline(always)]
            unsafe fn store_part(self, to: *mut $t, n: usize) {
                for (i, lane) in self.0.iter().enumerate().take(n) {
                    // SAFETY: the caller's pointer is valid for n values.
                    unsafe { to.add(i).write(*lane) };
                }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
            }
            #[inline(always)]
            unsafe fn sub(self, other: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] - other.0[i]))
            }
            #[inline(always)]
            unsafe fn mul(self, other: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] * other.0[i]))
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                Self(std::array::from_fn(|i| {
                    if FMA { self.0[i].mul_add(b.0[i], c.0[i]) } else { self.0[i] * b.0[i] + c.0[i] }
                }))
            }
            #[inline(always)]
            unsafe fn bf16(from: *const u8, high: bool) -> Self {
                // SAFETY: the caller's pointer is valid for N words.
                let words = unsafe { from.cast::<[u32; N]>().read_unaligned() };
                let bits = words.map(|w| if high { w & 0xFFFF_0000 } else { w << 16 });
                Self(bits.map(|bits| f32::from_bits(bits) as $t))
            }
            #[inline(always)]
            unsafe fn f16(from: *const u8) -> Self {
                // SAFETY: the caller's pointer is valid for N halves of a word.
                let halves = unsafe { from.cast::<[u16; N]>().read_unaligned() };
                Self(halves.map(|bits| from_f16(bits) as $t))
            }
            #[inline(always)]
            unsafe fn i8(from: *const u8) -> Self {
                // SAFETY: the caller's pointer is valid for N bytes.
                Self(unsafe { from.cast::<[i8; N]>().read() }.map(<$t>::from))
            }
            const BLOCK: usize = 4;
            #[inline(always)]
            unsafe fn transpose(from: *const $t, from_row: usize, to: *mut $t, to_row: usize) {
                for i in 0..Self::BLOCK {
                    for j in 0..Self::BLOCK {
                        // SAFETY: the caller's pointers are valid for the block.
                        unsafe { to.add(j * to_row + i).write(from.add(i * from_row + j).read()) };
                    }
                }
            }
        }
    };
}
lanes!(f32);
lanes!(f64);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    /// Rows of ones and zeros: the one that starts at `8 − n` masks the first n of 8 lanes.
    static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    static MASK64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

    // In all of these:
    // SAFETY: the caller has the instruction set and pointers valid for what is read or written; a masked lane is
    // neither read nor written, and the masks are read within their tables since n ≤ LANES.

    impl Vector for __m256 {
        type Elem = f32;
        const LANES: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            debug_assert!(n <= 8);
            unsafe { _mm256_maskload_ps(from, _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast())) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            debug_assert!(n <= 8);
            unsafe { _mm256_maskstore_ps(to, _mm256_loadu_si256(MASK.as_ptr().add(8 - n).cast()), self) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm256_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            unsafe { _mm256_sub_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            unsafe { _mm256_mul_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm256_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn bf16(from: *const u8, high: bool) -> Self {
            unsafe {
                let words = _mm256_loadu_si256(from.cast());
                let mask = _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed());
                _mm256_castsi256_ps(if high {
                    _mm256_and_si256(words, mask)
                } else {
                    _mm256_slli_epi32::<16>(words)
                })
            }
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> Self {
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        }
        #[inline(always)]
        unsafe fn i8(from: *const u8) -> Self {
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
        const BLOCK: usize = 8;
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            unsafe { transpose8(from, from_row, to, to_row) }
        }
    }

    impl Vector for __m256d {
        type Elem = f64;
        const LANES: usize = 4;
        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            unsafe { _mm256_set1_pd(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f64) -> Self {
            unsafe { _mm256_loadu_pd(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f64, n: usize) -> Self {
            debug_assert!(n <= 4);
            unsafe { _mm256_maskload_pd(from, _mm256_loadu_si256(MASK64.as_ptr().add(4 - n).cast())) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f64) {
            unsafe { _mm256_storeu_pd(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f64, n: usize) {
            debug_assert!(n <= 4);
            unsafe { _mm256_maskstore_pd(to, _mm256_loadu_si256(MASK64.as_ptr().add(4 - n).cast()), self) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm256_add_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            unsafe { _mm256_sub_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            unsafe { _mm256_mul_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm256_fmadd_pd(self, b, c) }
        }
        #[inline(always)]
        unsafe fn bf16(from: *const u8, high: bool) -> Self {
            unsafe {
                let words = _mm_loadu_si128(from.cast());
                let mask = _mm_set1_epi32(0xFFFF_0000_u32.cast_signed());
                let bits = if high { _mm_and_si128(words, mask) } else { _mm_slli_epi32::<16>(words) };
                _mm256_cvtps_pd(_mm_castsi128_ps(bits))
            }
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> Self {
            unsafe { _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn i8(from: *const u8) -> Self {
            unsafe {
                let bytes = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
                _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(bytes))
            }
        }
        const BLOCK: usize = 4;
        #[inline(always)]
        unsafe fn transpose(from: *const f64, from_row: usize, to: *mut f64, to_row: usize) {
            unsafe { transpose4(from, from_row, to, to_row) }
        }
    }

    impl Vector for __m512 {
        type Elem = f32;
        const LANES: usize = 16;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            debug_assert!(n <= 16);
            unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            debug_assert!(n <= 16);
            unsafe { _mm512_mask_storeu_ps(to, ((1u32 << n) - 1) as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm512_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            unsafe { _mm512_sub_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            unsafe { _mm512_mul_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm512_fmadd_ps(self, b, c) }
        }
        #[inline(always)]
        unsafe fn bf16(from: *const u8, high: bool) -> Self {
            unsafe {
                let words = _mm512_loadu_si512(from.cast());
                let mask = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
                _mm512_castsi512_ps(if high {
                    _mm512_and_si512(words, mask)
                } else {
                    _mm512_slli_epi32::<16>(words)
                })
            }
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> Self {
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn i8(from: *const u8) -> Self {
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
        }
        const BLOCK: usize = 8;
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
            unsafe { transpose8(from, from_row, to, to_row) }
        }
    }

    impl Vector for __m512d {
        type Elem = f64;
        const LANES: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: f64) -> Self {
            unsafe { _mm512_set1_pd(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f64) -> Self {
            unsafe { _mm512_loadu_pd(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f64, n: usize) -> Self {
            debug_assert!(n <= 8);
            unsafe { _mm512_maskz_loadu_pd(((1u32 << n) - 1) as __mmask8, from) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f64) {
            unsafe { _mm512_storeu_pd(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f64, n: usize) {
            debug_assert!(n <= 8);
            unsafe { _mm512_mask_storeu_pd(to, ((1u32 << n) - 1) as __mmask8, self) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            unsafe { _mm512_add_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            unsafe { _mm512_sub_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            unsafe { _mm512_mul_pd(self, other) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            unsafe { _mm512_fmadd_pd(self, b, c) }
        }
        #[inline(always)]
        unsafe fn bf16(from: *const u8, high: bool) -> Self {
            unsafe {
                let words = _mm256_loadu_si256(from.cast());
                let mask = _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed());
                let bits = if high { _mm256_and_si256(words, mask) } else { _mm256_slli_epi32::<16>(words) };
                _mm512_cvtps_pd(_mm256_castsi256_ps(bits))
            }
        }
        #[inline(always)]
        unsafe fn f16(from: *const u8) -> Self {
            unsafe { _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) }
        }
        #[inline(always)]
        unsafe fn i8(from: *const u8) -> Self {
            unsafe { _mm512_cvtepi32_pd(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
        }
        const BLOCK: usize = 4;
        #[inline(always)]
        unsafe fn transpose(from: *const f64, from_row: usize, to: *mut f64, to_row: usize) {
            unsafe { transpose4(from, from_row, to, to_row) }
        }
    }

    /// Turns 8 × 8 values: pairs, then fours within each half, then the halves.
    #[inline(always)]
    unsafe fn transpose8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        unsafe {
            let r: [__m256; 8] = std::array::from_fn(|i| _mm256_loadu_ps(from.add(i * from_row)));
            let mut fours = [_mm256_setzero_ps(); 8];
            for i in 0..2 {
                let low = [
                    _mm256_unpacklo_ps(r[4 * i], r[4 * i + 1]),
                    _mm256_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]),
                ];
                let high = [
                    _mm256_unpackhi_ps(r[4 * i], r[4 * i + 1]),
                    _mm256_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]),
                ];
                fours[4 * i] = _mm256_shuffle_ps::<0x44>(low[0], low[1]);
                fours[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(low[0], low[1]);
                fours[4 * i + 2] = _mm256_shuffle_ps::<0x44>(high[0], high[1]);
                fours[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(high[0], high[1]);
            }
            for j in 0..4 {
                _mm256_storeu_ps(to.add(j * to_row), _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]));
                _mm256_storeu_ps(
                    to.add((4 + j) * to_row),
                    _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]),
                );
            }
        }
    }

    /// Turns 4 × 4 values.
    #[inline(always)]
    unsafe fn transpose4(from: *const f64, from_row: usize, to: *mut f64, to_row: usize) {
        unsafe {
            let r: [__m256d; 4] = std::array::from_fn(|i| _mm256_loadu_pd(from.add(i * from_row)));
            let low = [_mm256_unpacklo_pd(r[0], r[1]), _mm256_unpacklo_pd(r[2], r[3])];
            let high = [_mm256_unpackhi_pd(r[0], r[1]), _mm256_unpackhi_pd(r[2], r[3])];
            _mm256_storeu_pd(to, _mm256_permute2f128_pd::<0x20>(low[0], low[1]));
            _mm256_storeu_pd(to.add(to_row), _mm256_permute2f128_pd::<0x20>(high[0], high[1]));
            _mm256_storeu_pd(to.add(2 * to_row), _mm256_permute2f128_pd::<0x31>(low[0], low[1]));
            _mm256_storeu_pd(to.add(3 * to_row), _mm256_permute2f128_pd::<0x31>(high[0], high[1]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<V: Vector<Elem = f32>>() {
        let x: Vec<f32> = (0..400).map(|i| i as f32).collect();
        for n in 0..=V::LANES {
            let mut y = vec![-1.0; V::LANES + 1];
            // SAFETY: the caller checked the instruction set; x and y are long enough.
            unsafe { V::load_part(x.as_ptr().add(1), n).add(V::splat(0.5)).store_part(y.as_mut_ptr(), n) };
            for (i, &y) in y.iter().enumerate() {
                assert_eq!(y, if i < n { i as f32 + 1.5 } else { -1.0 });
            }
        }
        let b = V::BLOCK;
        let mut y = vec![0.0; 400];
        // SAFETY: as above; a block of at most 8 with rows 20 apart is within 400 values.
        unsafe { V::transpose(x.as_ptr(), 20, y.as_mut_ptr(), 11) };
        for (i, j) in (0..b).flat_map(|i| (0..b).map(move |j| (i, j))) {
            assert_eq!(y[j * 11 + i], x[i * 20 + j]);
        }
    }

    /// What is read of packed weights is what they stand for, whatever the lane.
    fn check_packed<V: Vector>()
    where
        V::Elem: Into<f64>,
    {
        let number = |v: V, lane: usize| {
            // SAFETY: the elements are floating-point numbers.
            let mut lanes = [unsafe { std::mem::zeroed::<V::Elem>() }; 16];
            // SAFETY: the caller checked the instruction set; no vector has more lanes than these.
            unsafe { v.store(lanes.as_mut_ptr()) };
            lanes[lane].into()
        };
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for bits in 0..=u16::MAX {
            let lane = usize::from(bits) % V::LANES;
            let mut halves = [0_u16; 32];
            halves[lane] = bits;
            // SAFETY: as above; these are as many as any vector reads.
            let found = number(unsafe { V::f16(halves.as_ptr().cast()) }, lane);
            assert!(same(found, half::f16::from_bits(bits).to_f64()), "{bits:x}: {found}");
            let expected = half::bf16::from_bits(bits).to_f64();
            for high in [false, true] {
                let mut words = [0x1234_5678_u32; 16];
                words[lane] =
                    if high { u32::from(bits) << 16 | 0x4321 } else { 0x4321 << 16 | u32::from(bits) };
                // SAFETY: as above.
                let found = number(unsafe { V::bf16(words.as_ptr().cast(), high) }, lane);
                assert!(same(found, expected), "{bits:x}: {found}");
            }
            let mut bytes = [0_i8; 16];
            bytes[lane] = bits as i8;
            // SAFETY: as above.
            assert_eq!(number(unsafe { V::i8(bytes.as_ptr().cast()) }, lane), f64::from(bits as i8));
        }
    }

    #[test]
    fn packed_weights_are_read_as_the_numbers_they_stand_for() {
        check_packed::<Lanes<f32, 4, false>>();
        check_packed::<Lanes<f64, 2, true>>();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::*;
            if crate::Isa::Avx2.is_available() {
                check_packed::<__m256>();
                check_packed::<__m256d>();
            }
            if crate::Isa::Avx512.is_available() {
                check_packed::<__m512>();
                check_packed::<__m512d>();
            }
        }
    }

    fn check64<V: Vector<Elem = f64>>() {
        let x: Vec<f64> = (0..400).map(f64::from).collect();
        for n in 0..=V::LANES {
            let mut y = vec![-1.0; V::LANES + 1];
            // SAFETY: the caller checked the instruction set; x and y are long enough.
            unsafe { V::load_part(x.as_ptr().add(1), n).add(V::splat(0.5)).store_part(y.as_mut_ptr(), n) };
            for (i, &y) in y.iter().enumerate() {
                assert_eq!(y, if i < n { i as f64 + 1.5 } else { -1.0 });
            }
        }
        let b = V::BLOCK;
        let mut y = vec![0.0; 400];
        // SAFETY: as above; a block of at most 8 with rows 20 apart is within 400 values.
        unsafe { V::transpose(x.as_ptr(), 20, y.as_mut_ptr(), 11) };
        for (i, j) in (0..b).flat_map(|i| (0..b).map(move |j| (i, j))) {
            assert_eq!(y[j * 11 + i], x[i * 20 + j]);
        }
    }

    #[test]
    fn parts_touch_no_other_lane_and_blocks_are_transposed() {
        check::<Lanes<f32, 4, false>>();
        check64::<Lanes<f64, 2, false>>();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::*;
            if crate::Isa::Avx2.is_available() {
                check::<__m256>();
                check64::<__m256d>();
            }
            if crate::Isa::Avx512.is_available() {
                check::<__m512>();
                check64::<__m512d>();
            }
        }
    }
}
