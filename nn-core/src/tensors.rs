//! The tensors that calls pass on.

use std::marker::PhantomData;

use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::region::Region;
use crate::signature::{Kind, MAX_TENSORS, Sig, Signature};

/// One tensor of a batch, to be read.
pub enum Tensor<'a, D: Device> {
    /// Real numbers.
    Real(View<'a, D>),
    /// Indices.
    Ids(D::View<'a, u32>),
}

impl<D: Device> Clone for Tensor<'_, D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for Tensor<'_, D> {}

/// The tensors themselves. Nearly always it is one, which is held apart from the others: then no more than that one is
/// moved from a call to the next, and the compiler sees through all of it.
enum Held<T> {
    None,
    One(T),
    Many(usize, [T; MAX_TENSORS]),
}

impl<T: Clone> Clone for Held<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::One(tensor) => Self::One(tensor.clone()),
            Self::Many(n, all) => Self::Many(*n, all.clone()),
        }
    }
}
impl<T: Copy> Copy for Held<T> {}

impl<T> Held<T> {
    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(n, _) => *n,
        }
    }

    #[inline(always)]
    fn as_slice(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(tensor) => std::slice::from_ref(tensor),
            Self::Many(n, all) => &all[..*n],
        }
    }

    #[inline(always)]
    fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(tensor) => std::slice::from_mut(tensor),
            Self::Many(n, all) => &mut all[..*n],
        }
    }

    /// One more; `nothing` fills what is not taken up.
    fn and(self, tensor: T, nothing: impl Fn() -> T) -> Self {
        match self {
            Self::None => Self::One(tensor),
            Self::One(first) => {
                let mut all = std::array::from_fn(|_| nothing());
                [all[0], all[1]] = [first, tensor];
                Self::Many(2, all)
            }
            Self::Many(n, mut all) => {
                all[n] = tensor;
                Self::Many(n + 1, all)
            }
        }
    }

    /// Those as well.
    fn join(self, other: Self, nothing: impl Fn() -> T) -> Self {
        match (self, other) {
            (Self::None, other) => other,
            (all, Self::None) => all,
            (all, Self::One(tensor)) => all.and(tensor, nothing),
            (all, Self::Many(n, others)) => {
                others.into_iter().take(n).fold(all, |all, t| all.and(t, &nothing))
            }
        }
    }

    /// The first `n`, and the others.
    fn split(self, n: usize, nothing: impl Fn() -> T) -> (Self, Self) {
        match self {
            Self::Many(len, all) => {
                let (mut a, mut b) = (Self::None, Self::None);
                for (i, tensor) in all.into_iter().take(len).enumerate() {
                    if i < n { a = a.and(tensor, &nothing) } else { b = b.and(tensor, &nothing) }
                }
                (a, b)
            }
            few if n == 0 => (Self::None, few),
            few => (few, Self::None),
        }
    }

    /// What becomes of each.
    #[inline(always)]
    fn map<U>(self, f: impl Fn(T) -> U) -> Held<U> {
        match self {
            Self::None => Held::None,
            Self::One(tensor) => Held::One(f(tensor)),
            Self::Many(n, all) => Held::Many(n, each(all, f)),
        }
    }

    #[inline(always)]
    fn as_ref(&self) -> Held<&T> {
        match self {
            Self::None => Held::None,
            Self::One(tensor) => Held::One(tensor),
            Self::Many(n, all) => Held::Many(*n, all.each_ref()),
        }
    }

    #[inline(always)]
    fn as_mut(&mut self) -> Held<&mut T> {
        match self {
            Self::None => Held::None,
            Self::One(tensor) => Held::One(tensor),
            Self::Many(n, all) => Held::Many(*n, all.each_mut()),
        }
    }
}

/// Apart, so that what is seldom needed is compiled once.
#[inline(never)]
fn each<T, U>(all: [T; MAX_TENSORS], f: impl Fn(T) -> U) -> [U; MAX_TENSORS] {
    all.map(f)
}

/// What is known of a signature before the program runs.
pub(crate) struct Known<V>(PhantomData<V>);

impl<V: Signature> Known<V> {
    /// One tensor of real numbers.
    pub(crate) const REAL: bool = is_one(&V::SIG, Kind::Real);
    /// One tensor of indices.
    const IDS: bool = is_one(&V::SIG, Kind::Ids);
    /// Elements of a sample of its first tensor, if that is always the same.
    pub(crate) const EACH: Option<usize> =
        if V::SIG.dims(0).is_bounded() { None } else { Some(V::SIG.dims(0).numel()) };

