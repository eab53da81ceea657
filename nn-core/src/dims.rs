use crate::Text;
use std::marker::PhantomData;

/// The most axes a tensor can have.
pub const MAX_RANK: usize = 6;
/// How many independent run-time lengths a model can have: the tags of [`UpTo`].
pub const MAX_LENGTHS: usize = 4;

/// A dimension as a type.
///
/// [`C<N>`](C) is a number, every typenum unsigned integer is one too, and [`Plus`], [`Minus`],
/// [`Times`] and [`Over`] compute with them, so derived dimensions need no unstable feature.
/// [`UpTo`] is known only up to a bound until the model is called.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dimension",
    note = "write a number, a `const` parameter, or arithmetic with them in braces: `{{4 * D}}`"
)]
pub trait Dim: 'static {
    /// Its value and how it was come by.
    const EXTENT: Extent;
    /// Its value: the bound, if it is bounded; [`Extent::POISON`], if it is impossible.
    const N: usize = Self::EXTENT.n;
    /// The place of an argument that this number stands for.
    #[doc(hidden)]
    const STANDS_FOR: Option<usize> = None;
}

/// A dimension as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number, or the bound.
    pub n: usize,
    /// `Some(tag)` if the length is known only when the model is called.
    pub length: Option<u8>,
    /// Why the number is impossible, if it is.
    pub why: Option<Impossible>,
}

/// Why a computed dimension is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Impossible {
    /// A quotient with a remainder.
    NotWhole(usize, usize),
    /// A difference below zero.
    Negative(usize, usize),
    /// More than a `usize` holds.
    Overflow,
    /// Arithmetic on a bounded dimension.
    Bounded,
    /// An alias that does not pass its parameters on as they are.
    Alias,
    /// The tag of a bounded dimension that is none.
    Tag(u8),
}

impl Extent {
    /// Stands for a number that is impossible.
    pub const POISON: usize = usize::MAX;

    /// A plain number.
    pub const fn new(n: usize) -> Self {
        Self { n, length: None, why: None }
    }

    /// An impossible number, with the reason.
    pub const fn impossible(why: Impossible) -> Self {
        Self { n: Self::POISON, length: None, why: Some(why) }
    }

    /// Whether the number is impossible.
    pub const fn is_poison(&self) -> bool {
        self.n == Self::POISON
    }

    /// Same number, same kind.
    pub const fn same(&self, other: &Self) -> bool {
        self.n == other.n
            && match (self.length, other.length) {
                (None, None) => true,
                (Some(a), Some(b)) => a == b,
                _ => false,
            }
    }

    const fn binary(self, other: Self, result: Self) -> Self {
        if self.is_poison() {
            self
        } else if other.is_poison() {
            other
        } else if self.length.is_some() || other.length.is_some() {
            Self::impossible(Impossible::Bounded)
        } else {
            result
        }
    }

    const fn checked(n: Option<usize>) -> Self {
        match n {
            Some(n) if n != Self::POISON => Self::new(n),
            _ => Self::impossible(Impossible::Overflow),
        }
    }

    /// a + b.
    pub const fn plus(self, other: Self) -> Self {
        self.binary(other, Self::checked(self.n.checked_add(other.n)))
    }
    /// a − b; impossible below zero.
    pub const fn minus(self, other: Self) -> Self {
        let result = if self.n < other.n {
            Self::impossible(Impossible::Negative(self.n, other.n))
        } else {
            Self::new(self.n - other.n)
        };
        self.binary(other, result)
    }
    /// a·b.
    pub const fn times(self, other: Self) -> Self {
        self.binary(other, Self::checked(self.n.checked_mul(other.n)))
    }
    /// a / b; impossible if there is a remainder.
    pub const fn over(self, other: Self) -> Self {
        let result = if other.n == 0 || !self.n.is_multiple_of(other.n) {
            Self::impossible(Impossible::NotWhole(self.n, other.n))
        } else {
            Self::new(self.n / other.n)
        };
        self.binary(other, result)
    }

    /// Appends it to a text: `64`, `..512`, `..512 @ 1` for the tag 1, `?`.
    pub const fn write(&self, text: Text) -> Text {
        match self.length {
            _ if self.is_poison() => text.str("?"),
            None => text.num(self.n),
            Some(0) => text.str("..").num(self.n),
            Some(tag) => text.str("..").num(self.n).str(" @ ").num(tag as usize),
        }
    }
}

impl Impossible {
    /// Appends the reason to a text.
    pub const fn write(&self, text: Text) -> Text {
        match *self {
            Self::NotWhole(a, b) => text.num(a).str(" / ").num(b).str(" is not a whole number"),
            Self::Negative(a, b) => text.num(a).str(" - ").num(b).str(" is below zero"),
            Self::Overflow => text.str("the number is too large"),
            Self::Tag(tag) => {
                text.str("the tag of `UpTo` is ").num(tag as usize).str(", not one of 0, 1, 2 and 3")
            }
            Self::Bounded => text.str("a bounded dimension can't be computed with"),
            Self::Alias => text
                .str("an alias must pass its parameters on to the layer, each once and in the layer's order"),
        }
    }
}

