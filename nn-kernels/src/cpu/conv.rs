use super::simd::{Simd, dispatch};
use super::{Real, kernels::Kernels};
use crate::ops::Conv2dSpec;

/// The way a convolution takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Plain loops.
    Direct,
}

impl Route {
    pub(crate) const fn new(_: &Conv2dSpec) -> Self {
        Self::Direct
    }
    /// As it is told to users.
    pub(crate) const fn name(self) -> &'static str {
        "direct"
    }
}

/// Calls `f` with the indices of every product of the convolution: of x, of w and of y.
#[inline(always)]
fn products(s: &Conv2dSpec, mut f: impl FnMut(usize, usize, usize)) {
    let ([h, w], [oh, ow], [kh, kw]) = (s.input, s.output, s.kernel);
    let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
    for b in 0..s.batch {
        for o in 0..s.out_channels {
            for (i, ki, kj) in (0..ic).flat_map(|i| (0..kh * kw).map(move |k| (i, k / kw, k % kw))) {
                let channel = b * s.in_channels + o / oc * ic + i;
                for (r, c) in (0..oh).flat_map(|r| (0..ow).map(move |c| (r, c))) {
                    let row = (r * s.stride[0] + ki * s.dilation[0]).wrapping_sub(s.padding[0]);
                    let col = (c * s.stride[1] + kj * s.dilation[1]).wrapping_sub(s.padding[1]);
                    if row < h && col < w {
                        let y = ((b * s.out_channels + o) * oh + r) * ow + c;
                        f((channel * h + row) * w + col, ((o * ic + i) * kh + ki) * kw + kj, y);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn forward<S: Simd, E: Real>(s: Conv2dSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
    let area = s.output[0] * s.output[1];
    for (o, y) in y.chunks_exact_mut(area).enumerate() {
        y.fill(b.map_or(E::ZERO, |b| b[o % s.out_channels]));
    }
    products(&s, |xi, wi, yi| y[yi] = x[xi].mul_add::<S>(w[wi], y[yi]));
}

#[inline(always)]
fn backward<S: Simd, E: Real>(
    s: Conv2dSpec,
    x: &[E],
    w: &[E],
    dy: &[E],
    dx: Option<&mut [E]>,
    dw: Option<&mut [E]>,
    db: Option<&mut [E]>,
) {
    if let Some(dx) = dx {
        dx.fill(E::ZERO);
        products(&s, |xi, wi, yi| dx[xi] = dy[yi].mul_add::<S>(w[wi], dx[xi]));
    }
    if let Some(dw) = dw {
        products(&s, |xi, wi, yi| dw[wi] = dy[yi].mul_add::<S>(x[xi], dw[wi]));
    }
    if let Some(db) = db {
        for (o, dy) in dy.chunks_exact(s.output[0] * s.output[1]).enumerate() {
            db[o % s.out_channels] += dy.iter().copied().sum();
        }
    }
}

#[track_caller]
fn check<E>(s: &Conv2dSpec, x: &[E], w: &[E], y: usize) {
    assert!(
        s.groups > 0 && s.in_channels.is_multiple_of(s.groups) && s.out_channels.is_multiple_of(s.groups),
        "conv2d: groups"
    );
    assert_eq!(x.len(), s.batch * s.in_channels * s.input[0] * s.input[1], "conv2d: x is not batch × channels × input");
    assert_eq!(y, s.batch * s.out_channels * s.output[0] * s.output[1], "conv2d: y is not batch × channels × output");
    let weights = s.out_channels * (s.in_channels / s.groups) * s.kernel[0] * s.kernel[1];
    assert_eq!(w.len(), weights, "conv2d: the weight is not out × in / groups × kernel");
}

impl<E: Real> Kernels<E> {
    pub(crate) fn conv2d(&self, s: &Conv2dSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E], _scratch: &mut [E]) {
        check(s, x, w, y.len());
        dispatch!(self.isa, forward::<E>(*s, x, w, b, y));
    }

    pub(crate) fn conv2d_vjp(
        &self,
        s: &Conv2dSpec,
        x: &[E],
        w: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dw: Option<&mut [E]>,
        db: Option<&mut [E]>,
        _scratch: &mut [E],
    ) {
        check(s, x, w, dy.len());
        dispatch!(self.isa, backward::<E>(*s, x, w, dy, dx, dw, db));
    }
}
