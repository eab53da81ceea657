use nn_kernels::{Cpu, Device, Pod};

use crate::Dim;
use crate::region::Region;
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
    type Slices<'a, E: Pod>: Copy;

    /// Shows how many values each slice has.
    fn lens<E: Pod>(slices: Self::Slices<'_, E>, see: &mut impl FnMut(usize));
    /// Those of the samples `from..to`, of `samples`.
    fn part<E: Pod>(
        slices: Self::Slices<'_, E>,
        samples: usize,
        from: usize,
        to: usize,
    ) -> Self::Slices<'_, E>;
    /// The slices as tensors of the device, in `room` if they must be copied.
    fn bring<'a, 's: 'a, D: Device>(
        device: &D,
        slices: Self::Slices<'s, D::Elem>,
        room: &mut Region<'a, D>,
    ) -> Tensors<'a, D>;
    /// Slices of the first tensors, in `room` if they must be copied, and the tensors that are left.
    fn fetch<'a, D: Device>(
        device: &D,
        tensors: Tensors<'a, D>,
        room: &mut Region<'a, Cpu<f32>>,
    ) -> (Self::Slices<'a, D::Elem>, Tensors<'a, D>);
}

/// What belongs to the samples `from..to`, of `samples`.
#[inline(always)]
pub(crate) fn part<T>(slice: &[T], samples: usize, from: usize, to: usize) -> &[T] {
    let each = slice.len() / samples.max(1);
    slice.get(from * each..to * each).unwrap_or(&[])
}

#[inline(always)]
fn bring<'a, D: Device, T: Pod>(device: &D, slice: &'a [T], room: &mut Region<'a, D>) -> D::View<'a, T> {
    device.bring(slice, if D::HOST { D::empty_mut() } else { room.take(slice.len()) })
}

#[inline(always)]
fn fetch<'a, D: Device, T: Pod>(
    device: &D,
    view: D::View<'a, T>,
    room: &mut Region<'a, Cpu<f32>>,
) -> &'a [T] {
    device.fetch(view, if D::HOST { &mut [] } else { room.take(D::len(view)) })
}

macro_rules! one_tensor {
    ($([$($p:ident: $bound:path),*] $signature:ty, $value:ty, $tensors:ident, $get:ident;)*) => {$(
        impl<$($p: $bound),*> Host for $signature {
            type Slices<'a, E: Pod> = &'a [$value];
            #[inline(always)]
            fn lens<E: Pod>(slice: Self::Slices<'_, E>, see: &mut impl FnMut(usize)) {
                see(slice.len());
            }
            #[inline(always)]
            fn part<E: Pod>(
                slice: Self::Slices<'_, E>,
                samples: usize,
                from: usize,
                to: usize,
            ) -> Self::Slices<'_, E> {
                part(slice, samples, from, to)
            }
            #[inline(always)]
            fn bring<'a, 's: 'a, M: Device>(
                device: &M,
                slice: Self::Slices<'s, M::Elem>,
                room: &mut Region<'a, M>,
            ) -> Tensors<'a, M> {
                Tensors::$tensors(bring(device, slice, room))
            }
            #[inline(always)]
            fn fetch<'a, M: Device>(
                device: &M,
                tensors: Tensors<'a, M>,
                room: &mut Region<'a, Cpu<f32>>,
            ) -> (Self::Slices<'a, M::Elem>, Tensors<'a, M>) {
                (fetch(device, tensors.$get(0), room), tensors.after_first())
            }
        }
    )*};
}
one_tensor! {
    [] S0, E, real, get;
    [A: Dim] S1<A>, E, real, get;
    [A: Dim, B: Dim] S2<A, B>, E, real, get;
    [A: Dim, B: Dim, C: Dim] S3<A, B, C>, E, real, get;
    [A: Dim, B: Dim, C: Dim, F: Dim] S4<A, B, C, F>, E, real, get;
    [A: Dim, B: Dim, C: Dim, F: Dim, G: Dim] S5<A, B, C, F, G>, E, real, get;
    [A: Dim, B: Dim, C: Dim, F: Dim, G: Dim, H: Dim] S6<A, B, C, F, G, H>, E, real, get;
    [S: Signature] Ids<S>, u32, ids, get_ids;
}

macro_rules! tuples {
    ($([$($t:ident)*])*) => {$(
        #[allow(non_snake_case, reason = "a variable for each type")]
        impl<$($t: Host),*> Host for ($($t,)*) {
            type Slices<'a, E: Pod> = ($($t::Slices<'a, E>,)*);
            #[inline(always)]
            fn lens<E: Pod>(slices: Self::Slices<'_, E>, see: &mut impl FnMut(usize)) {
                let ($($t,)*) = slices;
                $($t::lens::<E>($t, see);)*
            }
            #[inline(always)]
            fn part<E: Pod>(
                slices: Self::Slices<'_, E>,
                samples: usize,
                from: usize,
                to: usize,
            ) -> Self::Slices<'_, E> {
                let ($($t,)*) = slices;
                ($($t::part::<E>($t, samples, from, to),)*)
            }
            #[inline(always)]
            fn bring<'a, 's: 'a, M: Device>(
                device: &M,
                slices: Self::Slices<'s, M::Elem>,
                room: &mut Region<'a, M>,
            ) -> Tensors<'a, M> {
                let ($($t,)*) = slices;
                Tensors::EMPTY$(.join($t::bring(device, $t, room)))*
            }
            #[inline(always)]
            fn fetch<'a, M: Device>(
                device: &M,
                tensors: Tensors<'a, M>,
                room: &mut Region<'a, Cpu<f32>>,
            ) -> (Self::Slices<'a, M::Elem>, Tensors<'a, M>) {
                $(let ($t, tensors) = $t::fetch(device, tensors, room);)*
                (($($t,)*), tensors)
            }
        }
    )*};
}
tuples! { [A] [A B] [A B C] [A B C F] [A B C F G] [A B C F G H] }
