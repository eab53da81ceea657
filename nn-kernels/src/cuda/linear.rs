use super::compile::File;
use super::elementwise::Function;
use super::launch::{Address, Argument, Grid, Kernel, Record, Struct};
use super::memory::{View, ViewMut};
use super::route::{Form, Tiles};
use super::{Cuda, CudaReal, blas, libraries, mlp, packed, sums};
use crate::cpu::linear::check;
use crate::ops::{Linear, LinearSpec, PackedSpec, Unary};

/// Blocks that keep a GPU busy.
pub(super) const BUSY: usize = 264;
/// Terms of a sum that a block should have at least.
const TERMS: usize = 512;

impl Tiles {
    pub(super) const fn rows(self) -> usize {
        match self {
            Self::Large => 64,
            Self::Small => 16,
        }
    }

    /// Threads of a block.
    pub(super) const THREADS: usize = 256;

    /// How many tiles a matrix of so many rows and columns has.
    pub(super) const fn count(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(self.rows()) * cols.div_ceil(64)
    }

    /// The form that suits a result of this size: small tiles where large ones would be mostly empty, or too few.
    pub(super) fn suiting(forced: Option<Self>, rows: usize, cols: usize) -> Self {
        let few = rows <= 32 || Self::Large.count(rows, cols) < BUSY / 2;
        forced.unwrap_or(if few { Self::Small } else { Self::Large })
    }
}

/// How many parts sums over `depth` terms are cut into where a result has so many tiles: as many as keep the GPU busy.
pub(super) fn splits(tiles: usize, depth: usize) -> usize {
    (BUSY / tiles.max(1)).clamp(1, depth.div_ceil(TERMS).max(1))
}

/// A factor of a product: value (i, k) lies at i·outer + k·inner, where i is a row of the left one and a column of the
/// right one.
#[derive(Clone, Copy)]
struct Factor<'a, E> {
    values: View<'a, E>,
    outer: usize,
    inner: usize,
}

impl<'a, E: CudaReal> Factor<'a, E> {
    /// Each i's values side by side.
    fn along_k(values: View<'a, E>, depth: usize) -> Self {
        Self { values, outer: depth, inner: 1 }
    }

    /// Each k's values side by side, `n` of them.
    fn across(values: View<'a, E>, n: usize) -> Self {
        Self { values, outer: 1, inner: n }
    }
}

/// What becomes of the sums.
#[derive(Clone, Copy)]
enum Mode {
    Store = 0,
    Add = 1,
    Part = 2,
}

/// Sizes as kernels know them.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Shape {
    rows: u64,
    cols: u64,
    depth: u64,
    each: u64,
    a: [u64; 2],
    b: [u64; 2],
}

/// A product of two matrices, by tiles.
#[derive(Clone, Copy)]
struct Product<'a, E> {
    rows: usize,
    cols: usize,
    depth: usize,
    a: Factor<'a, E>,
    b: Factor<'a, E>,
}

/// The kernel of a product.
#[derive(Clone, Copy)]
enum By {
    Tiles(Tiles),
    TensorCores,
}

impl By {
    /// Rows and columns of a tile on tensor cores, as in `gemm_tensor.cu`, terms of a step, of which there are twice as
    /// many of bfloat16, and steps in shared memory.
    const TILE: usize = 128;
    const DEPTH: usize = 16;
    const STAGES: usize = 3;
    /// Products of fewer rows or columns would leave most of such a tile empty.
    const FEW: usize = 16;

    fn count(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::Tiles(tiles) => tiles.count(rows, cols),
            Self::TensorCores => rows.div_ceil(Self::TILE) * cols.div_ceil(Self::TILE),
        }
    }

    /// Bytes of shared memory on tensor cores, by whether the terms of a factor lie side by side.
    fn shared(a_along: bool, b_along: bool) -> usize {
        let part =
            |along| if along { Self::TILE * (Self::DEPTH + 4) } else { Self::DEPTH * (Self::TILE + 8) };
        size_of::<f32>() * Self::STAGES * (part(a_along) + part(b_along))
    }
}

