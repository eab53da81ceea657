use super::compile::File;
use super::dnn::{self, Pass};
use super::launch::{Grid, Kernel, Struct};
use super::linear::{add_parts, splits};
use super::memory::{View, ViewMut};
use super::route::{ConvRoute, Form, Tiles};
use super::sums::Channels;
use super::{Cuda, CudaReal, libraries};
use crate::cpu::conv::check;
use crate::ops::{Conv, Conv2dSpec, Unary};

const fn kernel(name: &'static str) -> Kernel {
    Kernel::new(File::Conv, name)
}

/// Channels of a group from which on a tile of them is worth its emptiness.
const CHANNELS: usize = 8;

impl ConvRoute {
    const fn new(s: &Conv2dSpec) -> Self {
        if s.groups > 0 && s.out_channels / s.groups < CHANNELS { Self::Direct } else { Self::Gemm }
    }

    /// As it is told to users.
    const fn name(self) -> &'static str {
        match self {
            Self::Gemm => "implicit gemm",
            Self::Direct => "direct",
        }
    }
}

/// A convolution as kernels know it, with channels of one group.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Shape {
    batch: u64,
    groups: u64,
    channels: [u64; 2],
    input: [u64; 2],
    output: [u64; 2],
    kernel: [u64; 2],
    stride: [u64; 2],
    padding: [u64; 2],
    dilation: [u64; 2],
}

impl Shape {
    /// Panics if sizes of one group's product, or of one image, are so large that kernels would count wrong.
    #[track_caller]
    fn new(s: &Conv2dSpec) -> Self {
        let taps = s.kernel[0] * s.kernel[1];
        let padded = |a: usize| s.input[a] + 2 * s.padding[a];
        for size in [
            s.batch * s.output[0] * s.output[1],
            s.batch * s.input[0] * s.input[1],
            s.in_channels * s.input[0] * s.input[1],
            s.out_channels * s.output[0] * s.output[1],
            s.in_channels * taps,
            s.out_channels * taps,
            padded(0) * padded(1),
        ] {
            assert!(size < 1 << 31, "conv2d: {size} pixels or terms, of fewer than 2³¹ that a GPU counts");
        }
        let both = |sizes: [usize; 2]| sizes.map(|size| size as u64);
        Self {
            batch: s.batch as u64,
            groups: s.groups as u64,
            channels: both([s.in_channels / s.groups, s.out_channels / s.groups]),
            input: both(s.input),
            output: both(s.output),
            kernel: both(s.kernel),
            stride: both(s.stride),
            padding: both(s.padding),
            dilation: both(s.dilation),
        }
    }
}

impl<E: CudaReal> Cuda<E> {
    fn conv_route(&self, s: &Conv2dSpec) -> ConvRoute {
        self.core.forced.conv.unwrap_or(ConvRoute::new(s))
    }

    /// Records one by cuDNN, if it is to have it and takes it. `x`, `w` and `y` are addresses, of their gradients where
    /// these are wanted.
    fn conv_by_library(&self, s: &Conv2dSpec, pass: Pass, [x, w, y]: [u64; 3]) -> bool {
        let forced = self.core.forced.dnn;
        if !E::SINGLE || !forced.unwrap_or(pays(s)) || !dnn::knows(s, [x, w, y]) {
            return false;
        }
        let tf32 = self.form(None, &multiplications(s)) == Form::Tensor;
        self.record().convolution(s, pass, tf32, [x, w, y], forced == Some(true))
    }
}

fn multiplications(s: &Conv2dSpec) -> [usize; 7] {
    let [[height, width], [rows, columns]] = [s.output, s.kernel];
    [s.batch, s.out_channels, height, width, s.in_channels / s.groups, rows, columns]
}

/// Whether cuDNN is to have a convolution: groups of few channels are not what its algorithms are made for.
fn pays(s: &Conv2dSpec) -> bool {
    ConvRoute::new(s) == ConvRoute::Gemm && libraries::pays(&multiplications(s))
}

impl<E: CudaReal> Conv for Cuda<E> {
    fn conv2d(
        &self,
        s: &Conv2dSpec,
        x: View<'_, E>,
        w: View<'_, E>,
        b: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
        _: ViewMut<'_, E>,
    ) {
        check("conv2d", s, x.len(), w.len(), y.len());
        b.inspect(|b| assert_eq!(b.len(), s.out_channels, "conv2d: the bias is not out_channels"));
        self.sums_of_conv(s, x, w, b, &y);
        if s.act != Unary::Identity {
            self.apply_in_place(s.act, &y);
        }
    }

    fn conv2d_vjp(
        &self,
        s: &Conv2dSpec,
        x: View<'_, E>,
        w: View<'_, E>,
        b: Option<View<'_, E>>,
        y: View<'_, E>,
        dy: View<'_, E>,
        dx: Option<ViewMut<'_, E>>,
        dw: Option<ViewMut<'_, E>>,
        db: Option<ViewMut<'_, E>>,
        scratch: ViewMut<'_, E>,
    ) {
        check("conv2d_vjp", s, x.len(), w.len(), dy.len());
        b.inspect(|b| assert_eq!(b.len(), s.out_channels, "conv2d_vjp: the bias is not out_channels"));
        let room;
        // The gradient before the activation.
        let dy = match s.act {
            Unary::Identity => dy,
            act => {
                let enough = scratch.len() >= dy.len();
                assert!(enough, "conv2d_vjp: the scratch is not batch × out_channels × output");
                room = scratch.first(dy.len());
                if s.recomputes() {
                    self.sums_of_conv(s, x, w, b, &room);
                    self.pull_in_place(act, dy, &room);
                } else {
                    let known = if s.needs_y() { y } else { dy };
                    assert_eq!(known.len(), dy.len(), "conv2d_vjp: y and dy differ in length");
                    self.pull(act, known, dy, &room);
                }
                room.read()
            }
        };
        if let Some(dx) = dx {
            assert_eq!(dx.len(), x.len(), "conv2d_vjp: dx and x differ in length");
            self.conv_dx(s, w, dy, &dx);
        }
        if let Some(dw) = dw {
            assert_eq!(dw.len(), w.len(), "conv2d_vjp: dw and w differ in length");
            self.conv_dw(s, x, dy, &dw);
        }
        if let Some(db) = db {
            assert_eq!(db.len(), s.out_channels, "conv2d_vjp: db is not out_channels");
            let area = s.output[0] * s.output[1];
            self.add_channel_sums(Channels { batch: s.batch, channels: s.out_channels, area }, dy, &db);
        }
    }

