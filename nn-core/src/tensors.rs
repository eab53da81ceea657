use nn_kernels::{Device, Memory, Pod, View, ViewMut};

use crate::Size;
use crate::ctx::Ctx;
use crate::signature::{Kind, MAX_TENSORS, Sig};
use crate::tree::Field;

/// One tensor of a batch, to be read.
pub enum Tensor<'a, D: Device> {
    /// Real numbers.
    Real(View<'a, D>),
    /// Indices.
    Ids(D::View<'a, u32>),
}

impl<D: Device> Clone for Tensor<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for Tensor<'_, D> {}

/// The tensors of a batch, to be read: one view each, batch first.
pub struct Tensors<'a, D: Device> {
    len: usize,
    items: [Option<Tensor<'a, D>>; MAX_TENSORS],
}

impl<D: Device> Clone for Tensors<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for Tensors<'_, D> {}

impl<'a, D: Device> Tensors<'a, D> {
    /// No tensors, or tensors that were not kept.
    pub const EMPTY: Self = Self { len: 0, items: [None; MAX_TENSORS] };

    /// One tensor of real numbers.
    pub fn real(view: View<'a, D>) -> Self {
        Self::EMPTY.and(Tensor::Real(view))
    }

    /// One tensor of indices.
    pub fn ids(view: D::View<'a, u32>) -> Self {
        Self::EMPTY.and(Tensor::Ids(view))
    }

    fn and(mut self, tensor: Tensor<'a, D>) -> Self {
        self.items[self.len] = Some(tensor);
        self.len += 1;
        self
    }

    /// Shorter-lived views of the same tensors.
    pub fn shorten<'b>(self) -> Tensors<'b, D>
    where
        'a: 'b,
    {
        let items = self.items.map(|item| {
            item.map(|t| match t {
                Tensor::Real(view) => Tensor::Real(D::shorten(view)),
                Tensor::Ids(view) => Tensor::Ids(D::shorten(view)),
            })
        });
        Tensors { len: self.len, items }
    }

    /// These tensors, then those.
    pub fn join(self, other: Tensors<'a, D>) -> Self {
        let mut all = self;
        for item in other.items.into_iter().flatten() {
            all = all.and(item);
        }
        all
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tensor `i`, real numbers; empty if it was not kept.
    pub fn get(&self, i: usize) -> View<'a, D> {
        match self.items[i] {
            Some(Tensor::Real(view)) => view,
            _ => D::empty(),
        }
    }

    /// Tensor `i`, indices; empty if there is no such tensor.
    pub fn get_ids(&self, i: usize) -> D::View<'a, u32> {
        match self.items[i] {
            Some(Tensor::Ids(view)) => view,
            _ => D::empty(),
        }
    }

    /// The first `n` tensors, and the others.
    pub fn split(self, n: usize) -> (Self, Self) {
        let (mut a, mut b) = (Self::EMPTY, Self::EMPTY);
        for (i, item) in self.items.into_iter().flatten().enumerate() {
            if i < n { a = a.and(item) } else { b = b.and(item) }
        }
        (a, b)
    }

    /// Its tensors.
    pub fn iter(&self) -> impl Iterator<Item = Tensor<'a, D>> + '_ {
        self.items.iter().copied().flatten()
    }
}

