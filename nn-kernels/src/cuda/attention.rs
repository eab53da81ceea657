use super::compile::{Defines, File};
use super::launch::{Address, Grid, Kernel, Live, Struct};
use super::memory::{View, ViewMut};
use super::route::Form;
use super::{Cuda, CudaReal};
use crate::cpu::attention::sheet::{Extent, are_apart};
use crate::cpu::attention::{keys, queries, together};
use crate::cpu::size::{reach, size};
use crate::ops::{Attention, AttentionGradients, AttentionSpec, Strides};

/// Threads of a block.
const THREADS: usize = 256;

/// A kernel for heads of so many values.
fn kernel(name: &'static str, head: Head) -> Kernel {
    Kernel::new(File::Attention, name).with(head.defines)
}

/// The same, on tensor cores.
fn tensor_kernel(name: &'static str, head: Head) -> Kernel {
    Kernel::new(File::AttentionTensor, name).with(head.defines)
}

/// How many values of a head a block has: a constant of its kernel, as they are in registers.
pub(super) const HEADS: [Defines; 5] =
    [&[("HEAD", 16)], &[("HEAD", 32)], &[("HEAD", 64)], &[("HEAD", 128)], &[("HEAD", 256)]];
/// Those of heads that tensor cores are used for, which must have just as many.
pub(super) const TENSOR_HEADS: [Defines; 3] = [HEADS[1], HEADS[2], HEADS[3]];

/// One of [`HEADS`].
#[derive(Debug, Clone, Copy)]
struct Head {
    values: usize,
    defines: Defines,
}

impl Head {
    fn new(defines: Defines) -> Self {
        Self { values: defines[0].1 as usize, defines }
    }

    /// The narrowest of the first `n` that a head fits, or the widest of them.
    fn of(head_dim: usize, n: usize) -> Self {
        let mut offered = HEADS[..n].iter().map(|&defines| Self::new(defines));
        offered.find(|head| head_dim <= head.values).unwrap_or(Self::new(HEADS[n - 1]))
    }
}

/// A spec as kernels know it.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Shape {
    /// Batch, q_len, k_len, heads, kv_heads, head_dim, causal.
    sizes: [u64; 7],
    /// Of q, k, v and y, from one sample, token and head to the next.
    steps: [[u64; 3]; 4],
    scale: f64,
}

impl Shape {
    fn new(s: &AttentionSpec) -> Self {
        let steps = |at: Strides| [at.batch, at.token, at.head].map(|step| step as u64);
        let sizes = [s.batch, s.q_len, s.k_len, s.heads, s.kv_heads, s.head_dim, s.causal.into()];
        Self {
            sizes: sizes.map(|size| size as u64),
            steps: [steps(s.q), steps(s.k), steps(s.v), steps(s.y)],
            scale: s.scale,
        }
    }
}

