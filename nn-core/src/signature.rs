use crate::dims::{Dim, Dims};
use crate::{Size, Text};
use std::marker::PhantomData;

/// The most tensors a signature can have.
pub const MAX_TENSORS: usize = 6;

/// What a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device's floating-point elements.
    Real,
    /// Indices (`u32`): they have no gradient.
    Ids,
}

/// One tensor of a signature.
#[derive(Clone, Copy, Debug)]
pub struct TensorType {
    /// Its dimensions, without the batch.
    pub dims: Dims,
    /// What it holds.
    pub kind: Kind,
}

/// What a layer takes or gives, as a value: a list of tensors.
///
/// Two signatures are the same if these are, whatever types they came from.
#[derive(Clone, Copy, Debug)]
pub struct Sig {
    len: usize,
    tensors: [TensorType; MAX_TENSORS],
    poison: bool,
}

impl Sig {
    /// No tensor: what a layer without inputs takes.
    pub const NONE: Self = Self {
        len: 0,
        tensors: [TensorType { dims: Dims::of([]), kind: Kind::Real }; MAX_TENSORS],
        poison: false,
    };

    /// What can't be known because of a fault further up; every layer accepts it in silence.
    pub const POISON: Self = Self { poison: true, ..Self::NONE };

    /// One tensor of real numbers. Impossible dimensions make it [`Sig::POISON`].
    pub const fn real(dims: Dims) -> Self {
        Self::one(TensorType { dims, kind: Kind::Real })
    }

    /// One tensor of indices.
    pub const fn ids(dims: Dims) -> Self {
        Self::one(TensorType { dims, kind: Kind::Ids })
    }

    /// One tensor.
    pub const fn one(tensor: TensorType) -> Self {
        let mut sig = Self::NONE;
        sig.len = 1;
        sig.tensors[0] = tensor;
        sig.poison = tensor.dims.is_poison();
        sig
    }

    /// These tensors, then those.
    pub const fn join(mut self, other: &Self) -> Self {
        assert!(self.len + other.len <= MAX_TENSORS, "a signature has at most 6 tensors");
        let mut i = 0;
        while i < other.len {
            self.tensors[self.len] = other.tensors[i];
            self.len += 1;
            i += 1;
        }
        self.poison |= other.poison;
        self
    }

    /// How many tensors there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tensors.
    pub const fn tensors(&self) -> &[TensorType] {
        self.tensors.split_at(self.len).0
    }

    /// The dimensions of tensor `i`; those of a scalar if there is no such tensor, so that constants that
    /// follow from them stay total.
    pub const fn dims(&self, i: usize) -> Dims {
        if i < self.len { self.tensors[i].dims } else { Dims::of([]) }
    }

    /// Tensor `i` alone; [`Sig::POISON`] if there is no such tensor.
    pub const fn nth(&self, i: usize) -> Self {
        if i < self.len { Self::one(self.tensors[i]) } else { Self::POISON }
    }

    /// Whether a fault further up left this unknown.
    pub const fn is_poison(&self) -> bool {
        self.poison
    }

    /// Whether an axis of a tensor is known only up to a bound.
    pub const fn is_bounded(&self) -> bool {
        let mut i = 0;
        while i < self.len {
            if self.tensors[i].dims.is_bounded() {
                return true;
            }
            i += 1;
        }
        false
    }

    /// Whether both are the same list of tensors.
    pub const fn same(&self, other: &Self) -> bool {
        if self.len != other.len {
            return false;
        }
        let mut i = 0;
        while i < self.len {
            let (a, b) = (&self.tensors[i], &other.tensors[i]);
            if a.kind as u8 != b.kind as u8 || !a.dims.same(&b.dims) {
                return false;
            }
            i += 1;
        }
        true
    }

    /// Whether they are the same but for what is bounded.
    pub(crate) const fn same_at_bounds(&self, other: &Self) -> bool {
        if self.len != other.len {
            return false;
        }
        let mut i = 0;
        while i < self.len {
            let (a, b) = (&self.tensors[i], &other.tensors[i]);
            if a.kind as u8 != b.kind as u8 || a.dims.rank() != b.dims.rank() {
                return false;
            }
            let mut axis = 0;
            while axis < a.dims.rank() {
                if a.dims.n(axis) != b.dims.n(axis) {
                    return false;
                }
                axis += 1;
            }
            i += 1;
        }
        true
    }

    /// The memory its tensors take.
    pub const fn size(&self) -> Size {
        let mut size = Size::ZERO;
        let mut i = 0;
        while i < self.len {
            let n = self.tensors[i].dims.numel();
            size = size.plus(match self.tensors[i].kind {
                Kind::Real => Size::elements(n),
                Kind::Ids => Size::bytes(n.saturating_mul(4)),
            });
            i += 1;
        }
        size
    }