/// One tensor of a batch, to be written.
pub enum TensorMut<'a, D: Device> {
    /// Real numbers.
    Real(ViewMut<'a, D>),
    /// Indices.
    Ids(D::ViewMut<'a, u32>),
    /// Nobody wants it: a gradient of indices, or of a model's input.
    Unwanted,
}

/// The tensors of a batch, to be written.
pub struct TensorsMut<'a, D: Device> {
    len: usize,
    items: [TensorMut<'a, D>; MAX_TENSORS],
}

impl<'a, D: Device> TensorsMut<'a, D> {
    /// No tensors.
    pub fn empty() -> Self {
        Self { len: 0, items: std::array::from_fn(|_| TensorMut::Unwanted) }
    }

    /// One tensor of real numbers.
    pub fn real(view: ViewMut<'a, D>) -> Self {
        Self::empty().and(TensorMut::Real(view))
    }

    /// `n` tensors that nobody wants.
    pub fn unwanted(n: usize) -> Self {
        Self { len: n, ..Self::empty() }
    }

    fn and(mut self, tensor: TensorMut<'a, D>) -> Self {
        self.items[self.len] = tensor;
        self.len += 1;
        self
    }

    /// Views of a buffer that has room for `sig`.
    pub fn carve(cx: &Ctx<'_, D>, sig: &Sig, region: &mut Region<'a, D>) -> Self {
        let mut all = Self::empty();
        for tensor in sig.tensors() {
            let n = cx.numel(&tensor.dims);
            all = all.and(match tensor.kind {
                Kind::Real => TensorMut::Real(region.take(n)),
                Kind::Ids => TensorMut::Ids(region.take(n)),
            });
        }
        all
    }

    /// Views for the gradient of `sig`: as [`carve`](Self::carve), but indices have none.
    pub fn carve_gradient(cx: &Ctx<'_, D>, sig: &Sig, region: &mut Region<'a, D>) -> Self {
        let mut all = Self::empty();
        for tensor in sig.tensors() {
            all = all.and(match tensor.kind {
                Kind::Real => TensorMut::Real(region.take(cx.numel(&tensor.dims))),
                Kind::Ids => TensorMut::Unwanted,
            });
        }
        all
    }

    /// These tensors, then those.
    pub fn join(mut self, other: TensorsMut<'a, D>) -> Self {
        let n = other.len;
        for item in other.items.into_iter().take(n) {
            self = self.and(item);
        }
        self
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tensor `i`, real numbers, if anyone wants it.
    pub fn wanted(&mut self, i: usize) -> Option<ViewMut<'_, D>> {
        match &mut self.items[i] {
            TensorMut::Real(view) => Some(D::reborrow(view)),
            _ => None,
        }
    }

    /// Tensor `i`, real numbers; empty if nobody wants it.
    pub fn get(&mut self, i: usize) -> ViewMut<'_, D> {
        match &mut self.items[i] {
            TensorMut::Real(view) => D::reborrow(view),
            _ => D::empty_mut(),
        }
    }

    /// Tensor `i`, indices; empty if there is no such tensor.
    pub fn get_ids(&mut self, i: usize) -> D::ViewMut<'_, u32> {
        match &mut self.items[i] {
            TensorMut::Ids(view) => D::reborrow(view),
            _ => D::empty_mut(),
        }
    }

    /// Two tensors at once, each if anyone wants it. Panics unless `i < k`.
    pub fn wanted_pair(&mut self, i: usize, k: usize) -> (Option<ViewMut<'_, D>>, Option<ViewMut<'_, D>>) {
        fn real<'b, D: Device>(t: &'b mut TensorMut<'_, D>) -> Option<ViewMut<'b, D>> {
            match t {
                TensorMut::Real(view) => Some(D::reborrow(view)),
                _ => None,
            }
        }
        let (a, b) = self.items.split_at_mut(k);
        (real(&mut a[i]), real(&mut b[0]))
    }

    /// The first `n` tensors, and the others.
    pub fn split(self, n: usize) -> (Self, Self) {
        let len = self.len;
        let (mut a, mut b) = (Self::empty(), Self::empty());
        for (i, item) in self.items.into_iter().take(len).enumerate() {
            if i < n { a = a.and(item) } else { b = b.and(item) }
        }
        (a, b)
    }

    /// Shorter-lived views of the same tensors, in place of the longer-lived ones.
    pub fn shorten<'b>(self) -> TensorsMut<'b, D>
    where
        'a: 'b,
    {
        let items = self.items.map(|item| match item {
            TensorMut::Real(view) => TensorMut::Real(D::shorten_mut(view)),
            TensorMut::Ids(view) => TensorMut::Ids(D::shorten_mut(view)),
            TensorMut::Unwanted => TensorMut::Unwanted,
        });
        TensorsMut { len: self.len, items }
    }

    /// Shorter-lived views of the same tensors.
    pub fn reborrow(&mut self) -> TensorsMut<'_, D> {
        let mut all = TensorsMut::empty();
        for item in self.items.iter_mut().take(self.len) {
            all = all.and(match item {
                TensorMut::Real(view) => TensorMut::Real(D::reborrow(view)),
                TensorMut::Ids(view) => TensorMut::Ids(D::reborrow(view)),
                TensorMut::Unwanted => TensorMut::Unwanted,
            });
        }
        all
    }

    /// The same tensors, to be read. Those that nobody wants are empty.
    pub fn read(&self) -> Tensors<'_, D> {
        let mut all = Tensors::EMPTY;
        for item in self.items.iter().take(self.len) {
            all = all.and(match item {
                TensorMut::Real(view) => Tensor::Real(D::read(view)),
                TensorMut::Ids(view) => Tensor::Ids(D::read(view)),
                TensorMut::Unwanted => Tensor::Real(D::empty()),
            });
        }
        all
    }

    /// The same tensors, to be read from now on.
    pub fn freeze(self) -> Tensors<'a, D> {
        let mut all = Tensors::EMPTY;
        for item in self.items.into_iter().take(self.len) {
            all = all.and(match item {
                TensorMut::Real(view) => Tensor::Real(D::freeze(view)),
                TensorMut::Ids(view) => Tensor::Ids(D::freeze(view)),
                TensorMut::Unwanted => Tensor::Real(D::empty()),
            });
        }
        all
    }

    /// self += other, tensor by tensor, where wanted.
    pub fn add(&mut self, cx: &Ctx<'_, D>, other: Tensors<'_, D>) {
        for i in 0..self.len {
            if let Some(to) = self.wanted(i) {
                cx.device().add_assign(other.get(i), to);
            }
        }
    }

    /// self = other, tensor by tensor, where wanted.
    pub fn copy(&mut self, cx: &Ctx<'_, D>, other: Tensors<'_, D>) {
        for i in 0..self.len {
            if let Some(to) = self.wanted(i) {
                cx.device().copy(other.get(i), to);
            }
        }
    }

    /// self = 0, where wanted.
    pub fn zero(&mut self, cx: &Ctx<'_, D>) {
        for i in 0..self.len {
            if let Some(to) = self.wanted(i) {
                cx.device().fill(0.0, to);
            }
        }
    }
}