    /// Elements of its first tensor over the whole batch.
    #[inline(always)]
    pub(crate) fn numel<D: Device>(cx: &Ctx<'_, D>) -> usize {
        match Self::EACH {
            Some(each) => cx.batch * each,
            None => cx.numel(const { &V::SIG.dims(0) }),
        }
    }
}

const fn is_one(sig: &Sig, kind: Kind) -> bool {
    sig.len() == 1 && sig.tensors()[0].kind as u8 == kind as u8
}

/// The tensors of a batch, to be read: one view each, batch first.
pub struct Tensors<'a, D: Device>(Held<Tensor<'a, D>>);

impl<D: Device> Clone for Tensors<'_, D> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<D: Device> Copy for Tensors<'_, D> {}

impl<'a, D: Device> Tensor<'a, D> {
    #[inline(always)]
    fn shorten<'b>(self) -> Tensor<'b, D>
    where
        'a: 'b,
    {
        match self {
            Self::Real(view) => Tensor::Real(D::shorten(view)),
            Self::Ids(view) => Tensor::Ids(D::shorten(view)),
        }
    }

    fn nothing() -> Self {
        Self::Real(D::empty())
    }
}

impl<'a, D: Device> Tensors<'a, D> {
    /// No tensors, or tensors that were not kept.
    pub const EMPTY: Self = Self(Held::None);

    /// One tensor of real numbers.
    #[inline(always)]
    pub fn real(view: View<'a, D>) -> Self {
        Self(Held::One(Tensor::Real(view)))
    }

    /// One tensor of indices.
    #[inline(always)]
    pub fn ids(view: D::View<'a, u32>) -> Self {
        Self(Held::One(Tensor::Ids(view)))
    }

    pub(crate) fn and(self, tensor: Tensor<'a, D>) -> Self {
        Self(self.0.and(tensor, Tensor::nothing))
    }

    /// Shorter-lived views of the same tensors.
    #[inline(always)]
    pub fn shorten<'b>(self) -> Tensors<'b, D>
    where
        'a: 'b,
    {
        Tensors(self.0.map(Tensor::shorten))
    }

    /// The same, of tensors that are a `V`, if they were kept.
    #[inline(always)]
    pub(crate) fn lend<'b, V: Signature>(&self) -> Tensors<'b, D>
    where
        'a: 'b,
    {
        if const { Known::<V>::REAL } {
            Tensors::real(D::shorten(self.get(0)))
        } else if const { Known::<V>::IDS } {
            Tensors::ids(D::shorten(self.get_ids(0)))
        } else {
            self.shorten()
        }
    }

    /// These tensors, then those.
    #[inline(never)]
    pub fn join(self, other: Tensors<'a, D>) -> Self {
        Self(self.0.join(other.0, Tensor::nothing))
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tensor `i`, real numbers; empty if it was not kept.
    #[inline(always)]
    pub fn get(&self, i: usize) -> View<'a, D> {
        match &self.0 {
            Held::One(Tensor::Real(view)) if i == 0 => *view,
            Held::Many(_, all) => match all[i] {
                Tensor::Real(view) => view,
                Tensor::Ids(_) => D::empty(),
            },
            _ => D::empty(),
        }
    }

    /// Tensor `i`, indices; empty if there is no such tensor.
    #[inline(always)]
    pub fn get_ids(&self, i: usize) -> D::View<'a, u32> {
        match &self.0 {
            Held::One(Tensor::Ids(view)) if i == 0 => *view,
            Held::Many(_, all) => match all[i] {
                Tensor::Ids(view) => view,
                Tensor::Real(_) => D::empty(),
            },
            _ => D::empty(),
        }
    }

    /// The first `n` tensors, and the others.
    #[inline(never)]
    pub fn split(self, n: usize) -> (Self, Self) {
        let (a, b) = self.0.split(n, Tensor::nothing);
        (Self(a), Self(b))
    }

    /// All but the first.
    #[inline(always)]
    pub(crate) fn after_first(self) -> Self {
        if self.len() > 1 { self.split(1).1 } else { Self::EMPTY }
    }

    /// Its tensors.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = Tensor<'a, D>> + '_ {
        self.0.as_slice().iter().copied()
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

impl<'a, D: Device> TensorMut<'a, D> {
    fn nothing() -> Self {
        Self::Unwanted
    }