impl<E: CudaReal> Product<'_, E> {
    fn launch(
        &self,
        record: &mut Record<'_>,
        by: By,
        splits: usize,
        bias: Option<View<'_, E>>,
        act: Unary,
        mode: Mode,
        y: impl Argument,
    ) {
        let along = |factor: &Factor<'_, E>| factor.inner == 1;
        let (a_along, b_along) = (along(&self.a), along(&self.b));
        let blocks = [by.count(self.rows, self.cols), splits, 1];
        let (file, [kn, kk, mn], grid) = match by {
            By::Tiles(tiles) => {
                let names = match tiles {
                    Tiles::Large => ["large_kn", "large_kk", "large_mn"],
                    Tiles::Small => ["small_kn", "small_kk", "small_mn"],
                };
                (File::Linear, names, Grid::blocks(blocks, Tiles::THREADS))
            }
            By::TensorCores => {
                let grid = Grid::blocks(blocks, Tiles::THREADS).shared(By::shared(a_along, b_along));
                (File::GemmTensor, ["tensor_kn", "tensor_kk", "tensor_mn"], grid)
            }
        };
        let name = match (a_along, b_along) {
            (true, false) => kn,
            (true, true) => kk,
            (false, _) => mn,
        };
        let pair = |factor: &Factor<'_, E>| [factor.outer as u64, factor.inner as u64];
        let shape = Shape {
            rows: self.rows as u64,
            cols: self.cols as u64,
            depth: self.depth as u64,
            each: self.depth.div_ceil(splits).next_multiple_of(By::DEPTH * if E::BF16 { 2 } else { 1 })
                as u64,
            a: pair(&self.a),
            b: pair(&self.b),
        };
        let act = Function::new(act);
        let launch = record.launch(Kernel::new(file, name), grid).arg(Struct(&shape)).arg(Struct(&act));
        launch.arg(mode as u32).arg(self.a.values).arg(self.b.values).arg(bias).arg(y).done();
    }
}

/// y += the parts that splits of sums gave, one after the other.
pub(super) fn add_parts<E: CudaReal>(
    record: &mut Record<'_>,
    parts: Address,
    splits: usize,
    y: &ViewMut<'_, E>,
) {
    let launch = record.launch(sums::kernel("add_parts"), Grid::flat(y.len()));
    launch.arg(parts).arg(splits).arg(y).arg(y.len()).done();
}

/// The product x·W.
fn forward<'a, E: CudaReal>(s: &LinearSpec, x: View<'a, E>, w: View<'a, E>) -> Product<'a, E> {
    let w = if s.transposed { Factor::along_k(w, s.inputs) } else { Factor::across(w, s.outputs) };
    Product { rows: s.rows, cols: s.outputs, depth: s.inputs, a: Factor::along_k(x, s.inputs), b: w }
}

impl<E: CudaReal> Cuda<E> {
    /// Whether cuBLASLt computes with such elements as is meant here.
    pub(super) const fn knows_blas() -> bool {
        E::SINGLE || E::BF16
    }