/// Memory to be cut into buffers, front to back.
pub struct Region<'a, D: Memory>(D::ViewMut<'a, u8>);

impl<'a, D: Memory> Region<'a, D> {
    /// From bytes, whose start is aligned.
    pub fn new(bytes: D::ViewMut<'a, u8>) -> Self {
        Self(bytes)
    }

    /// Nothing.
    pub fn empty() -> Self {
        Self(D::empty_mut())
    }

    /// The next `n` values.
    pub fn take<T: Pod>(&mut self, n: usize) -> D::ViewMut<'a, T> {
        let bytes = n * size_of::<T>();
        D::cast_mut(D::split_mut(self.next(bytes), bytes).0)
    }

    /// The next buffer of a planned size.
    pub fn part(&mut self, cx: &Ctx<'_, D>, size: Size) -> Self
    where
        D: Device,
    {
        Self(self.next(cx.bytes(size)))
    }

    /// The next `n` buffers of a planned size, to be taken one by one.
    pub fn parts(&mut self, cx: &Ctx<'_, D>, size: Size, n: usize) -> Self
    where
        D: Device,
    {
        Self(self.next(n * cx.bytes(size)))
    }

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
    pub fn shorten<'b>(self) -> Region<'b, D>
    where
        'a: 'b,
    {
        Region(D::shorten_mut(self.0))
    }

    /// A shorter-lived region over the same memory.
    pub fn reborrow(&mut self) -> Region<'_, D> {
        Region(D::reborrow(&mut self.0))
    }

    /// The same memory, to be read.
    pub fn read(&self) -> RegionRef<'_, D> {
        RegionRef(D::read(&self.0))
    }

    /// The same memory, to be read from now on.
    pub fn freeze(self) -> RegionRef<'a, D> {
        RegionRef(D::freeze(self.0))
    }
}

/// Memory that was cut into buffers, to be read in the same order.
pub struct RegionRef<'a, D: Memory>(D::View<'a, u8>);

impl<D: Memory> Clone for RegionRef<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Memory> Copy for RegionRef<'_, D> {}