/// The dimension `N`.
#[derive(Clone, Copy, Debug)]
pub struct C<const N: usize>;
impl<const N: usize> Dim for C<N> {
    const EXTENT: Extent = if N > PLACE - PLACES && N <= PLACE {
        Extent::impossible(Impossible::Alias)
    } else {
        Extent::checked(Some(N))
    };
    const STANDS_FOR: Option<usize> = PLACE.checked_sub(N);
}

/// What stands for an argument that is yet to be computed: this number less the argument's place. It is no one's dimension.
const PLACE: usize = usize::MAX / 7 * 5;

/// The number that stands for the argument in place `i` until it is computed.
pub const fn place(i: usize) -> usize {
    PLACE - i
}

/// No layer has as many arguments.
const PLACES: usize = 64;

/// `T` in the place `I` of the arguments `Old` stood in.
#[derive(Clone, Copy, Debug)]
pub struct Placed<const I: usize, T, Old>(PhantomData<(T, Old)>);
impl<const I: usize, T: Dim, Old: Dim> Dim for Placed<I, T, Old> {
    const EXTENT: Extent = match Old::STANDS_FOR {
        Some(place) if place == I => T::EXTENT,
        _ => Extent::impossible(Impossible::Alias),
    };
}
impl<T: typenum::Unsigned + 'static> Dim for T {
    const EXTENT: Extent = Extent::checked(Some(T::USIZE));
}

macro_rules! arithmetic {
    ($($(#[$doc:meta])* $name:ident $method:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<A, B>(PhantomData<(A, B)>);
        impl<A: Dim, B: Dim> Dim for $name<A, B> {
            const EXTENT: Extent = A::EXTENT.$method(B::EXTENT);
        }
    )*};
}
arithmetic! {
    /// The sum of two dimensions.
    Plus plus
    /// The difference of two dimensions.
    Minus minus
    /// The product of two dimensions.
    Times times
    /// The quotient of two dimensions, which must be whole.
    Over over
}

/// A dimension of which only a bound is known: memory is planned for the bound, the length is part of
/// the call, and only that much is computed. Dimensions with the same `TAG` share a length.
#[derive(Clone, Copy, Debug)]
pub struct UpTo<N, const TAG: u8 = 0>(PhantomData<N>);
impl<N: Dim, const TAG: u8> Dim for UpTo<N, TAG> {
    const EXTENT: Extent = if TAG as usize >= MAX_LENGTHS {
        Extent::impossible(Impossible::Tag(TAG))
    } else {
        Extent { n: N::EXTENT.n, length: Some(TAG), why: N::EXTENT.why }
    };
}

/// The dimensions of one tensor, without the batch.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    rank: usize,
    axes: [Extent; MAX_RANK],
}

impl Dims {
    /// From the axes; at most [`MAX_RANK`] of them.
    pub const fn new(axes: &[Extent]) -> Self {
        assert!(axes.len() <= MAX_RANK, "a tensor has at most 6 axes, not counting the batch");
        let mut all = [Extent::new(1); MAX_RANK];
        let mut i = 0;
        while i < axes.len() {
            all[i] = axes[i];
            i += 1;
        }
        Self { rank: axes.len(), axes: all }
    }

    /// From plain numbers.
    pub const fn of<const R: usize>(axes: [usize; R]) -> Self {
        let mut all = [Extent::new(1); MAX_RANK];
        let mut i = 0;
        while i < R {
            all[i] = Extent::checked(Some(axes[i]));
            i += 1;
        }
        Self { rank: R, axes: all }
    }

    /// How many axes there are.
    #[inline(always)]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// One axis. Panics if there is no such axis.
    pub const fn axis(&self, i: usize) -> Extent {
        assert!(i < self.rank, "no such axis");
        self.axes[i]
    }

    /// The number or bound on an axis. Panics if there is no such axis.
    pub const fn n(&self, i: usize) -> usize {
        self.axis(i).n
    }

    /// The number or bound on an axis; 1 if there is no such axis, so that constants that follow from it stay
    /// total.
    pub const fn n_or_one(&self, i: usize) -> usize {
        if i < self.rank { self.axes[i].n } else { 1 }
    }

    /// The last axis; 1 for a scalar.
    pub const fn last(&self) -> Extent {
        if self.rank == 0 { Extent::new(1) } else { self.axes[self.rank - 1] }
    }

    /// The same with another last axis; a scalar gains one.
    pub const fn with_last(mut self, n: Extent) -> Self {
        if self.rank == 0 {
            self.rank = 1;
        }
        self.axes[self.rank - 1] = n;
        self
    }