    /// Appends it to a text: `[3, 4]`, `ids [12]`, `([3, 4], [5])`, `nothing`.
    pub const fn write(&self, text: Text) -> Text {
        if self.len == 0 {
            return text.str("nothing");
        }
        let mut text = if self.len == 1 { text } else { text.str("(") };
        let mut i = 0;
        while i < self.len {
            if i > 0 {
                text = text.str(", ");
            }
            if matches!(self.tensors[i].kind, Kind::Ids) {
                text = text.str("ids ");
            }
            text = self.tensors[i].dims.write(text);
            i += 1;
        }
        if self.len == 1 { text } else { text.str(")") }
    }
}

impl std::fmt::Display for Sig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.write(Text::new()).as_str())
    }
}

/// A type that stands for a list of tensors: [`T!`](crate::T)`[..]`, [`Ids`], a tuple of them, or the
/// values inside a module.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    note = "write `T![64, 10]` for a tensor, `Ids<T![64]>` for indices, and tuples of them"
)]
pub trait Signature: 'static {
    /// The list.
    const SIG: Sig;
}

/// A tensor of indices (`u32`), as an embedding takes.
#[derive(Clone, Copy, Debug)]
pub struct Ids<S>(PhantomData<S>);
impl<S: Signature> Signature for Ids<S> {
    const SIG: Sig = Sig::ids(S::SIG.dims(0));
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident [$($d:ident)*])*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<$($d),*>(PhantomData<($($d,)*)>);
        impl<$($d: Dim),*> Signature for $name<$($d),*> {
            const SIG: Sig = Sig::real(Dims::new(&[$($d::EXTENT),*]));
        }
    )*};
}
shapes! {
    /// One number a sample.
    S0 []
    /// A vector a sample.
    S1 [A]
    /// A matrix a sample.
    S2 [A B]
    /// A tensor of three axes a sample.
    S3 [A B E]
    /// A tensor of four axes a sample.
    S4 [A B E F]
    /// A tensor of five axes a sample.
    S5 [A B E F G]
    /// A tensor of six axes a sample.
    S6 [A B E F G H]
}

macro_rules! tuples {
    ($([$($t:ident)*])*) => {$(
        impl<$($t: Signature),*> Signature for ($($t,)*) {
            const SIG: Sig = Sig::NONE$(.join(&$t::SIG))*;
        }
    )*};
}
tuples! { [] [A] [A B] [A B E] [A B E F] [A B E F G] [A B E F G H] }

/// The shape of a tensor, without the batch: `T![1, 28, 28]`. An axis of at most 512 is `T![..512, 384]`; where there is
/// a second run-time length, as that of the keys in cross-attention, it has a number: `T![..64 @ 1, 384]`.
///
/// ```
/// use nn::{Signature, T};
/// assert_eq!(<T![..512, 384]>::SIG.to_string(), "[..512, 384]");
/// assert_eq!(<(T![..8, 4], T![..64 @ 1, 4])>::SIG.to_string(), "([..8, 4], [..64 @ 1, 4])");
/// assert_eq!(<(T![3], nn::Ids<T![4, 5]>)>::SIG.to_string(), "([3], ids [4, 5])");
/// ```
#[macro_export]
macro_rules! T {
    (@ [$($done:ty),*]) => { $crate::__shape!($($done),*) };
    (@ [$($done:ty),*] ..$n:literal @ $tag:literal $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>, $tag>] $($($rest)*)?) };
    (@ [$($done:ty),*] ..$n:ident @ $tag:literal $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>, $tag>] $($($rest)*)?) };
    (@ [$($done:ty),*] ..$n:block @ $tag:literal $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>, $tag>] $($($rest)*)?) };
    (@ [$($done:ty),*] ..$n:literal $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>>] $($($rest)*)?) };
    (@ [$($done:ty),*] ..$n:ident $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>>] $($($rest)*)?) };
    (@ [$($done:ty),*] ..$n:block $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::UpTo<$crate::C<$n>>] $($($rest)*)?) };
    (@ [$($done:ty),*] $n:literal $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::C<$n>] $($($rest)*)?) };
    (@ [$($done:ty),*] $n:block $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::C<$n>] $($($rest)*)?) };
    (@ [$($done:ty),*] $n:expr $(, $($rest:tt)*)?) => { $crate::T!(@ [$($done,)* $crate::C<{ $n }>] $($($rest)*)?) };
    ($($all:tt)*) => { $crate::T!(@ [] $($all)*) };
}

/// Picks the shape type for a number of axes.
#[doc(hidden)]
#[macro_export]
macro_rules! __shape {
    () => { $crate::S0 };
    ($a:ty) => { $crate::S1<$a> };
    ($a:ty, $b:ty) => { $crate::S2<$a, $b> };
    ($a:ty, $b:ty, $c:ty) => { $crate::S3<$a, $b, $c> };
    ($a:ty, $b:ty, $c:ty, $d:ty) => { $crate::S4<$a, $b, $c, $d> };
    ($a:ty, $b:ty, $c:ty, $d:ty, $e:ty) => { $crate::S5<$a, $b, $c, $d, $e> };
    ($a:ty, $b:ty, $c:ty, $d:ty, $e:ty, $f:ty) => { $crate::S6<$a, $b, $c, $d, $e, $f> };
}
