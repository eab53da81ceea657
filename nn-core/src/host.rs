use nn_kernels::{Cpu, Device, Float, Pod, View};

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
        slices: Self::Slices<'s, D::Wide>,
        room: &mut Region<'a, D>,
    ) -> Tensors<'a, D>;
    /// Slices of the first tensors, in `room` if they must be copied, and the tensors that are left.
    fn fetch<'a, D: Device>(
        device: &D,
        tensors: Tensors<'a, D>,
        room: &mut Region<'a, Cpu<f32>>,
    ) -> (Self::Slices<'a, D::Wide>, Tensors<'a, D>);
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

/// The same of real numbers, as elements.
#[inline(always)]
fn bring_real<'a, D: Device>(device: &D, slice: &'a [D::Wide], room: &mut Region<'a, D>) -> View<'a, D> {
    let wide = bring(device, slice, room);
    if !D::MIXED {
        return D::elements(wide);
    }
    let mut elements = room.take(slice.len());
    device.narrow(wide, D::reborrow(&mut elements));
    D::freeze(elements)
}

#[inline(always)]
fn fetch<'a, D: Device, T: Pod>(
    device: &D,
    view: D::View<'a, T>,
    room: &mut Region<'a, Cpu<f32>>,
) -> &'a [T] {
    device.fetch(view, if D::HOST { &mut [] } else { room.take(D::len(view)) })
}

/// The same of elements, as real numbers.
#[inline(always)]
pub(crate) fn fetch_real<'a, D: Device>(
    device: &D,
    view: View<'a, D>,
    room: &mut Region<'a, Cpu<f32>>,
) -> &'a [D::Wide] {
    if !D::MIXED {
        return fetch(device, D::wide(view), room);
    }
    let elements = fetch(device, view, room);
    let wide = room.take::<D::Wide>(elements.len());
    for (to, from) in wide.iter_mut().zip(elements) {
        *to = D::Wide::from_f64(from.to_f64());
    }
    wide
}

macro_rules! one_tensor {
    ($([$($p:ident: $bound:path),*] $signature:ty, $value:ty, $tensors:ident, $get:ident, $bring:ident, $fetch:ident;)*) => {$(
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
                slice: Self::Slices<'s, M::Wide>,
                room: &mut Region<'a, M>,
            ) -> Tensors<'a, M> {
                Tensors::$tensors($bring(device, slice, room))
            }
            #[inline(always)]
            fn fetch<'a, M: Device>(
                device: &M,
                tensors: Tensors<'a, M>,
                room: &mut Region<'a, Cpu<f32>>,
            ) -> (Self::Slices<'a, M::Wide>, Tensors<'a, M>) {
                ($fetch(device, tensors.$get(0), room), tensors.after_first())
            }
        }
    )*};
}
one_tensor! {
    [] S0, E, real, get, bring_real, fetch_real;
    [A: Dim] S1<A>, E, real, get, bring_real, fetch_real;
    [A: Dim, B: Dim] S2<A, B>, E, real, get, bring_real, fetch_real;
    [A: Dim, B: Dim, C: Dim] S3<A, B, C>, E, real, get, bring_real, fetch_real;
    [A: Dim, B: Dim, C: Dim, F: Dim] S4<A, B, C, F>, E, real, get, bring_real, fetch_real;
    [A: Dim, B: Dim, C: Dim, F: Dim, G: Dim] S5<A, B, C, F, G>, E, real, get, bring_real, fetch_real;
    [A: Dim, B: Dim, C: Dim, F: Dim, G: Dim, H: Dim] S6<A, B, C, F, G, H>, E, real, get, bring_real, fetch_real;
    [S: Signature] Ids<S>, u32, ids, get_ids, bring, fetch;
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
                slices: Self::Slices<'s, M::Wide>,
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
            ) -> (Self::Slices<'a, M::Wide>, Tensors<'a, M>) {
                $(let ($t, tensors) = $t::fetch(device, tensors, room);)*
                (($($t,)*), tensors)
            }
        }
    )*};
}
tuples! { [A] [A B] [A B C] [A B C F] [A B C F G] [A B C F G H] }
