/// A real number as a type, for what a layer is told besides dimensions: an epsilon, a rate, a factor.
///
/// Inside `#[module]` and `sequential!` a literal will do: `LayerNorm<384, 1e-12>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number",
    note = "write a literal inside `#[module]` or `sequential!`, or `Sci<1, -5>` for 1e-5"
)]
pub trait Real: 'static {
    /// The value.
    const VALUE: f64;
    /// The type of its negative.
    type Negated: Real;
}

/// A [`Real`], or [`No`](crate::No): what a layer has only if it is told so.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a number nor `No`",
    note = "write a literal inside `#[module]` or `sequential!`, or `Sci<1, -5>` for 1e-5; or `No`"
)]
pub trait MaybeReal: 'static {
    /// The value, if there is one.
    const MAYBE: Option<f64>;
}

impl MaybeReal for crate::No {
    const MAYBE: Option<f64> = None;
}

impl<const M: i64, const E: i32> MaybeReal for Sci<M, E> {
    const MAYBE: Option<f64> = Some(scientific(M, E));
}

/// M·10ᴱ.
#[derive(Clone, Copy, Debug)]
pub struct Sci<const M: i64, const E: i32>;

/// −M·10ᴱ.
#[derive(Clone, Copy, Debug)]
pub struct NegativeSci<const M: i64, const E: i32>;

impl<const M: i64, const E: i32> Real for Sci<M, E> {
    const VALUE: f64 = scientific(M, E);
    type Negated = NegativeSci<M, E>;
}

impl<const M: i64, const E: i32> Real for NegativeSci<M, E> {
    const VALUE: f64 = -scientific(M, E);
    type Negated = Sci<M, E>;
}

/// M·10ᴱ rounded to the nearest number, ties to even: what the literal is.
const fn scientific(m: i64, e: i32) -> f64 {
    let size = m.unsigned_abs();
    let value = if size <= 1 << 53 && e >= -22 && e <= 22 {
        // Both are exact, so that one rounding is left.
        let (mut power, mut left) = (1.0, e.unsigned_abs());
        while left > 0 {
            power *= 10.0;
            left -= 1;
        }
        if e < 0 { size as f64 / power } else { size as f64 * power }
    } else {
        nearest(size, e)
    };
    if m < 0 { -value } else { value }
}

/// The same by long division, for `m` > 0.
const fn nearest(m: u64, e: i32) -> f64 {
    // Less than half the smallest number, or more than the largest.
    if m == 0 || e < -343 {
        return 0.0;
    }
    if e > 308 {
        return f64::INFINITY;
    }
    let (mut above, mut below) = (Natural::of(m), Natural::of(1));
    let mut left = e.unsigned_abs();
    while left > 0 {
        if e < 0 {
            below.times_ten();
        } else {
            above.times_ten();
        }
        left -= 1;
    }
    // As (above / below)·2^power, with a quotient from 1 to 2.
    let mut power = above.bits() as i32 - below.bits() as i32;
    if power < 0 {
        above.double(power.unsigned_abs());
    } else {
        below.double(power.unsigned_abs());
    }
    if above.is_less(&below) {
        power -= 1;
        above.double(1);
    }
    let digits = if power < -1022 { power + 1075 } else { 53 };
    if power > 1023 {
        return f64::INFINITY;
    }
    if digits < 0 {
        return 0.0;
    }
    let mut quotient: u64 = 0;
    let mut i = 0;
    while i < digits {
        quotient *= 2;
        if !above.is_less(&below) {
            above.subtract(&below);
            quotient += 1;
        }
        above.double(1);
        i += 1;
    }
    // What is left is now twice what was left: is it more than a whole, or just that?
    if below.is_less(&above) || (!above.is_less(&below) && quotient % 2 == 1) {
        quotient += 1;
    }
    // One too many carries over into the exponent, as it should.
    if power < -1022 {
        f64::from_bits(quotient)
    } else {
        f64::from_bits((((power + 1023) as u64) << 52) + (quotient - (1 << 52)))
    }
}