    #[inline(always)]
    fn reborrow(&mut self) -> TensorMut<'_, D> {
        match self {
            Self::Real(view) => TensorMut::Real(D::reborrow(view)),
            Self::Ids(view) => TensorMut::Ids(D::reborrow(view)),
            Self::Unwanted => TensorMut::Unwanted,
        }
    }

    #[inline(always)]
    fn read(&self) -> Tensor<'_, D> {
        match self {
            Self::Real(view) => Tensor::Real(D::read(view)),
            Self::Ids(view) => Tensor::Ids(D::read(view)),
            Self::Unwanted => Tensor::Real(D::empty()),
        }
    }

    #[inline(always)]
    fn freeze(self) -> Tensor<'a, D> {
        match self {
            Self::Real(view) => Tensor::Real(D::freeze(view)),
            Self::Ids(view) => Tensor::Ids(D::freeze(view)),
            Self::Unwanted => Tensor::Real(D::empty()),
        }
    }

    #[inline(always)]
    fn shorten<'b>(self) -> TensorMut<'b, D>
    where
        'a: 'b,
    {
        match self {
            Self::Real(view) => TensorMut::Real(D::shorten_mut(view)),
            Self::Ids(view) => TensorMut::Ids(D::shorten_mut(view)),
            Self::Unwanted => TensorMut::Unwanted,
        }
    }

    #[inline(always)]
    fn wanted(&mut self) -> Option<ViewMut<'_, D>> {
        match self {
            Self::Real(view) => Some(D::reborrow(view)),
            _ => None,
        }
    }
}

/// The tensors of a batch, to be written.
pub struct TensorsMut<'a, D: Device>(Held<TensorMut<'a, D>>);

impl<'a, D: Device> TensorsMut<'a, D> {
    /// No tensors.
    #[inline(always)]
    pub fn empty() -> Self {
        Self(Held::None)
    }

    /// One tensor of real numbers.
    #[inline(always)]
    pub fn real(view: ViewMut<'a, D>) -> Self {
        Self(Held::One(TensorMut::Real(view)))
    }

    /// `n` tensors that nobody wants.
    #[inline(always)]
    pub fn unwanted(n: usize) -> Self {
        Self(match n {
            0 => Held::None,
            1 => Held::One(TensorMut::Unwanted),
            n => Held::Many(n, std::array::from_fn(|_| TensorMut::Unwanted)),
        })
    }

    fn and(self, tensor: TensorMut<'a, D>) -> Self {
        Self(self.0.and(tensor, TensorMut::nothing))
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

    /// As [`carve`](Self::carve), for a signature that the compiler knows.
    #[inline(always)]
    pub(crate) fn carve_as<V: Signature>(cx: &Ctx<'_, D>, region: &mut Region<'a, D>) -> Self {
        if const { Known::<V>::REAL } {
            Self::real(region.take(Known::<V>::numel(cx)))
        } else {
            Self::carve(cx, &V::SIG, region)
        }
    }

    /// As [`carve_gradient`](Self::carve_gradient), for a signature that the compiler knows.
    #[inline(always)]
    pub(crate) fn carve_gradient_as<V: Signature>(cx: &Ctx<'_, D>, region: &mut Region<'a, D>) -> Self {
        if const { Known::<V>::REAL } {
            Self::real(region.take(Known::<V>::numel(cx)))
        } else {
            Self::carve_gradient(cx, &V::SIG, region)
        }
    }

    /// These tensors, then those.
    #[inline(never)]
    pub fn join(self, other: TensorsMut<'a, D>) -> Self {
        Self(self.0.join(other.0, TensorMut::nothing))
    }

    /// How many there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tensor `i`, real numbers, if anyone wants it.
    #[inline(always)]
    pub fn wanted(&mut self, i: usize) -> Option<ViewMut<'_, D>> {
        match &mut self.0 {
            Held::One(TensorMut::Real(view)) if i == 0 => Some(D::reborrow(view)),
            Held::Many(_, all) => all[i].wanted(),
            _ => None,
        }
    }

