use std::ops::Range;

use super::gemm::{self, Mat, Start, Threads};
use super::par::{self, Rows, rows_per_task};
use super::patches::{Outputs, Patches, PatchesT, inside, pixel, within};
use super::routes::Routes;
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::{reach, size};
use super::{Real, depthwise, kernels::Kernels, sweep, winograd};
use crate::Isa;
use crate::ops::{Conv2dSpec, Unary};

kernels! {
    fn channel_sums<E>(channels: usize, area: usize, first: usize, dy: &[E], db: &mut [E]);
    fn fold<E>(s: &Conv2dSpec, outputs: Range<usize>, cols: &[E], dx: &mut [E]);
}

/// Channels from which on registers of them are worth their lanes.
const LANES: usize = 4;

/// Whether there is one tap, of every pixel.
pub(crate) const fn is_pointwise(s: &Conv2dSpec) -> bool {
    let once = s.kernel[0] == 1 && s.kernel[1] == 1 && s.padding[0] == 0 && s.padding[1] == 0;
    // An output may stop before the image does.
    let whole = s.output[0] == s.input[0] && s.output[1] == s.input[1];
    once && whole && s.stride[0] == 1 && s.stride[1] == 1
}

/// Whether Winograd's transforms are outweighed by the products that they save, as it was [measured](Routes).
const fn transforms_pay(isa: Isa, s: &Conv2dSpec) -> bool {
    let (a, b) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let channels = if a < b { a } else { b };
    Routes::of(isa).convolution(channels, s.output[0].saturating_mul(s.output[1])) == b'W'
}

/// The way a convolution takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Each channel is a group: nothing to sum over channels, so no matrix product.
    Depthwise,
    /// One tap, of every pixel: the image is the right factor as it lies.
    Pointwise,
    /// 3×3 taps by transforms that need fewer products.
    Winograd,
    /// A product of weights and the padded image as it lies.
    Direct,
    /// A matrix product whose right factor is packed from the image.
    Gemm,
}

impl Route {
    pub(crate) const fn new(isa: Isa, s: &Conv2dSpec) -> Self {
        if s.groups > 1 && s.groups == s.in_channels && s.groups == s.out_channels {
            Self::Depthwise
        } else if is_pointwise(s) {
            Self::Pointwise
        } else if winograd::can(s) && sweep::fits(s) && transforms_pay(isa, s) {
            Self::Winograd
        } else if s.out_channels / s.groups >= LANES && sweep::fits(s) {
            Self::Direct
        } else {
            Self::Gemm
        }
    }

    const ALL: [Self; 5] = [Self::Depthwise, Self::Pointwise, Self::Winograd, Self::Direct, Self::Gemm];

    /// The one that is asked for, if it can do this layer, or else the fastest.
    fn forced(isa: Isa, asked: Option<Self>, s: &Conv2dSpec) -> Self {
        asked.filter(|route| route.can(s)).unwrap_or(Self::new(isa, s))
    }

    /// The one that is asked for by this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.asked() == name)
    }

    /// What it is asked for by.
    fn asked(self) -> &'static str {
        match self {
            Self::Pointwise => "pointwise",
            Self::Gemm => "gemm",
            other => other.name(),
        }
    }

    /// What there is to ask for, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::asked).join(", ")
    }

    /// Whether it gives this layer's outputs, be it slowly.
    const fn can(self, s: &Conv2dSpec) -> bool {
        match self {
            Self::Depthwise => s.groups == s.in_channels && s.groups == s.out_channels,
            Self::Pointwise => is_pointwise(s),
            Self::Winograd => winograd::can(s) && sweep::fits(s),
            Self::Direct => sweep::fits(s),
            Self::Gemm => true,
        }
    }

    /// As it is told to users.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Depthwise => "depthwise",
            Self::Pointwise => "pointwise gemm",
            Self::Winograd => "winograd",
            Self::Direct => "direct",
            Self::Gemm => "implicit gemm",
        }
    }
}