/// Panics if an operand is smaller than the spec says: kernels read without further checks.
#[track_caller]
fn check<E: CudaReal>(
    name: &str,
    s: &AttentionSpec,
    operands: [(&str, View<'_, E>, Extent); 3],
    mask: Option<View<'_, E>>,
) {
    assert!(
        s.head_dim > 0 && s.kv_heads > 0 && s.heads.is_multiple_of(s.kv_heads),
        "{name}: {} query heads over {} heads of keys of {} values",
        s.heads,
        s.kv_heads,
        s.head_dim
    );
    size(name, &[s.batch, s.heads, s.q_len, s.head_dim]);
    size(name, &[s.batch, s.kv_heads, s.k_len, s.head_dim, 2]);
    // Positions are also counted with a sign.
    reach(name, 2, s.q_len.max(s.k_len), 1024);
    for (what, x, extent) in operands {
        assert!(x.len() >= extent.len(name), "{name}: {what} of {} values", x.len());
    }
    if let Some(mask) = mask {
        assert_eq!(mask.len(), s.batch * s.k_len, "{name}: mask");
    }
}

/// A block for each tile of `tile` rows, head, sample and slice of a head.
fn grid(s: &AttentionSpec, rows: usize, tile: usize, heads: usize, slice: usize) -> Grid {
    let blocks = [rows.div_ceil(tile), heads, s.batch, s.head_dim.div_ceil(slice)];
    Grid::blocks([size("attention", &blocks), 1, 1], THREADS)
}

/// The tiles of a kernel on tensor cores, as in `attention_tensor.cu`.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    /// Rows, and how many tensors they are of.
    rows: usize,
    tensors: usize,
    /// Columns, of two tensors.
    cols: usize,
    /// Bytes of an element.
    element: usize,
}

impl Tiles {
    const THREADS: usize = 128;

    fn forward(head: Head, element: usize) -> Self {
        Self { rows: if head.values <= 64 { 128 } else { 64 }, tensors: 1, cols: 32, element }
    }
    fn queries(head: Head, element: usize) -> Self {
        Self { rows: if head.values <= 32 { 128 } else { 64 }, tensors: 2, cols: 32, element }
    }
    fn keys(head: Head, element: usize) -> Self {
        Self { rows: 64, tensors: 2, cols: if head.values <= 64 { 32 } else { 32 / element }, element }
    }

    /// Bytes of shared memory: of the rows, and of two stages of columns with two numbers for each.
    fn bytes(self, head: Head) -> usize {
        let pitch = self.element * head.values + 16;
        self.tensors * self.rows * pitch + 2 * self.cols * (2 * pitch + 2 * size_of::<f32>())
    }

    fn grid(self, s: &AttentionSpec, head: Head, rows: usize, heads: usize) -> Grid {
        let blocks = [rows.div_ceil(self.rows), heads, s.batch];
        Grid::blocks([size("attention", &blocks), 1, 1], Self::THREADS).shared(self.bytes(head))
    }
}

/// Whether the tokens of a tensor all start at multiples of 16 bytes, so that so many are copied at once.
fn is_wide<E: CudaReal>(x: View<'_, E>, at: Strides) -> bool {
    x.address().is_multiple_of(16)
        && [at.batch, at.token, at.head].iter().all(|step| (step * size_of::<E>()).is_multiple_of(16))
}

impl<E: CudaReal> Cuda<E> {
    /// Queries or keys that a block has, as in `attention.cu`.
    const TILE: usize = if size_of::<E::Wide>() == 4 { 64 } else { 32 };

    /// The head's kernels on tensor cores, if they are the ones to take.
    fn tensor_head(&self, s: &AttentionSpec) -> Option<Head> {
        let head = TENSOR_HEADS.into_iter().map(Head::new).find(|head| head.values == s.head_dim)?;
        let of = size_of::<E>();
        let tiles = [Tiles::forward(head, of), Tiles::queries(head, of), Tiles::keys(head, of)];
        // Positions in a tile are counted in 32 bits.
        let fits =
            tiles.iter().all(|tiles| tiles.bytes(head) <= self.shared) && s.q_len.max(s.k_len) < 1 << 29;
        let products = [2, s.batch, s.heads, s.q_len, s.k_len, s.head_dim];
        (fits && self.form(self.core.forced.attention, &products) == Form::Tensor).then_some(head)
    }
}

impl<E: CudaReal> Attention for Cuda<E> {
    fn attention(
        &self,
        s: &AttentionSpec,
        q: View<'_, E>,
        k: View<'_, E>,
        v: View<'_, E>,
        mask: Option<View<'_, E>>,
        y: ViewMut<'_, E>,
        lse: Option<ViewMut<'_, E::Wide>>,
    ) {
        const NAME: &str = "attention";
        check(NAME, s, [("q", q, queries(s, s.q)), ("k", k, keys(s, s.k)), ("v", v, keys(s, s.v))], mask);
        queries(s, s.y).check_written(NAME, y.len());
        if let Some(lse) = &lse {
            assert_eq!(lse.len(), s.lse(), "{NAME}: lse");
        }
        // A sequence that goes on has more keys each time: their number is no part of what is replayed.
        let goes_on = s.causal && s.k_len > s.q_len;
        let keys_so_far = goes_on.then_some(Live::Word(s.k_len as u64));
        let (tensor, s) = (self.tensor_head(s), &together(s));
        let mut shape = Shape::new(s);
        if goes_on {
            shape.sizes[2] = 0;
        }
        let mut record = self.record();
        if let Some(head) = tensor {
            let wide = is_wide(q, s.q) && is_wide(k, s.k) && is_wide(v, s.v);
            let grid = Tiles::forward(head, size_of::<E>()).grid(s, head, s.q_len, s.heads);
            let launch = record.launch(tensor_kernel("attention_tensor", head), grid).arg(Struct(&shape));
            let launch = launch.arg(q).arg(k).arg(v).arg(mask).arg(&y).arg(lse.as_ref()).arg(wide);
            launch.arg(keys_so_far).done();
            return;
        }
        let head = Head::of(s.head_dim, 5);
        let grid = grid(s, s.q_len, Self::TILE, s.heads, head.values);
        let launch = record.launch(kernel("attention", head), grid).arg(Struct(&shape));
        let launch = launch.arg(q).arg(k).arg(v).arg(mask).arg(&y).arg(lse.as_ref());
        launch.arg(keys_so_far).done();
    }

    fn attention_vjp(
        &self,
        s: &AttentionSpec,
        q: View<'_, E>,
        k: View<'_, E>,
        v: View<'_, E>,
        mask: Option<View<'_, E>>,
        y: View<'_, E>,
        lse: View<'_, E::Wide>,
        dy: View<'_, E>,
        gradients: AttentionGradients<ViewMut<'_, E>>,
        scratch: ViewMut<'_, E::Wide>,
    ) {
        const NAME: &str = "attention_vjp";
        let extents = [queries(s, s.q), keys(s, s.k), keys(s, s.v)];
        check(NAME, s, [("q", q, extents[0]), ("k", k, extents[1]), ("v", v, extents[2])], mask);
        for (what, x) in [("y", y), ("dy", dy)] {
            assert!(x.len() >= queries(s, s.y).len(NAME), "{NAME}: {what} of {} values", x.len());
        }
        assert_eq!(lse.len(), s.lse(), "{NAME}: lse");
        assert_eq!(scratch.len(), s.vjp_scratch(), "{NAME}: scratch");
        let place = |to: &ViewMut<'_, E>, start: usize, extent: Extent| {
            assert!(start <= to.len(), "{NAME}: {} values, and a part that starts at {start}", to.len());
            extent.check_written(NAME, to.len() - start);
            Address(to.address() + (start * size_of::<E>()) as u64)
        };
        let [dq, dk, dv] = match &gradients {
            AttentionGradients::Packed { qkv, at } => {
                let parts = [(at[0], extents[0]), (at[1], extents[1]), (at[2], extents[2])];
                assert!(are_apart(NAME, parts), "{NAME}: rows that are written overlap");
                parts.map(|(start, extent)| Some(place(qkv, start, extent)))
            }
            AttentionGradients::Apart { q, k, v } => [
                q.as_ref().map(|q| place(q, 0, extents[0])),
                k.as_ref().map(|k| place(k, 0, extents[1])),
                v.as_ref().map(|v| place(v, 0, extents[2])),
            ],
        };

        let shape = Shape::new(s);
        let mut record = self.record();
        let delta = record.scratch(s.lse() * size_of::<E::Wide>());
        let needs_delta = dq.is_some() || dk.is_some();
        if let Some(head) = self.tensor_head(s) {
            let wide = is_wide(q, s.q) && is_wide(k, s.k) && is_wide(v, s.v) && is_wide(dy, s.y);
            if needs_delta {
                let grid = Grid::rows(s.lse().div_ceil(Tiles::THREADS / 32), Tiles::THREADS);
                let launch = record.launch(tensor_kernel("attention_tensor_delta", head), grid);
                launch.arg(Struct(&shape)).arg(y).arg(dy).arg(delta).done();
            }
            if let Some(dq) = dq {
                let grid = Tiles::queries(head, size_of::<E>()).grid(s, head, s.q_len, s.heads);
                let launch =
                    record.launch(tensor_kernel("attention_tensor_dq", head), grid).arg(Struct(&shape));
                launch.arg(q).arg(k).arg(v).arg(mask).arg(lse).arg(dy).arg(delta).arg(dq).arg(wide).done();
            }
            if dk.is_some() || dv.is_some() {
                let grid = Tiles::keys(head, size_of::<E>()).grid(s, head, s.k_len, s.kv_heads);
                let launch =
                    record.launch(tensor_kernel("attention_tensor_dkv", head), grid).arg(Struct(&shape));
                let launch = launch.arg(q).arg(k).arg(v).arg(mask).arg(lse).arg(dy).arg(delta);
                launch.arg(dk).arg(dv).arg(wide).done();
            }
            return;
        }
        let head = Head::of(s.head_dim, 5);
        if needs_delta {
            let grid = Grid::rows(s.lse().div_ceil(THREADS / 32), THREADS);
            let launch = record.launch(kernel("attention_delta", head), grid).arg(Struct(&shape));
            launch.arg(y).arg(dy).arg(delta).done();
        }
        if let Some(dq) = dq {
            let grid = grid(s, s.q_len, Self::TILE, s.heads, head.values);
            let launch = record.launch(kernel("attention_dq", head), grid).arg(Struct(&shape));
            launch.arg(q).arg(k).arg(v).arg(mask).arg(lse).arg(dy).arg(delta).arg(dq).done();
        }
        if dk.is_some() || dv.is_some() {
            // Sums of two gradients of 256 values would not fit the registers.
            let head = Head::of(s.head_dim, 4);
            let grid = grid(s, s.k_len, Self::TILE, s.kv_heads, head.values);
            let launch = record.launch(kernel("attention_dkv", head), grid).arg(Struct(&shape));
            launch.arg(q).arg(k).arg(v).arg(mask).arg(lse).arg(dy).arg(delta).arg(dk).arg(dv).done();
        }
    }
}