    /// Tensor `i`, real numbers; empty if nobody wants it.
    #[inline(always)]
    pub fn get(&mut self, i: usize) -> ViewMut<'_, D> {
        match &mut self.0 {
            Held::One(TensorMut::Real(view)) if i == 0 => D::reborrow(view),
            Held::Many(_, all) => all[i].wanted().unwrap_or_else(D::empty_mut),
            _ => D::empty_mut(),
        }
    }

    /// Tensor `i`, indices; empty if there is no such tensor.
    #[inline(always)]
    pub fn get_ids(&mut self, i: usize) -> D::ViewMut<'_, u32> {
        match self.0.as_mut_slice().get_mut(i) {
            Some(TensorMut::Ids(view)) => D::reborrow(view),
            _ => D::empty_mut(),
        }
    }

    /// Two tensors at once, each if anyone wants it. Panics unless `i < k`.
    pub fn wanted_pair(&mut self, i: usize, k: usize) -> (Option<ViewMut<'_, D>>, Option<ViewMut<'_, D>>) {
        assert!(i < k, "the first of two tensors comes before the second");
        let all = self.0.as_mut_slice();
        let (first, second) = all.split_at_mut(k.min(all.len()));
        (first.get_mut(i).and_then(TensorMut::wanted), second.first_mut().and_then(TensorMut::wanted))
    }

    /// The first `n` tensors, and the others.
    #[inline(never)]
    pub fn split(self, n: usize) -> (Self, Self) {
        let (a, b) = self.0.split(n, TensorMut::nothing);
        (Self(a), Self(b))
    }

    /// Shorter-lived views of the same tensors, in place of the longer-lived ones.
    #[inline(always)]
    pub fn shorten<'b>(self) -> TensorsMut<'b, D>
    where
        'a: 'b,
    {
        TensorsMut(self.0.map(TensorMut::shorten))
    }

    /// Shorter-lived views of the same tensors.
    #[inline(always)]
    pub fn reborrow(&mut self) -> TensorsMut<'_, D> {
        TensorsMut(self.0.as_mut().map(TensorMut::reborrow))
    }

    /// The same, of tensors that are a `V`.
    #[inline(always)]
    pub(crate) fn lend<V: Signature>(&mut self) -> TensorsMut<'_, D> {
        if const { Known::<V>::REAL } {
            // It is unwanted if nobody wants it.
            TensorsMut(Held::One(self.wanted(0).map_or(TensorMut::Unwanted, TensorMut::Real)))
        } else {
            self.reborrow()
        }
    }

    /// The same tensors, to be read. Those that nobody wants are empty.
    #[inline(always)]
    pub fn read(&self) -> Tensors<'_, D> {
        Tensors(self.0.as_ref().map(TensorMut::read))
    }

    /// The same, of tensors that are a `V`.
    #[inline(always)]
    pub(crate) fn read_as<V: Signature>(&self) -> Tensors<'_, D> {
        if const { Known::<V>::REAL } {
            Tensors::real(match &self.0 {
                Held::One(TensorMut::Real(view)) => D::read(view),
                _ => D::empty(),
            })
        } else {
            self.read()
        }
    }

    /// The same tensors, to be read from now on.
    #[inline(always)]
    pub fn freeze(self) -> Tensors<'a, D> {
        Tensors(self.0.map(TensorMut::freeze))
    }

    /// The same, of tensors that are a `V`.
    #[inline(always)]
    pub(crate) fn freeze_as<V: Signature>(self) -> Tensors<'a, D> {
        if const { Known::<V>::REAL } {
            Tensors::real(match self.0 {
                Held::One(TensorMut::Real(view)) => D::freeze(view),
                _ => D::empty(),
            })
        } else {
            self.freeze()
        }
    }

    /// self += other, tensor by tensor, where wanted.
    pub fn add(&mut self, cx: &Ctx<'_, D>, other: Tensors<'_, D>) {
        for i in 0..self.len() {
            if let Some(to) = self.wanted(i) {
                cx.device().add_assign(other.get(i), to);
            }
        }
    }

    /// self = other, tensor by tensor, where wanted.
    pub fn copy(&mut self, cx: &Ctx<'_, D>, other: Tensors<'_, D>) {
        for i in 0..self.len() {
            if let Some(to) = self.wanted(i) {
                cx.device().copy(other.get(i), to);
            }
        }
    }

    /// self = 0, where wanted.
    pub fn zero(&mut self, cx: &Ctx<'_, D>) {
        for i in 0..self.len() {
            if let Some(to) = self.wanted(i) {
                cx.device().fill(0.0, to);
            }
        }
    }
}

impl<'a, E: nn_kernels::cpu::Real> TensorsMut<'a, nn_kernels::Cpu<E>> {
    /// The tensors of real numbers as slices; empty where nobody wants one.
    pub fn into_slices(self) -> [&'a mut [E]; MAX_TENSORS] {
        let slice = |tensor: TensorMut<'a, nn_kernels::Cpu<E>>| -> &'a mut [E] {
            match tensor {
                TensorMut::Real(view) => view,
                _ => &mut [],
            }
        };
        match self.0 {
            Held::None => Default::default(),
            Held::One(tensor) => {
                let mut all: [&mut [E]; MAX_TENSORS] = Default::default();
                all[0] = slice(tensor);
                all
            }
            Held::Many(_, all) => all.map(slice),
        }
    }
}
