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

/// Exact powers up to 10²², so that one rounding is left: the nearest number, as a literal gives, as long as
/// M has at most 15 digits and |E| ≤ 22.
const fn scientific(m: i64, e: i32) -> f64 {
    let mut power = 1.0;
    let mut left = e.unsigned_abs();
    while left > 0 {
        power *= 10.0;
        left -= 1;
    }
    if e < 0 { m as f64 / power } else { m as f64 * power }
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
    }
}
