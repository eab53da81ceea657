use std::marker::PhantomData;

use super::forced::Forced;
use super::isa::Available;

/// The kernels, generic in their element type: each file of this folder adds those of its family.
///
/// [`Cpu`](super::Cpu) offers them for `f32` and `f64`.
pub struct Kernels<E> {
    pub(crate) isa: Available,
    pub(crate) forced: Forced,
    elem: PhantomData<fn() -> E>,
}

impl<E> Kernels<E> {
    pub(crate) fn new(isa: Available) -> Self {
        Self { isa, forced: Forced::default(), elem: PhantomData }
    }
}

impl<E> Clone for Kernels<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Kernels<E> {}

impl<E> std::fmt::Debug for Kernels<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", std::any::type_name::<E>(), self.isa.get())
    }
}

/// The view, or nothing where it is empty: an operand that this call does not need.
pub(crate) fn given<T>(view: &[T]) -> Option<&[T]> {
    (!view.is_empty()).then_some(view)
}
