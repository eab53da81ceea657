//! Sizes, which must not wrap: kernels read and write without further checks where the sizes of a spec fit its views.

/// The product of a spec's sizes. Panics if it does not fit a `usize`, or would not if none of them were 0: so the
/// product of any of them fits too.
#[track_caller]
pub(crate) fn size(name: &str, factors: &[usize]) -> usize {
    match factors.iter().try_fold(1_usize, |product, &factor| product.checked_mul(factor.max(1))) {
        Some(_) if factors.contains(&0) => 0,
        Some(product) => product,
        None => panic!("{name}: the product of the sizes {factors:?} overflows"),
    }
}

/// count·step + rest: how far so many steps and a rest reach. Panics if that does not fit a `usize`.
#[track_caller]
pub(crate) fn reach(name: &str, count: usize, step: usize, rest: usize) -> usize {
    match count.checked_mul(step).and_then(|steps| steps.checked_add(rest)) {
        Some(reach) => reach,
        None => panic!("{name}: {count} steps of {step} and {rest} more overflow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_fit_are_exact() {
        assert_eq!(size("test", &[]), 1);
        assert_eq!(size("test", &[3, 4, 5]), 60);
        assert_eq!(size("test", &[3, 0, 5]), 0);
        assert_eq!(size("test", &[usize::MAX, 0]), 0);
        assert_eq!(reach("test", 3, 4, 5), 17);
    }

    #[test]
    #[should_panic(expected = "test: the product of the sizes")]
    fn a_zero_does_not_hide_an_overflow() {
        size("test", &[1 << (usize::BITS - 1), 2, 0]);
    }

    #[test]
    #[should_panic(expected = "steps of 2 and 0 more overflow")]
    fn a_product_that_wraps_is_refused() {
        reach("test", 1 << (usize::BITS - 1), 2, 0);
    }

    #[test]
    #[should_panic(expected = "1 steps of 1 and")]
    fn a_sum_that_wraps_is_refused() {
        reach("test", 1, 1, usize::MAX);
    }
}
