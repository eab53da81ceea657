use nn_kernels::Cpu;
use nn_kernels::cpu::Real;

use crate::Dim;
use crate::signature::{Ids, S0, S1, S2, S3, S4, S5, S6, Signature};
use crate::tensors::Tensors;

/// A signature whose values can be given as slices: `&[f32]` for a tensor, `&[u32]` for indices, and tuples
/// of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be given as slices",
    note = "a model's input and output are `T![..]`, `Ids<T![..]>`, or a tuple of them"
)]
pub trait Host: Signature {
    /// The slices, one for each tensor, batch first.
    type Slices<'a, E: Real>: Copy;

    /// Views of the slices.
    fn tensors<E: Real>(slices: Self::Slices<'_, E>) -> Tensors<'_, Cpu<E>>;
    /// Slices of the first tensors, and the tensors that are left.
    fn slices<'a, E: Real>(tensors: Tensors<'a, Cpu<E>>) -> (Self::Slices<'a, E>, Tensors<'a, Cpu<E>>);
}

macro_rules! shapes {
    ($($name:ident [$($d:ident)*])*) => {$(
        impl<$($d: Dim),*> Host for $name<$($d),*> {
            type Slices<'a, E: Real> = &'a [E];
            #[inline(always)]
            fn tensors<E: Real>(slices: Self::Slices<'_, E>) -> Tensors<'_, Cpu<E>> {
                Tensors::real(slices)
            }
            #[inline(always)]
            fn slices<'a, E: Real>(tensors: Tensors<'a, Cpu<E>>) -> (Self::Slices<'a, E>, Tensors<'a, Cpu<E>>) {
                (tensors.get(0), tensors.after_first())
            }
        }
    )*};
}
shapes! { S0 [] S1 [A] S2 [A B] S3 [A B C] S4 [A B C F] S5 [A B C F G] S6 [A B C F G H] }

impl<S: Signature> Host for Ids<S> {
    type Slices<'a, E: Real> = &'a [u32];
    #[inline(always)]
    fn tensors<E: Real>(slices: Self::Slices<'_, E>) -> Tensors<'_, Cpu<E>> {
        Tensors::ids(slices)
    }
    #[inline(always)]
    fn slices<'a, E: Real>(tensors: Tensors<'a, Cpu<E>>) -> (Self::Slices<'a, E>, Tensors<'a, Cpu<E>>) {
        (tensors.get_ids(0), tensors.after_first())
    }
}

macro_rules! tuples {
    ($([$($t:ident)*])*) => {$(
        impl<$($t: Host),*> Host for ($($t,)*) {
            type Slices<'a, E: Real> = ($($t::Slices<'a, E>,)*);
            #[allow(non_snake_case, reason = "a variable for each type")]
            #[inline(always)]
            fn tensors<E: Real>(slices: Self::Slices<'_, E>) -> Tensors<'_, Cpu<E>> {
                let ($($t,)*) = slices;
                Tensors::EMPTY$(.join($t::tensors::<E>($t)))*
            }
            #[allow(non_snake_case, reason = "a variable for each type")]
            #[inline(always)]
            fn slices<'a, E: Real>(tensors: Tensors<'a, Cpu<E>>) -> (Self::Slices<'a, E>, Tensors<'a, Cpu<E>>) {
                $(let ($t, tensors) = $t::slices::<E>(tensors);)*
                (($($t,)*), tensors)
            }
        }
    )*};
}
tuples! { [A] [A B] [A B C] [A B C F] [A B C F G] [A B C F G H] }