/// Adds the gradients of patches (`cols`, of the `outputs`) to the pixels they were read from.
#[inline(always)]
fn fold<S: Simd, E: Real>(s: &Conv2dSpec, outputs: Range<usize>, cols: &[E], dx: &mut [E]) {
    let ([h, w], [kh, kw], ow) = (s.input, s.kernel, s.output[1]);
    for (k, g) in cols.chunks_exact(outputs.len()).enumerate() {
        let (channel, tap) = (k / (kh * kw), [k / kw % kh, k % kw]);
        let (rows, cols) = (inside(s, 0, tap[0]), inside(s, 1, tap[1]));
        for row in within(rows, outputs.start / ow..outputs.end.div_ceil(ow)) {
            let seen = within(row * ow + cols.start..row * ow + cols.end, outputs.clone());
            if seen.is_empty() {
                continue;
            }
            let to =
                (channel * h + pixel(s, 0, tap[0], row)) * w + pixel(s, 1, tap[1], seen.start - row * ow);
            let g = &g[seen.start - outputs.start..seen.end - outputs.start];
            if s.stride[1] == 1 {
                for (dx, g) in dx[to..].iter_mut().zip(g) {
                    *dx += *g;
                }
            } else {
                for (dx, g) in dx[to..].iter_mut().step_by(s.stride[1]).zip(g) {
                    *dx += *g;
                }
            }
        }
    }
}

/// db[o] += the sum of channel o over all images, in their order.
#[inline(always)]
fn channel_sums<S: Simd, E: Real>(channels: usize, area: usize, first: usize, dy: &[E], db: &mut [E]) {
    for (o, db) in db.iter_mut().enumerate() {
        let images =
            dy.chunks_exact(channels * area).map(|dy| &dy[(first + o) * area..(first + o + 1) * area]);
        *db += E::from_f64(images.map(|dy| super::reduce::sum(dy, |g| g)).sum());
    }
}

#[track_caller]
pub(crate) fn check(name: &str, s: &Conv2dSpec, x: usize, w: usize, y: usize) {
    assert!(
        s.groups > 0 && s.in_channels.is_multiple_of(s.groups) && s.out_channels.is_multiple_of(s.groups),
        "{name}: {} groups of {} and {} channels",
        s.groups,
        s.in_channels,
        s.out_channels
    );
    for axis in 0..2 {
        assert!(s.kernel[axis] > 0, "{name}: a kernel of nothing");
        let taps = reach(name, s.kernel[axis] - 1, s.dilation[axis], 1);
        let seen = reach(name, s.output[axis].saturating_sub(1), s.stride[axis], taps);
        let padded = reach(name, 2, s.padding[axis], s.input[axis]);
        assert!(s.stride[axis] > 0 && s.dilation[axis] > 0, "{name}: a stride or a dilation of 0");
        assert!(seen <= padded, "{name}: the kernel leaves the padded image");
    }
    assert_eq!(
        x,
        size(name, &[s.batch, s.in_channels, s.input[0], s.input[1]]),
        "{name}: x is not batch × in_channels × input"
    );
    assert_eq!(
        y,
        size(name, &[s.batch, s.out_channels, s.output[0], s.output[1]]),
        "{name}: y or dy is not batch × out_channels × output"
    );
    let weights = size(name, &[s.out_channels, s.in_channels / s.groups, s.kernel[0], s.kernel[1]]);
    assert_eq!(w, weights, "{name}: the weight is not out_channels × in_channels / groups × kernel");
}

/// Two views cut alike.
type Pieces<'a, E> = (Rows<&'a [E]>, Rows<&'a mut [E]>);

/// Sizes of one group of one image.
struct Group {
    /// Channels of x and of y.
    ic: usize,
    oc: usize,
    /// Pixels of a channel of x and of y.
    inputs: usize,
    outputs: usize,
    /// Terms of an output.
    terms: usize,
}

impl Group {
    fn new(s: &Conv2dSpec) -> Self {
        let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
        let terms = ic * s.kernel[0] * s.kernel[1];
        Self { ic, oc, inputs: s.input[0] * s.input[1], outputs: s.output[0] * s.output[1], terms }
    }