    /// Records y = the product, or y += it, by cuBLASLt, if it is to have it and takes it.
    fn by_library(
        &self,
        p: &Product<'_, E>,
        bias: Option<View<'_, E>>,
        add: bool,
        y: &ViewMut<'_, E>,
    ) -> bool {
        let (forced, sizes) = (self.core.forced.blas, [p.rows, p.cols, p.depth]);
        let wanted = forced.unwrap_or(libraries::pays(&sizes));
        let counted = sizes.iter().all(|&size| size > 0 && size < 1 << 31);
        if !Self::knows_blas() || !wanted || !counted {
            return false;
        }
        // A column-major matrix whose columns are as long as what lies side by side. Of a single column the stride says
        // nothing, but it must not be less than its length.
        let factor = |factor: &Factor<'_, E>, n: usize, left: bool| match factor.inner {
            1 => blas::Factor { transposed: left, stride: factor.outer.max(p.depth) },
            inner => blas::Factor { transposed: !left, stride: inner.max(n) },
        };
        let shape = blas::Shape {
            m: p.cols,
            n: p.rows,
            k: p.depth,
            a: factor(&p.b, p.cols, true),
            b: factor(&p.a, p.rows, false),
            add,
            bias: bias.is_some(),
            precision: match (E::BF16, self.form(None, &sizes)) {
                (true, _) => blas::Precision::Bf16,
                (false, Form::Tensor) => blas::Precision::Tf32,
                (false, Form::Plain) => blas::Precision::Single,
            },
        };
        let operands =
            [p.b.values.address(), p.a.values.address(), y.address(), bias.map_or(0, View::address)];
        self.record().product(shape, operands, forced == Some(true))
    }

    /// The kernel to take for a product.
    fn suiting(&self, p: &Product<'_, E>) -> By {
        let forced = self.core.forced.linear;
        let full = forced.is_some() || p.rows.min(p.cols) > By::FEW;
        // Terms are counted in 32 bits there.
        let fits = p.depth < 1 << 30 && By::shared(true, true) <= self.shared;
        if full && fits && self.form(forced, &[p.rows, p.cols, p.depth]) == Form::Tensor {
            return By::TensorCores;
        }
        By::Tiles(Tiles::suiting(self.core.forced.tiles, p.rows, p.cols))
    }

    /// The product as a link of a chain, if it may be one. Where large tiles suit, it keeps a GPU busy by itself.
    fn link(
        &self,
        p: &Product<'_, E>,
        by: By,
        bias: Option<View<'_, E>>,
        act: Unary,
        mode: Mode,
        y: &ViewMut<'_, E>,
    ) -> Option<mlp::Link> {
        let small = matches!(by, By::Tiles(Tiles::Small));
        let wanted = self.core.forced.fused.unwrap_or(small) && !matches!(by, By::TensorCores);
        let along = p.a.inner == 1 && p.a.outer == p.depth;
        (wanted && along && matches!(mode, Mode::Store) && p.rows * p.cols > 0).then(|| {
            let (w, x) = (p.b.values.address(), p.a.values.address());
            mlp::Link::new(
                x,
                p.rows,
                mlp::Layer {
                    w,
                    bias: bias.map_or(0, View::address),
                    y: y.address(),
                    w_column: p.b.outer as u64,
                    w_k: p.b.inner as u64,
                    inputs: p.depth as u64,
                    outputs: p.cols as u64,
                    act: Function::new(act),
                },
            )
        })
    }

    fn product(
        &self,
        p: &Product<'_, E>,
        bias: Option<View<'_, E>>,
        act: Unary,
        mode: Mode,
        y: &ViewMut<'_, E>,
    ) {
        if self.by_library(p, bias, matches!(mode, Mode::Add), y) {
            if act != Unary::Identity {
                self.apply_in_place(act, y);
            }
            return;
        }
        let (by, mut record) = (self.suiting(p), self.record());
        let link = self.link(p, by, bias, act, mode, y);
        if link.as_ref().is_some_and(|link| link.join::<E>(&mut record, self.shared)) {
            return;
        }
        p.launch(&mut record, by, 1, bias, act, mode, y);
        if let Some(link) = link {
            link.start(&mut record);
        }
    }

    /// y += the product, whose sums may be cut into parts.
    fn add_product(&self, p: &Product<'_, E>, y: &ViewMut<'_, E>) {
        if self.by_library(p, None, true, y) {
            return;
        }
        let by = self.suiting(p);
        let splits = splits(by.count(p.rows, p.cols), p.depth);
        let mut record = self.record();
        if splits == 1 {
            p.launch(&mut record, by, 1, None, Unary::Identity, Mode::Add, y);
        } else {
            let parts = record.scratch(size_of::<E::Wide>() * splits * y.len());
            p.launch(&mut record, by, splits, None, Unary::Identity, Mode::Part, parts);
            add_parts(&mut record, parts, splits, y);
        }
    }
}