    /// The same with another axis `i`. Panics if there is no such axis.
    pub const fn with(mut self, i: usize, n: Extent) -> Self {
        assert!(i < self.rank, "no such axis");
        self.axes[i] = n;
        self
    }

    /// The same with one more axis at the end.
    pub const fn push(mut self, n: Extent) -> Self {
        assert!(self.rank < MAX_RANK, "a tensor has at most 6 axes, not counting the batch");
        self.axes[self.rank] = n;
        self.rank += 1;
        self
    }

    /// The product of all axes, bounded ones at their bound; [`Extent::POISON`] if one is impossible.
    pub const fn numel(&self) -> usize {
        self.product(0, self.rank).n
    }

    /// The product of the axes `from..to`, bounded ones at their bound.
    pub const fn product(&self, from: usize, to: usize) -> Extent {
        let mut n = Extent::new(1);
        let mut i = from;
        while i < to {
            n = n.times(Extent { n: self.axes[i].n, length: None, why: self.axes[i].why });
            i += 1;
        }
        n
    }

    /// Elements of one sample, given the lengths of the bounded axes.
    #[inline(always)]
    pub const fn numel_at(&self, lengths: &[usize; MAX_LENGTHS]) -> usize {
        let mut n = 1;
        let mut i = 0;
        while i < self.rank {
            n *= self.axis_at(i, lengths);
            i += 1;
        }
        n
    }

    /// One axis, given the lengths of the bounded ones.
    #[inline(always)]
    pub const fn axis_at(&self, i: usize, lengths: &[usize; MAX_LENGTHS]) -> usize {
        match self.axes[i].length {
            Some(tag) => lengths[tag as usize],
            None => self.axes[i].n,
        }
    }

    /// Whether an axis is known only up to a bound.
    pub const fn is_bounded(&self) -> bool {
        let mut i = 0;
        while i < self.rank {
            if self.axes[i].length.is_some() {
                return true;
            }
            i += 1;
        }
        false
    }

    /// Whether an axis is impossible.
    pub const fn is_poison(&self) -> bool {
        let mut i = 0;
        while i < self.rank {
            if self.axes[i].is_poison() {
                return true;
            }
            i += 1;
        }
        false
    }

    /// Whether rank and all axes are the same.
    pub const fn same(&self, other: &Self) -> bool {
        if self.rank != other.rank {
            return false;
        }
        let mut i = 0;
        while i < self.rank {
            if !self.axes[i].same(&other.axes[i]) {
                return false;
            }
            i += 1;
        }
        true
    }

    /// Appends them to a text: `[1, 28, 28]`.
    pub const fn write(&self, text: Text) -> Text {
        let mut text = text.str("[");
        let mut i = 0;
        while i < self.rank {
            if i > 0 {
                text = text.str(", ");
            }
            text = self.axes[i].write(text);
            i += 1;
        }
        text.str("]")
    }

    /// The axes as plain numbers, bounded ones at their bound.
    pub fn to_vec(&self) -> Vec<usize> {
        self.axes[..self.rank].iter().map(|a| a.n).collect()
    }
}

impl std::fmt::Display for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.write(Text::new()).as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use typenum::{Prod, U3, U64};

    #[test]
    fn typenum_and_const_dimensions_meet() {
        assert_eq!(<Prod<U3, U64> as Dim>::N, <Times<C<64>, C<3>> as Dim>::N);
    }

    #[test]
    fn impossible_numbers_are_poison_with_a_reason_and_stay_so() {
        type D = Over<C<10>, C<3>>;
        assert_eq!(<Plus<D, C<1>> as Dim>::EXTENT.why, Some(Impossible::NotWhole(10, 3)));
        assert!(<Plus<D, C<1>> as Dim>::EXTENT.is_poison());
        assert_eq!(<Minus<C<1>, C<2>> as Dim>::EXTENT.why, Some(Impossible::Negative(1, 2)));
        assert_eq!(<Over<C<1>, C<0>> as Dim>::EXTENT.why, Some(Impossible::NotWhole(1, 0)));
        assert_eq!(<Times<C<{ usize::MAX / 2 }>, C<3>> as Dim>::EXTENT.why, Some(Impossible::Overflow));
        assert_eq!(<Plus<UpTo<C<3>>, C<1>> as Dim>::EXTENT.why, Some(Impossible::Bounded));
    }

    #[test]
    fn bounded_and_fixed_differ_even_at_the_same_number() {
        let a = Dims::new(&[<UpTo<C<8>> as Dim>::EXTENT]);
        let b = Dims::new(&[<UpTo<C<8>, 1> as Dim>::EXTENT]);
        assert!(a.same(&a) && !a.same(&b) && !a.same(&Dims::of([8])));
        assert_eq!(a.numel_at(&[5, 0, 0, 0]), 5);
        assert_eq!(a.numel(), 8);
        assert_eq!(a.to_string(), "[..8]");
    }
}