/// A natural number of up to 1280 bits, the lowest first: enough for 10³⁴³ and some more.
#[derive(Clone, Copy)]
struct Natural([u32; 40]);

impl Natural {
    const fn of(n: u64) -> Self {
        let mut words = [0; 40];
        words[0] = n as u32;
        words[1] = (n >> 32) as u32;
        Self(words)
    }

    const fn times_ten(&mut self) {
        let (mut carry, mut i) = (0, 0);
        while i < self.0.len() {
            let n = self.0[i] as u64 * 10 + carry;
            self.0[i] = n as u32;
            carry = n >> 32;
            i += 1;
        }
    }

    /// Times 2ⁿ.
    const fn double(&mut self, n: u32) {
        let (words, bits) = ((n / 32) as usize, n % 32);
        let mut i = self.0.len();
        while i > 0 {
            i -= 1;
            let high = if i >= words { self.0[i - words] as u64 } else { 0 };
            let low = if i > words { self.0[i - words - 1] as u64 } else { 0 };
            self.0[i] = ((((high << 32) | low) << bits) >> 32) as u32;
        }
    }

    /// How many there are, without leading zeros.
    const fn bits(&self) -> u32 {
        let mut i = self.0.len();
        while i > 0 {
            i -= 1;
            if self.0[i] != 0 {
                return i as u32 * 32 + 32 - self.0[i].leading_zeros();
            }
        }
        0
    }

    const fn is_less(&self, other: &Self) -> bool {
        let mut i = self.0.len();
        while i > 0 {
            i -= 1;
            if self.0[i] != other.0[i] {
                return self.0[i] < other.0[i];
            }
        }
        false
    }

    /// Minus one that is not larger.
    const fn subtract(&mut self, other: &Self) {
        let (mut borrow, mut i) = (false, 0);
        while i < self.0.len() {
            let (n, first) = self.0[i].overflowing_sub(other.0[i]);
            let (n, second) = n.overflowing_sub(borrow as u32);
            (self.0[i], borrow) = (n, first || second);
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_its_literal_is() {
        assert_eq!(Sci::<1, -5>::VALUE, 1e-5);
        assert_eq!(Sci::<1, -12>::VALUE, 1e-12);
        assert_eq!(<Sci<5, -1> as Real>::Negated::VALUE, -0.5);
        assert_eq!(Sci::<-3, 2>::VALUE, -300.0);
        assert_eq!(Sci::<7071067811865476, -16>::VALUE, std::f64::consts::FRAC_1_SQRT_2);
        assert_eq!(Sci::<141421356237309505, -17>::VALUE, std::f64::consts::SQRT_2);
        assert_eq!(Sci::<1, -45>::VALUE, 1e-45);
        assert_eq!(Sci::<5, -324>::VALUE, 5e-324);
    }

    #[test]
    fn whatever_the_macros_take_is_rounded_once() {
        use nn_kernels::philox::Philox;
        let mut rng = Philox::new(1, 2);
        let check = |m: i64, e: i32| {
            let expected: f64 = format!("{m}e{e}").parse().unwrap();
            assert_eq!(scientific(m, e).to_bits(), expected.to_bits(), "{m}e{e}");
        };
        for e in -400..400 {
            for _ in 0..if cfg!(miri) { 1 } else { 20 } {
                let digits = 10f64.powf(rng.uniform() * 18.0);
                check((digits as i64).clamp(1, 999_999_999_999_999_999), e);
            }
            check(1, e);
            check(-999_999_999_999_999_999, e);
        }
        // Halfway between two numbers, on the edge of the subnormal ones, and at the largest.
        for m in [9_007_199_254_740_993, 9_007_199_254_740_995, (1 << 59) + 64, (1 << 59) + 192] {
            check(m, 0);
        }
        for (m, e) in [
            (22_250_738_585_072_011, -324),
            (22_250_738_585_072_014, -324),
            (24_703_282_292_062_327, -340),
            (24_703_282_292_062_328, -340),
            (179_769_313_486_231_570, 291),
            (179_769_313_486_231_581, 291),
        ] {
            check(m, e);
        }
        assert_eq!(scientific(0, 999).to_bits(), 0);
    }
}