impl<E: CudaReal> Linear for Cuda<E> {
    fn linear(
        &self,
        s: &LinearSpec,
        x: View<'_, E>,
        w: View<'_, E>,
        b: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
    ) {
        check("linear", s, x.len(), w.len(), y.len(), b.map(View::len));
        self.product(&forward(s, x, w), b, s.act, Mode::Store, &y);
    }

    fn linear_vjp(
        &self,
        s: &LinearSpec,
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
        check("linear_vjp", s, x.len(), w.len(), dy.len(), b.map(View::len));
        dx.as_ref().inspect(|dx| assert_eq!(dx.len(), x.len(), "linear_vjp: dx and x differ in length"));
        dw.as_ref().inspect(|dw| assert_eq!(dw.len(), w.len(), "linear_vjp: dw and w differ in length"));
        db.as_ref().inspect(|db| assert_eq!(db.len(), s.outputs, "linear_vjp: db is not outputs"));
        let room;
        // The gradient before the activation.
        let dz = match s.act {
            Unary::Identity => dy,
            act => {
                assert!(scratch.len() >= dy.len(), "linear_vjp: the scratch is not rows × outputs");
                room = scratch.first(dy.len());
                if s.recomputes() {
                    self.product(&forward(s, x, w), b, Unary::Identity, Mode::Store, &room);
                    self.pull_in_place(act, dy, &room);
                } else {
                    let known = if s.needs_y() { y } else { dy };
                    assert_eq!(known.len(), dy.len(), "linear_vjp: y and dy differ in length");
                    self.pull(act, known, dy, &room);
                }
                room.read()
            }
        };
        if let Some(dx) = dx {
            let w = if s.transposed { Factor::across(w, s.inputs) } else { Factor::along_k(w, s.outputs) };
            let dz = Factor::along_k(dz, s.outputs);
            let p = Product { rows: s.rows, cols: s.inputs, depth: s.outputs, a: dz, b: w };
            self.product(&p, None, Unary::Identity, Mode::Store, &dx);
        }
        if let Some(dw) = dw {
            let (x, dz) = (Factor::across(x, s.inputs), Factor::across(dz, s.outputs));
            let (rows, cols, a, b) =
                if s.transposed { (s.outputs, s.inputs, dz, x) } else { (s.inputs, s.outputs, x, dz) };
            self.add_product(&Product { rows, cols, depth: s.rows, a, b }, &dw);
        }
        if let Some(db) = db {
            self.add_column_sums(s.rows, dz, &db);
        }
    }

    fn linear_add(&self, s: &LinearSpec, x: View<'_, E>, w: View<'_, E>, y: ViewMut<'_, E>) {
        check("linear_add", s, x.len(), w.len(), y.len(), None);
        assert_eq!(s.act, Unary::Identity, "linear_add: an activation");
        self.product(&forward(s, x, w), None, Unary::Identity, Mode::Add, &y);
    }

    fn packed_linear(
        &self,
        s: &PackedSpec,
        x: View<'_, E>,
        w: View<'_, E::Wide>,
        b: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
    ) {
        packed::linear(self, s, x, w, b, &y);
    }

    fn packed_linear_vjp(&self, s: &PackedSpec, w: View<'_, E::Wide>, dy: View<'_, E>, dx: ViewMut<'_, E>) {
        packed::linear_vjp(self, s, w, dy, &dx);
    }

    fn linear_route(s: &LinearSpec) -> &'static str {
        let large = libraries::pays(&[s.rows, s.inputs, s.outputs]);
        if Self::knows_blas() && large && libraries::has_blas() { "cublaslt" } else { "tiles" }
    }
}
