//! Memory that is cut into buffers: what calls keep, work in and are given as state.

use nn_kernels::{Device, Memory, Pod, View, ViewMut, WideView, WideViewMut};

use crate::Size;
use crate::ctx::Ctx;
use crate::signature::{Kind, Sig, Signature};
use crate::tensors::{Known, Tensor, Tensors};
use crate::tree::Field;

/// Memory to be cut into buffers, front to back.
pub struct Region<'a, D: Memory>(D::ViewMut<'a, u8>);

impl<'a, D: Memory> Region<'a, D> {
    /// From bytes, whose start is aligned.
    #[inline(always)]
    pub fn new(bytes: D::ViewMut<'a, u8>) -> Self {
        Self(bytes)
    }

    /// Nothing.
    #[inline(always)]
    pub fn empty() -> Self {
        Self(D::empty_mut())
    }

    /// The next `n` values.
    #[inline(never)]
    pub fn take<T: Pod>(&mut self, n: usize) -> D::ViewMut<'a, T> {
        let bytes = n * size_of::<T>();
        D::cast_mut(D::split_mut(self.next(bytes), bytes).0)
    }

    /// The next buffer of a planned size.
    #[inline(always)]
    pub fn part(&mut self, cx: &Ctx<'_, D>, size: Size) -> Self
    where
        D: Device,
    {
        Self(self.next(cx.bytes(size)))
    }

    /// The next `n` buffers of a planned size, to be taken one by one.
    #[inline(always)]
    pub fn parts(&mut self, cx: &Ctx<'_, D>, size: Size, n: usize) -> Self
    where
        D: Device,
    {
        Self(self.next(n * cx.bytes(size)))
    }

    #[inline(always)]
    fn next(&mut self, bytes: usize) -> D::ViewMut<'a, u8> {
        let all = std::mem::replace(&mut self.0, D::empty_mut());
        let (part, rest) = D::split_mut(all, bytes.next_multiple_of(Size::ALIGN));
        self.0 = rest;
        part
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        D::len_mut(&self.0) == 0
    }

    /// The same memory, for a shorter time.
    #[inline(always)]
    pub fn shorten<'b>(self) -> Region<'b, D>
    where
        'a: 'b,
    {
        Region(D::shorten_mut(self.0))
    }

    /// A shorter-lived region over the same memory.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Region<'_, D> {
        Region(D::reborrow(&mut self.0))
    }

    /// The same memory, to be read.
    #[inline(always)]
    pub fn read(&self) -> RegionRef<'_, D> {
        RegionRef(D::read(&self.0))
    }

    /// The same memory, to be read from now on.
    #[inline(always)]
    pub fn freeze(self) -> RegionRef<'a, D> {
        RegionRef(D::freeze(self.0))
    }
}

/// Memory that was cut into buffers, to be read in the same order.
pub struct RegionRef<'a, D: Memory>(D::View<'a, u8>);

impl<D: Memory> Clone for RegionRef<'_, D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Memory> Copy for RegionRef<'_, D> {}

impl<'a, D: Memory> RegionRef<'a, D> {
    /// From bytes, whose start is aligned.
    #[inline(always)]
    pub fn new(bytes: D::View<'a, u8>) -> Self {
        Self(bytes)
    }

    /// Nothing.
    #[inline(always)]
    pub fn empty() -> Self {
        Self(D::empty())
    }