    /// Group `g`'s weights.
    fn weight<'a, E>(&self, w: &'a [E], g: usize) -> Mat<'a, E> {
        Mat::new(&w[g * self.oc * self.terms..(g + 1) * self.oc * self.terms], self.oc, self.terms)
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn conv2d(
        &self,
        s: &Conv2dSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &mut [E],
        _scratch: &mut [E],
    ) {
        self.conv2d_by(Route::forced(self.isa.get(), self.forced.conv, s), s, x, w, b, y);
    }

    /// [`conv2d`](Self::conv2d) in a certain way, which must be able to.
    pub(crate) fn conv2d_by(
        &self,
        route: Route,
        s: &Conv2dSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &mut [E],
    ) {
        check("conv2d", s, x.len(), w.len(), y.len());
        b.inspect(|b| assert_eq!(b.len(), s.out_channels, "conv2d: the bias is not out_channels"));
        if y.is_empty() {
            return;
        }
        match route {
            Route::Depthwise => return depthwise::forward(self.isa, s, x, w, b, y),
            Route::Winograd => return winograd::outputs(self.isa, s, x, w, b, y),
            Route::Direct => return sweep::outputs(self.isa, s, x, w, b, y),
            Route::Pointwise | Route::Gemm => {}
        }
        let (isa, n) = (self.isa, Group::new(s));
        self.groups_of_images(s, &n, x, n.ic * n.inputs, y, n.oc * n.outputs, |g, threads, x, y| {
            let start = b.map_or(Start::Zero, |b| Start::Column(&b[g * n.oc..(g + 1) * n.oc]));
            let patches = Patches { s, images: 1, x };
            gemm::product(isa, threads, &n.weight(w, g), &patches, start, s.act, y, n.outputs);
        });
    }

    /// Calls `f` with each group of each image, its part of `from` and of `to`, and the threads it may use itself.
    fn groups_of_images(
        &self,
        s: &Conv2dSpec,
        n: &Group,
        from: &[E],
        from_len: usize,
        to: &mut [E],
        to_len: usize,
        f: impl Fn(usize, Threads, &[E], &mut [E]) + Sync,
    ) {
        // There are as many tasks as images if that keeps all threads busy; else each product is shared out. Each
        // output is computed alike.
        let pieces = s.batch * s.groups;
        let many = pieces >= 2 * par::threads();
        let threads = if many { Threads::This } else { Threads::All };
        let work = (n.oc * n.outputs).saturating_mul(n.terms);
        let grain = if many { (gemm::WORK / work.max(1)).max(1) } else { pieces };
        par::split(
            pieces,
            grain,
            (Rows(from, from_len), Rows(to, to_len)),
            &|first, (from, to): Pieces<'_, E>| {
                let pieces = from.0.chunks_exact(from_len).zip(to.0.chunks_exact_mut(to_len));
                for (at, (from, to)) in pieces.enumerate() {
                    f((first + at) % s.groups, threads, from, to);
                }
            },
        );
    }

    pub(crate) fn conv2d_vjp(
        &self,
        s: &Conv2dSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dw: Option<&mut [E]>,
        db: Option<&mut [E]>,
        scratch: &mut [E],
    ) {
        let route = Route::forced(self.isa.get(), self.forced.conv, s);
        self.conv2d_vjp_by(route, s, x, w, b, y, dy, dx, dw, db, scratch);
    }

    /// [`conv2d_vjp`](Self::conv2d_vjp) in a certain way, which must be able to.
    pub(crate) fn conv2d_vjp_by(
        &self,
        route: Route,
        s: &Conv2dSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dw: Option<&mut [E]>,
        db: Option<&mut [E]>,
        scratch: &mut [E],
    ) {
        check("conv2d_vjp", s, x.len(), w.len(), dy.len());
        // The gradient before the activation.
        let dy = match s.act {
            Unary::Identity => dy,
            act => {
                assert!(
                    scratch.len() >= dy.len(),
                    "conv2d_vjp: the scratch is not batch × out_channels × output"
                );
                let dz = &mut scratch[..dy.len()];
                if s.recomputes() {
                    self.conv2d_by(route, &Conv2dSpec { act: Unary::Identity, ..*s }, x, w, b, dz);
                    self.slope_in_place(act, dy, dz);
                } else {
                    self.unary_vjp(act, &[], y, dy, dz);
                }
                &*dz
            }
        };
        if let Some(dx) = dx {
            assert_eq!(dx.len(), x.len(), "conv2d_vjp: dx and x differ in length");
            match route {
                Route::Depthwise => depthwise::input_gradient(self.isa, s, w, dy, dx),
                Route::Winograd => winograd::input_gradient(self.isa, s, w, dy, dx),
                Route::Direct if s.in_channels / s.groups >= LANES => {
                    sweep::input_gradient(self.isa, s, w, dy, dx)
                }
                _ => self.conv2d_dx(s, w, dy, dx),
            }
        }
        if let Some(dw) = dw {
            assert_eq!(dw.len(), w.len(), "conv2d_vjp: dw and w differ in length");
            match route {
                Route::Depthwise => depthwise::weight_gradient(self.isa, s, x, dy, dw),
                Route::Direct | Route::Winograd => sweep::weight_gradient(self.isa, s, x, dy, dw),
                _ => self.conv2d_dw(s, x, dy, dw),
            }
        }
        if let Some(db) = db {
            assert_eq!(db.len(), s.out_channels, "conv2d_vjp: db is not out_channels");
            let (isa, channels, area) = (self.isa, s.out_channels, s.output[0] * s.output[1]);
            if area > 0 {
                par::split(channels, rows_per_task(s.batch * area), db, &|first, db| {
                    run::channel_sums(isa, channels, area, first, dy, db)
                });
            }
        }
    }

    /// The gradients of patches are Wᵀ·dy, a block of outputs at a time, and fold back into the image.
    fn conv2d_dx(&self, s: &Conv2dSpec, w: &[E], dy: &[E], dx: &mut [E]) {
        /// Elements of a block, about: it stays in the second cache between the product and the folding.
        const BLOCK: usize = 64 * 1024;
        let (isa, n) = (self.isa, Group::new(s));
        if n.ic * n.inputs == 0 || n.oc * n.outputs == 0 {
            return dx.fill(E::ZERO);
        }
        self.groups_of_images(s, &n, dy, n.oc * n.outputs, dx, n.ic * n.inputs, |g, threads, dy, dx| {
            let wt = n.weight(w, g).t();
            if is_pointwise(s) {
                let dy = Mat::new(dy, n.oc, n.outputs);
                return gemm::product(isa, threads, &wt, &dy, Start::Zero, Unary::Identity, dx, n.outputs);
            }
            dx.fill(E::ZERO);
            let block = (BLOCK / n.terms).next_multiple_of(48).min(n.outputs);
            let mut buffer = Scratch::<E>::new(n.terms * block);
            for from in (0..n.outputs).step_by(block) {
                let outputs = from..(from + block).min(n.outputs);
                let cols = &mut buffer[..n.terms * outputs.len()];
                let dy = Mat::strided(&dy[from..], n.oc, outputs.len(), n.outputs);
                gemm::product(isa, threads, &wt, &dy, Start::Zero, Unary::Identity, cols, outputs.len());
                let cols = &*cols;
                run::fold(isa, s, outputs.clone(), cols, &mut *dx);
            }
        });
    }

    /// dW += dy·patchesᵀ, one product over the outputs of all images: threads share out dW, not the sum.
    fn conv2d_dw(&self, s: &Conv2dSpec, x: &[E], dy: &[E], dw: &mut [E]) {
        let (isa, n) = (self.isa, Group::new(s));
        if dy.is_empty() || dw.is_empty() {
            return;
        }
        let weights = n.oc * n.terms;
        let many = s.groups >= 2 * par::threads();
        let threads = if many { Threads::This } else { Threads::All };
        par::split(
            s.groups,
            if many { 1 } else { s.groups },
            Rows(dw, weights),
            &|first, dw: Rows<&mut [E]>| {
                for (g, dw) in dw.0.chunks_exact_mut(weights).enumerate() {
                    let g = first + g;
                    let patches = PatchesT(Patches { s, images: s.batch, x: &x[g * n.ic * n.inputs..] });
                    let dy = Outputs {
                        channels: n.oc,
                        images: s.batch,
                        area: n.outputs,
                        image: s.out_channels * n.outputs,
                        dy: &dy[g * n.oc * n.outputs..],
                    };
                    gemm::product(isa, threads, &dy, &patches, Start::Add, Unary::Identity, dw, n.terms);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, on_threads, random, reals};

    fn spec(batch: usize, channels: [usize; 2], input: [usize; 2], kernel: [usize; 2]) -> Conv2dSpec {
        let s = Conv2dSpec {
            batch,
            in_channels: channels[0],
            out_channels: channels[1],
            input,
            output: [0; 2],
            kernel,
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
            groups: 1,
            act: Unary::Identity,
        };
        with(s, [1; 2], [0; 2], [1; 2], 1)
    }

    fn with(
        s: Conv2dSpec,
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        groups: usize,
    ) -> Conv2dSpec {
        let output = std::array::from_fn(|a| {
            (s.input[a] + 2 * padding[a]).saturating_sub(dilation[a] * (s.kernel[a] - 1) + 1) / stride[a] + 1
        });
        Conv2dSpec { output, stride, padding, dilation, groups, ..s }
    }

    fn specs() -> Vec<Conv2dSpec> {
        let one = [1, 1];
        let mut specs = vec![
            spec(1, [1, 1], [1, 1], [1, 1]),
            spec(2, [3, 1], [5, 7], [3, 3]),
            with(spec(3, [2, 4], [8, 6], [3, 3]), one, one, one, 1),
            with(spec(2, [4, 6], [9, 9], [3, 3]), [2, 2], one, one, 2),
            with(spec(1, [3, 5], [11, 10], [3, 2]), [2, 3], [1, 0], [2, 3], 1),
            with(spec(2, [5, 5], [7, 8], [3, 3]), one, one, one, 5),
            with(spec(2, [4, 4], [9, 9], [3, 3]), [2, 2], [2, 2], [2, 2], 4),
            with(spec(2, [3, 6], [6, 6], [3, 3]), one, one, one, 3),
            spec(2, [7, 9], [5, 5], [1, 1]),
            with(spec(2, [4, 6], [5, 5], [1, 1]), one, [0, 0], one, 2),
            with(spec(2, [4, 3], [7, 7], [1, 1]), [2, 2], [0, 0], one, 1),
            with(spec(1, [1, 2], [3, 3], [5, 5]), one, [3, 2], one, 1),
            // Outputs that stop before the image does.
            Conv2dSpec { output: [4, 5], ..spec(2, [3, 2], [5, 7], [1, 1]) },
            Conv2dSpec { output: [5, 3], ..spec(1, [3, 2], [5, 4], [1, 1]) },
            Conv2dSpec { output: [2, 2], ..spec(2, [3, 2], [5, 7], [3, 3]) },
        ];
        if !cfg!(miri) {
            specs.push(with(spec(3, [16, 32], [14, 14], [3, 3]), one, one, one, 1));
            specs.push(with(spec(2, [20, 1], [33, 31], [5, 5]), [2, 1], [2, 2], one, 1));
        }
        specs
    }

    /// Calls `f` with the places of every product of the convolution: in x, in w and in y.
    fn products(s: &Conv2dSpec, mut f: impl FnMut(usize, usize, usize)) {
        let ([h, w], [oh, ow], [kh, kw]) = (s.input, s.output, s.kernel);
        let (ic, oc) = (s.in_channels / s.groups, s.out_channels / s.groups);
        let pairs = |n: usize, m: usize| (0..n * m).map(move |i| (i / m, i % m));
        for (image, o) in pairs(s.batch, s.out_channels) {
            for (i, tap) in pairs(ic, kh * kw) {
                let (ki, kj) = (tap / kw, tap % kw);
                let channel = image * s.in_channels + o / oc * ic + i;
                for (r, c) in pairs(oh, ow) {
                    let row = (r * s.stride[0] + ki * s.dilation[0]).wrapping_sub(s.padding[0]);
                    let col = (c * s.stride[1] + kj * s.dilation[1]).wrapping_sub(s.padding[1]);
                    if row < h && col < w {
                        let y = ((image * s.out_channels + o) * oh + r) * ow + c;
                        f((channel * h + row) * w + col, (o * ic + i) * kh * kw + tap, y);
                    }
                }
            }
        }
    }

    struct Case {
        s: Conv2dSpec,
        x: Vec<f64>,
        w: Vec<f64>,
        b: Vec<f64>,
        dy: Vec<f64>,
    }

    impl Case {
        fn new(s: Conv2dSpec) -> Self {
            let outputs = s.batch * s.out_channels * s.output[0] * s.output[1];
            Self {
                s,
                x: random(1, s.batch * s.in_channels * s.input[0] * s.input[1]),
                w: random(2, s.out_channels * s.in_channels / s.groups * s.kernel[0] * s.kernel[1]),
                b: random(3, s.out_channels),
                dy: random(4, outputs),
            }
        }

        /// y, dx, dw and db; the last two added to ones.
        fn expected(&self) -> [Vec<f64>; 4] {
            let area = self.s.output[0] * self.s.output[1];
            let channel = |i: usize| i / area % self.s.out_channels;
            let mut y: Vec<f64> = (0..self.dy.len()).map(|i| self.b[channel(i)]).collect();
            let (mut dx, mut dw) = (vec![0.0; self.x.len()], vec![1.0; self.w.len()]);
            products(&self.s, |x, w, o| {
                y[o] += self.x[x] * self.w[w];
                dx[x] += self.dy[o] * self.w[w];
                dw[w] += self.dy[o] * self.x[x];
            });
            let mut db = vec![1.0; self.b.len()];
            self.dy.iter().enumerate().for_each(|(i, g)| db[channel(i)] += g);
            [y, dx, dw, db]
        }

        fn found<E: Real>(&self, device: &Kernels<E>) -> [Vec<E>; 4] {
            let (x, w, b, dy) = (reals(&self.x), reals(&self.w), reals(&self.b), reals(&self.dy));
            let mut y = vec![E::from_f64(f64::NAN); dy.len()];
            let mut dx = vec![E::from_f64(f64::NAN); x.len()];
            let (mut dw, mut db) = (vec![E::ONE; w.len()], vec![E::ONE; b.len()]);
            device.conv2d(&self.s, &x, &w, Some(&b), &mut y, &mut []);
            let (gx, gw, gb) = (Some(&mut dx[..]), Some(&mut dw[..]), Some(&mut db[..]));
            let mut scratch = vec![E::from_f64(f64::NAN); self.s.vjp_scratch()];
            device.conv2d_vjp(&self.s, &x, &w, Some(&b), &y, &dy, gx, gw, gb, &mut scratch);
            [y, dx, dw, db]
        }
    }

    fn matches<E: Real>(tolerance: f64) {
        for s in specs() {
            let case = Case::new(s);
            let expected = case.expected();
            for device in devices::<E>() {
                for (name, (found, expected)) in
                    ["y", "dx", "dw", "db"].iter().zip(case.found(&device).iter().zip(&expected))
                {
                    assert_close(found, expected, tolerance, &format!("{name} {device:?} {s:?}"));
                }
            }
        }
    }

    #[test]
    fn outputs_and_gradients_are_the_sums_over_all_taps() {
        matches::<f32>(1e-6);
        matches::<f64>(3e-15);
    }

    /// Sizes that no tile divides, at the channels and batches where edges lie.
    fn odd_specs() -> Vec<Conv2dSpec> {
        let one = [1, 1];
        let mut specs = Vec::new();
        for (batch, channels) in [(1, [1, 17]), (3, [3, 1]), (1, [17, 3]), (3, [17, 17])] {
            for (input, kernel) in [([7, 10], [3, 3]), ([6, 5], [1, 1]), ([9, 6], [3, 2]), ([1, 11], [1, 5])]
            {
                for (stride, padding, dilation) in [
                    (one, [0, 0], one),
                    (one, one, one),
                    ([2, 2], one, one),
                    ([2, 3], [2, 0], [1, 2]),
                    (one, [4, 3], one),
                ] {
                    let padded: [usize; 2] = std::array::from_fn(|a| input[a] + 2 * padding[a]);
                    if (0..2).all(|a| padded[a] > dilation[a] * (kernel[a] - 1)) {
                        specs.push(with(spec(batch, channels, input, kernel), stride, padding, dilation, 1));
                    }
                }
            }
        }
        specs.push(with(spec(3, [6, 34], [5, 8], [3, 3]), one, one, one, 2));
        specs.push(with(spec(1, [34, 36], [9, 7], [3, 3]), one, one, one, 1));
        specs.push(with(spec(3, [17, 17], [9, 37], [3, 3]), [2, 2], one, one, 17));
        specs.push(with(spec(3, [3, 3], [8, 21], [5, 5]), one, [2, 2], one, 3));
        specs
    }

    fn routes_agree<E: Real>(tolerance: impl Fn(usize) -> f64) {
        let mut taken = [0; Route::ALL.len()];
        let specs = specs().into_iter().chain(odd_specs());
        for s in specs.take(if cfg!(miri) { 12 } else { usize::MAX }) {
            let case = Case::new(s);
            let [y, dx, dw, db] = case.expected();
            let (x, w, b, g) = (reals(&case.x), reals(&case.w), reals(&case.b), reals(&case.dy));
            let terms = w.len() / s.out_channels;
            let outputs = s.output[0] * s.output[1];
            for (route, taken) in Route::ALL.iter().zip(&mut taken).filter(|(route, _)| route.can(&s)) {
                *taken += 1;
                for device in devices::<E>() {
                    let what = format!("{route:?} {device:?} {s:?}");
                    let (mut found_y, mut found_dx) =
                        (vec![E::lit(f64::NAN); y.len()], vec![E::lit(f64::NAN); x.len()]);
                    let (mut found_dw, mut found_db) = (vec![E::ONE; w.len()], vec![E::ONE; b.len()]);
                    device.conv2d_by(*route, &s, &x, &w, Some(&b), &mut found_y);
                    assert_close(&found_y, &y, tolerance(terms), &format!("y {what}"));
                    let (gx, gw) = (Some(&mut found_dx[..]), Some(&mut found_dw[..]));
                    let gb = Some(&mut found_db[..]);
                    device.conv2d_vjp_by(*route, &s, &x, &w, None, &[], &g, gx, gw, gb, &mut []);
                    assert_close(&found_dx, &dx, tolerance(terms), &format!("dx {what}"));
                    assert_close(&found_dw, &dw, tolerance(s.batch * outputs), &format!("dw {what}"));
                    assert_close(&found_db, &db, tolerance(s.batch * outputs), &format!("db {what}"));
                    if *route == Route::Direct {
                        // Few channels of x take another way by themselves.
                        found_dx.fill(E::lit(f64::NAN));
                        sweep::input_gradient(device.isa, &s, &w, &g, &mut found_dx);
                        assert_close(&found_dx, &dx, tolerance(terms), &format!("dx {what}"));
                    }
                }
            }
        }
        assert!(cfg!(miri) || taken.iter().all(|taken| *taken > 0), "{taken:?}");
    }

    #[test]
    fn all_routes_give_the_same_within_rounding() {
        routes_agree::<f32>(|terms| 2e-6 * (terms as f64).sqrt());
        routes_agree::<f64>(|_| 1e-12);
    }

    /// Those whose slope is a function of y, those for which the convolution is computed again, and one of constants.
    const ACTS: [Unary; 5] =
        [Unary::Relu, Unary::Tanh, Unary::Silu, Unary::Gelu, Unary::Affine { scale: 2.0, shift: 0.5 }];

    fn activations_fuse<E: Real>() {
        let mut taken = [0; Route::ALL.len()];
        let specs = specs().into_iter().chain(odd_specs()).chain([
            // So many outputs that there are several bands of them, and several blocks.
            with(spec(2, [3, 20], [40, 41], [3, 3]), [1, 1], [1, 1], [1, 1], 1),
            with(spec(1, [33, 40], [38, 37], [3, 3]), [1, 1], [1, 1], [1, 1], 1),
            spec(1, [2, 3], [30, 31], [1, 1]),
        ]);
        for s in specs.take(if cfg!(miri) { 8 } else { usize::MAX }) {
            let case = Case::new(s);
            let (x, w, b, dy): (Vec<E>, Vec<E>, Vec<E>, Vec<E>) =
                (reals(&case.x), reals(&case.w), reals(&case.b), reals(&case.dy));
            let room = |like: &[E]| vec![E::lit(f64::NAN); like.len()];
            for (route, taken) in Route::ALL.iter().zip(&mut taken).filter(|(route, _)| route.can(&s)) {
                *taken += 1;
                for device in devices::<E>() {
                    let mut plain = room(&dy);
                    device.conv2d_by(*route, &s, &x, &w, Some(&b), &mut plain);
                    for act in ACTS {
                        let what = format!("{act:?} {route:?} {device:?} {s:?}");
                        let fused = Conv2dSpec { act, ..s };
                        let (mut y, mut after) = (room(&dy), room(&dy));
                        device.conv2d_by(*route, &fused, &x, &w, Some(&b), &mut y);
                        device.unary(act, &plain, &mut after);
                        assert!(y == after, "y {what}");

                        let gradients = |s: &Conv2dSpec, y: &[E], dy: &[E]| {
                            let (mut dx, mut dw, mut db) = (room(&x), w.clone(), b.clone());
                            let (gx, gw, gb) = (Some(&mut dx[..]), Some(&mut dw[..]), Some(&mut db[..]));
                            let mut scratch = vec![E::lit(f64::NAN); s.vjp_scratch()];
                            let bias = s.recomputes().then_some(&b[..]);
                            device.conv2d_vjp_by(*route, s, &x, &w, bias, y, dy, gx, gw, gb, &mut scratch);
                            [dx, dw, db]
                        };
                        let mut dz = room(&dy);
                        device.unary_vjp(act, &plain, &after, &dy, &mut dz);
                        let y = if fused.needs_y() { &y[..] } else { &[] };
                        assert!(gradients(&fused, y, &dy) == gradients(&s, &[], &dz), "gradients {what}");
                    }
                }
            }
        }
        assert!(cfg!(miri) || taken.iter().all(|taken| *taken > 0), "{taken:?}");
    }

    #[test]
    fn an_activation_in_the_convolution_is_the_one_after_it() {
        activations_fuse::<f32>();
        activations_fuse::<f64>();
    }

    #[test]
    fn the_gradients_are_those_of_the_outputs() {
        let acts = [Unary::Identity, Unary::Tanh, Unary::Silu];
        for s in specs().into_iter().take(7).flat_map(|s| acts.map(|act| Conv2dSpec { act, ..s })) {
            let case = Case::new(s);
            let device = devices::<f64>()[0];
            let loss = |x: &[f64], w: &[f64]| {
                let mut y = vec![0.0; case.dy.len()];
                device.conv2d(&s, x, w, Some(&case.b), &mut y, &mut []);
                y.iter().zip(&case.dy).map(|(y, g)| y * g).sum::<f64>()
            };
            let [_, dx, dw, _] = case.found(&device);
            let dw: Vec<f64> = dw.iter().map(|g| g - 1.0).collect();
            assert_close(&dx, &crate::cpu::testing::gradient(&case.x, |x| loss(x, &case.w)), 1e-8, "dx");
            assert_close(&dw, &crate::cpu::testing::gradient(&case.w, |w| loss(&case.x, w)), 1e-8, "dw");
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let one = [1, 1];
        for s in [
            with(spec(9, [16, 32], [14, 14], [3, 3]), one, one, one, 1),
            with(spec(1, [16, 64], [30, 30], [3, 3]), one, one, one, 1),
            with(spec(3, [64, 64], [16, 16], [3, 3]), one, one, one, 64),
            with(spec(3, [32, 64], [16, 16], [3, 3]), one, one, one, 16),
            with(spec(9, [32, 33], [13, 12], [3, 3]), one, one, one, 1),
            with(spec(1, [32, 80], [13, 12], [3, 3]), one, one, one, 1),
            with(spec(9, [16, 32], [14, 14], [3, 3]), [2, 2], one, one, 1),
        ] {
            let case = Case::new(Conv2dSpec { act: Unary::Gelu, ..s });
            for device in devices::<f32>() {
                let run = |threads| on_threads(threads, || case.found(&device));
                assert!(run(1) == run(4), "{device:?} {s:?}");
            }
        }
    }

    #[test]
    fn an_image_has_the_same_bits_alone_and_in_a_batch() {
        for s in specs().into_iter().chain(odd_specs()).filter(|s| s.batch > 1) {
            let case = Case::new(s);
            let last = Case {
                s: Conv2dSpec { batch: 1, ..s },
                x: case.x[case.x.len() / s.batch * (s.batch - 1)..].to_vec(),
                dy: case.dy[case.dy.len() / s.batch * (s.batch - 1)..].to_vec(),
                ..Case::new(s)
            };
            for device in devices::<f32>() {
                let ([y, dx, ..], [y1, dx1, ..]) = (case.found(&device), last.found(&device));
                assert_eq!(y1, y[y.len() - y1.len()..]);
                assert_eq!(dx1, dx[dx.len() - dx1.len()..]);
            }
        }
    }

    #[test]
    fn routes_depend_on_the_layer_alone() {
        let one = [1, 1];
        assert_eq!(Route::new(Isa::Avx2, &spec(1, [3, 4], [8, 8], [3, 3])).name(), "direct");
        assert_eq!(Route::new(Isa::Avx2, &spec(1, [4, 3], [8, 8], [3, 3])).name(), "implicit gemm");
        assert_eq!(Route::new(Isa::Avx2, &spec(9, [64, 32], [8, 8], [3, 3])).name(), "winograd");
        assert_eq!(
            Route::new(Isa::Avx2, &with(spec(1, [64, 32], [8, 8], [3, 3]), [2, 2], one, one, 1)).name(),
            "direct"
        );
        assert_eq!(Route::new(Isa::Avx2, &spec(9, [3, 4], [8, 8], [1, 1])).name(), "pointwise gemm");
        assert_eq!(
            Route::new(Isa::Avx2, &with(spec(1, [4, 4], [8, 8], [3, 3]), one, one, one, 4)).name(),
            "depthwise"
        );
    }

    #[test]
    #[should_panic(expected = "the kernel leaves the padded image")]
    fn an_output_that_is_too_large_is_refused() {
        let s = Conv2dSpec { output: [4, 3], ..spec(1, [1, 1], [5, 5], [3, 3]) };
        devices::<f32>()[0].conv2d(&s, &[0.0; 25], &[0.0; 9], None, &mut [0.0; 12], &mut []);
    }
}