    fn conv2d_route(s: &Conv2dSpec) -> &'static str {
        let library = E::SINGLE && pays(s) && libraries::has_dnn();
        if library { "cudnn" } else { ConvRoute::new(s).name() }
    }
}

impl<E: CudaReal> Cuda<E> {
    /// y = conv(x, w) + b.
    fn sums_of_conv(
        &self,
        s: &Conv2dSpec,
        x: View<'_, E>,
        w: View<'_, E>,
        b: Option<View<'_, E>>,
        y: &ViewMut<'_, E>,
    ) {
        if y.len() == 0 {
            return;
        }
        if self.conv_by_library(s, Pass::Forward, [x.address(), w.address(), y.address()]) {
            if let Some(b) = b {
                let images = s.batch * s.out_channels;
                let area = s.output[0] * s.output[1];
                let mut record = self.record();
                let launch = record.launch(kernel("add_bias"), Grid::rows(images, Tiles::THREADS));
                launch.arg(b).arg(y).arg(images).arg(s.out_channels).arg(area).done();
            }
            return;
        }
        let (rows, cols) = (s.out_channels / s.groups, s.batch * s.output[0] * s.output[1]);
        let tiles = Tiles::suiting(self.core.forced.tiles, rows, cols * s.groups);
        let (name, grid) = match (self.conv_route(s), tiles) {
            (ConvRoute::Direct, _) => ("direct", Grid::flat(y.len())),
            (ConvRoute::Gemm, Tiles::Large) => ("large", Self::conv_grid(tiles, rows, cols, s.groups)),
            (ConvRoute::Gemm, Tiles::Small) => ("small", Self::conv_grid(tiles, rows, cols, s.groups)),
        };
        let shape = Shape::new(s);
        self.record().launch(kernel(name), grid).arg(Struct(&shape)).arg(x).arg(w).arg(b).arg(y).done();
    }

    fn conv_grid(tiles: Tiles, rows: usize, cols: usize, groups: usize) -> Grid {
        Grid::blocks([tiles.count(rows, cols), groups, 1], Tiles::THREADS)
    }

    fn conv_dx(&self, s: &Conv2dSpec, w: View<'_, E>, dy: View<'_, E>, dx: &ViewMut<'_, E>) {
        if self.conv_by_library(s, Pass::Data, [dx.address(), w.address(), dy.address()]) {
            return;
        }
        let (rows, cols) = (s.in_channels / s.groups, s.batch * s.input[0] * s.input[1]);
        let tiles = Tiles::suiting(self.core.forced.tiles, rows, cols * s.groups);
        // By the channels of x, which are the rows of this product.
        let direct = match self.core.forced.conv {
            Some(route) => route == ConvRoute::Direct,
            None => rows < CHANNELS,
        };
        let (name, grid) = match (direct, tiles) {
            (true, _) => ("direct_dx", Grid::flat(dx.len())),
            (false, Tiles::Large) => ("large_dx", Self::conv_grid(tiles, rows, cols, s.groups)),
            (false, Tiles::Small) => ("small_dx", Self::conv_grid(tiles, rows, cols, s.groups)),
        };
        let shape = Shape::new(s);
        self.record().launch(kernel(name), grid).arg(Struct(&shape)).arg(w).arg(dy).arg(dx).done();
    }

    fn conv_dw(&self, s: &Conv2dSpec, x: View<'_, E>, dy: View<'_, E>, dw: &ViewMut<'_, E>) {
        if self.conv_by_library(s, Pass::Filter, [x.address(), dw.address(), dy.address()]) {
            return;
        }
        let shape = Shape::new(s);
        let mut record = self.record();
        if self.conv_route(s) == ConvRoute::Direct {
            let launch = record.launch(kernel("direct_dw"), Grid::rows(dw.len(), 128));
            launch.arg(Struct(&shape)).arg(x).arg(dy).arg(dw).done();
            return;
        }
        let rows = s.out_channels / s.groups;
        let cols = s.in_channels / s.groups * s.kernel[0] * s.kernel[1];
        let depth = s.batch * s.output[0] * s.output[1];
        let tiles = Tiles::suiting(self.core.forced.tiles, rows, cols * s.groups);
        let splits = splits(tiles.count(rows, cols) * s.groups, depth);
        let parts = record.scratch(size_of::<E::Wide>() * splits * dw.len());
        let name = match tiles {
            Tiles::Large => "large_dw",
            Tiles::Small => "small_dw",
        };
        let grid = Grid::blocks([tiles.count(rows, cols), s.groups, splits], Tiles::THREADS);
        let launch = record.launch(kernel(name), grid).arg(Struct(&shape)).arg(x).arg(dy).arg(parts);
        launch.arg(depth.div_ceil(splits)).done();
        add_parts(&mut record, parts, splits, dw);
    }
}