    /// The next `n` values.
    #[inline(always)]
    pub fn take<T: Pod>(&mut self, n: usize) -> D::View<'a, T> {
        let bytes = n * size_of::<T>();
        D::cast(D::split(self.next(bytes), bytes).0)
    }

    /// The next buffer of a planned size.
    #[inline(always)]
    pub fn part(&mut self, cx: &Ctx<'_, D>, size: Size) -> Self
    where
        D: Device,
    {
        Self(self.next(cx.bytes(size)))
    }

    /// The next `n` buffers of a planned size.
    #[inline(always)]
    pub fn parts(&mut self, cx: &Ctx<'_, D>, size: Size, n: usize) -> Self
    where
        D: Device,
    {
        Self(self.next(n * cx.bytes(size)))
    }

    /// Of buffers of one planned size, the one with `i` before it.
    #[inline(always)]
    pub fn nth(&self, cx: &Ctx<'_, D>, size: Size, i: usize) -> Self
    where
        D: Device,
    {
        let bytes = cx.bytes(size);
        Self(D::split(D::split(self.0, i * bytes).1, bytes).0)
    }

    /// The same memory, for a shorter time.
    #[inline(always)]
    pub fn shorten<'b>(self) -> RegionRef<'b, D>
    where
        'a: 'b,
    {
        RegionRef(D::shorten(self.0))
    }

    /// The gradients of the next tensors, as [`TensorsMut::carve_gradient`](crate::TensorsMut::carve_gradient) laid them out: those of indices are empty.
    pub fn gradients(&mut self, cx: &Ctx<'_, D>, sig: &Sig) -> Tensors<'a, D>
    where
        D: Device,
    {
        let mut all = Tensors::EMPTY;
        for tensor in sig.tensors() {
            all = all.and(Tensor::Real(match tensor.kind {
                Kind::Real => self.take(cx.numel(&tensor.dims)),
                Kind::Ids => D::empty(),
            }));
        }
        all
    }

    /// As [`gradients`](Self::gradients), for a signature that the compiler knows.
    #[inline(always)]
    pub(crate) fn gradients_as<V: Signature>(&mut self, cx: &Ctx<'_, D>) -> Tensors<'a, D>
    where
        D: Device,
    {
        if const { Known::<V>::REAL } {
            Tensors::real(self.take(Known::<V>::numel(cx)))
        } else {
            self.gradients(cx, &V::SIG)
        }
    }

    /// As [`tensors`](Self::tensors), for a signature that the compiler knows.
    #[inline(always)]
    pub(crate) fn tensors_as<V: Signature>(&mut self, cx: &Ctx<'_, D>) -> Tensors<'a, D>
    where
        D: Device,
    {
        if const { Known::<V>::REAL } {
            Tensors::real(self.take(Known::<V>::numel(cx)))
        } else {
            self.tensors(cx, &V::SIG)
        }
    }

    /// The next tensors.
    pub fn tensors(&mut self, cx: &Ctx<'_, D>, sig: &Sig) -> Tensors<'a, D>
    where
        D: Device,
    {
        let mut all = Tensors::EMPTY;
        for tensor in sig.tensors() {
            let n = cx.numel(&tensor.dims);
            all = all.and(match tensor.kind {
                Kind::Real => Tensor::Real(self.take(n)),
                Kind::Ids => Tensor::Ids(self.take(n)),
            });
        }
        all
    }

    #[inline(always)]
    fn next(&mut self, bytes: usize) -> D::View<'a, u8> {
        let (part, rest) = D::split(self.0, bytes.next_multiple_of(Size::ALIGN));
        self.0 = rest;
        part
    }
}

/// A model's state, to be read: running statistics, and what is frozen.
pub struct StateRef<'a, D: Memory> {
    values: WideView<'a, D>,
    /// The same as elements, where those are rounded.
    elements: View<'a, D>,
}

impl<D: Memory> Clone for StateRef<'_, D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Memory> Copy for StateRef<'_, D> {}

impl<'a, D: Memory> StateRef<'a, D> {
    /// Of its values and, on a [`MIXED`](Memory::MIXED) device, the same as elements.
    #[inline(always)]
    pub fn new(values: WideView<'a, D>, elements: View<'a, D>) -> Self {
        Self { values, elements }
    }

    /// Of its values alone, which will do unless the device is [`MIXED`](Memory::MIXED).
    #[inline(always)]
    pub fn of(values: WideView<'a, D>) -> Self {
        Self { values, elements: D::empty() }
    }

    /// None at all.
    #[inline(always)]
    pub fn empty() -> Self {
        Self::of(D::empty())
    }

    /// Its values, as they are kept.
    #[inline(always)]
    pub fn values(self) -> WideView<'a, D> {
        self.values
    }

    /// The same as elements, for operations that take them.
    #[inline(always)]
    pub fn elements(self) -> View<'a, D> {
        if D::MIXED { self.elements } else { D::elements(self.values) }
    }

    /// `len` values from `start` on.
    #[inline(always)]
    pub fn slice<'b>(self, start: usize, len: usize) -> StateRef<'b, D>
    where
        'a: 'b,
    {
        let values = span::<D, _>(self.values, start, len);
        let elements =
            if D::MIXED { slice::<D>(self.elements, start, len) } else { D::shorten(self.elements) };
        StateRef { values, elements }
    }

    /// The same state, for a shorter time.
    #[inline(always)]
    pub fn shorten<'b>(self) -> StateRef<'b, D>
    where
        'a: 'b,
    {
        StateRef { values: D::shorten(self.values), elements: D::shorten(self.elements) }
    }
}

/// A model's state in a forward pass: shared in inference, so that many threads can use one model.
pub struct State<'a, D: Memory> {
    values: Values<'a, D>,
    elements: View<'a, D>,
}

enum Values<'a, D: Memory> {
    Read(WideView<'a, D>),
    Write(WideViewMut<'a, D>),
}

impl<'a, D: Memory> State<'a, D> {
    /// To be read.
    #[inline(always)]
    pub fn read_only(state: StateRef<'a, D>) -> Self {
        Self { values: Values::Read(state.values), elements: state.elements }
    }

    /// To be brought up to date, of its values alone, which will do unless the device is [`MIXED`](Memory::MIXED).
    #[inline(always)]
    pub fn of(values: WideViewMut<'a, D>) -> Self {
        Self::writable(values, D::empty())
    }

    /// To be brought up to date: its values and, on a [`MIXED`](Memory::MIXED) device, the same as elements. What is written is
    /// rounded to these once the pass is done.
    #[inline(always)]
    pub fn writable(values: WideViewMut<'a, D>, elements: View<'a, D>) -> Self {
        Self { values: Values::Write(values), elements }
    }

    /// The same state, for a shorter time.
    #[inline(always)]
    pub fn shorten<'b>(self) -> State<'b, D>
    where
        'a: 'b,
    {
        let values = match self.values {
            Values::Read(view) => Values::Read(D::shorten(view)),
            Values::Write(view) => Values::Write(D::shorten_mut(view)),
        };
        State { values, elements: D::shorten(self.elements) }
    }

    /// The part of a field.
    #[inline(always)]
    pub fn field(&mut self, field: Field) -> State<'_, D> {
        let (start, len) = (field.state, field.state_len);
        let values = match &mut self.values {
            Values::Read(view) => Values::Read(span::<D, _>(D::shorten(*view), start, len)),
            Values::Write(view) => Values::Write(span_mut::<D, _>(D::reborrow(view), start, len)),
        };
        let elements = D::shorten(self.elements);
        State { values, elements: if D::MIXED { slice::<D>(elements, start, len) } else { elements } }
    }

    /// Its values.
    #[inline(always)]
    pub fn read(&self) -> StateRef<'_, D> {
        let values = match &self.values {
            Values::Read(view) => D::shorten(*view),
            Values::Write(view) => D::read(view),
        };
        StateRef { values, elements: D::shorten(self.elements) }
    }

    /// Its values, to be changed, if that is allowed now.
    #[inline(always)]
    pub fn write(&mut self) -> Option<WideViewMut<'_, D>> {
        match &mut self.values {
            Values::Read(_) => None,
            Values::Write(view) => Some(D::reborrow(view)),
        }
    }

    /// What is frozen of it, its first `at` values, and the rest.
    #[inline(always)]
    pub(crate) fn split_frozen(self, at: usize) -> (View<'a, D>, Self) {
        let (first, rest, values) = match self.values {
            Values::Read(view) => {
                let (first, rest) = D::split(view, at);
                (first, self.elements, Values::Read(rest))
            }
            Values::Write(view) => {
                let (first, rest) = D::split_mut(view, at);
                (D::freeze(first), self.elements, Values::Write(rest))
            }
        };
        if D::MIXED {
            let (first, elements) = D::split(rest, at);
            (first, Self { values, elements })
        } else {
            (D::elements(first), Self { values, elements: rest })
        }
    }
}

/// `len` elements from `start` on.
#[inline(always)]
pub fn slice<'b, 'a: 'b, D: Memory>(view: View<'a, D>, start: usize, len: usize) -> View<'b, D> {
    span::<D, _>(view, start, len)
}

/// `len` elements from `start` on.
#[inline(always)]
pub fn slice_mut<D: Memory>(view: ViewMut<'_, D>, start: usize, len: usize) -> ViewMut<'_, D> {
    span_mut::<D, _>(view, start, len)
}

/// `len` values of any type from `start` on.
#[inline(always)]
pub fn span<'b, 'a: 'b, D: Memory, T: Pod>(view: D::View<'a, T>, start: usize, len: usize) -> D::View<'b, T> {
    D::shorten(D::split(D::split(view, start).1, len).0)
}

/// `len` values of any type from `start` on.
#[inline(always)]
pub fn span_mut<D: Memory, T: Pod>(view: D::ViewMut<'_, T>, start: usize, len: usize) -> D::ViewMut<'_, T> {
    D::split_mut(D::split_mut(view, start).1, len).0
}