impl<'a, D: Memory> RegionRef<'a, D> {
    /// From bytes, whose start is aligned.
    pub fn new(bytes: D::View<'a, u8>) -> Self {
        Self(bytes)
    }

    /// Nothing.
    pub fn empty() -> Self {
        Self(D::empty())
    }

    /// The next `n` values.
    pub fn take<T: Pod>(&mut self, n: usize) -> D::View<'a, T> {
        let bytes = n * size_of::<T>();
        D::cast(D::split(self.next(bytes), bytes).0)
    }

    /// The next buffer of a planned size.
    pub fn part(&mut self, cx: &Ctx<'_, D>, size: Size) -> Self
    where
        D: Device,
    {
        Self(self.next(cx.bytes(size)))
    }

    /// The next `n` buffers of a planned size.
    pub fn parts(&mut self, cx: &Ctx<'_, D>, size: Size, n: usize) -> Self
    where
        D: Device,
    {
        Self(self.next(n * cx.bytes(size)))
    }

    /// Of buffers of one planned size, the one with `i` before it.
    pub fn nth(&self, cx: &Ctx<'_, D>, size: Size, i: usize) -> Self
    where
        D: Device,
    {
        let bytes = cx.bytes(size);
        Self(D::split(D::split(self.0, i * bytes).1, bytes).0)
    }

    /// The same memory, for a shorter time.
    pub fn shorten<'b>(self) -> RegionRef<'b, D>
    where
        'a: 'b,
    {
        RegionRef(D::shorten(self.0))
    }

    /// The gradients of the next tensors, as [`TensorsMut::carve_gradient`] laid them out: those of indices are empty.
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

    fn next(&mut self, bytes: usize) -> D::View<'a, u8> {
        let (part, rest) = D::split(self.0, bytes.next_multiple_of(Size::ALIGN));
        self.0 = rest;
        part
    }
}

/// A model's state in a forward pass: shared in inference, so that many threads can use one model.
pub enum State<'a, D: Memory> {
    /// To be read.
    Read(View<'a, D>),
    /// To be brought up to date.
    Write(ViewMut<'a, D>),
}

impl<'a, D: Memory> State<'a, D> {
    /// The same state, for a shorter time.
    pub fn shorten<'b>(self) -> State<'b, D>
    where
        'a: 'b,
    {
        match self {
            Self::Read(view) => State::Read(D::shorten(view)),
            Self::Write(view) => State::Write(D::shorten_mut(view)),
        }
    }

    /// The part of a field.
    pub fn field(&mut self, field: Field) -> State<'_, D> {
        match self {
            Self::Read(view) => State::Read(slice::<D>(D::shorten(*view), field.state, field.state_len)),
            Self::Write(view) => {
                State::Write(slice_mut::<D>(D::reborrow(view), field.state, field.state_len))
            }
        }
    }

    /// Its values.
    pub fn read(&self) -> View<'_, D> {
        match self {
            Self::Read(view) => D::shorten(*view),
            Self::Write(view) => D::read(view),
        }
    }

    /// Its values, to be changed, if that is allowed now.
    pub fn write(&mut self) -> Option<ViewMut<'_, D>> {
        match self {
            Self::Read(_) => None,
            Self::Write(view) => Some(D::reborrow(view)),
        }
    }
}

/// `len` elements from `start` on.
pub fn slice<'b, 'a: 'b, D: Memory>(view: View<'a, D>, start: usize, len: usize) -> View<'b, D> {
    D::shorten(D::split(D::split(view, start).1, len).0)
}

/// `len` elements from `start` on.
pub fn slice_mut<D: Memory>(view: ViewMut<'_, D>, start: usize, len: usize) -> ViewMut<'_, D> {
    D::split_mut(D::split_mut(view, start).1, len).0
}

impl<'a, E: nn_kernels::cpu::Real> TensorsMut<'a, nn_kernels::Cpu<E>> {
    /// The tensors of real numbers as slices; empty where nobody wants one.
    pub fn into_slices(self) -> [&'a mut [E]; MAX_TENSORS] {
        self.items.map(|item| match item {
            TensorMut::Real(view) => view,
            _ => &mut [],
        })
    }
}
