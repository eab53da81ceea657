//! Layers by themselves, called on slices.

use std::hint::black_box;

use nn::{
    Buffers, Conv2D, Cpu, Ctx, Embedding, Error, Forward, GELU, Ids, LayerNorm, Linear, MaskedAttention,
    Mode, Module, RMSNorm, RoPE, Signature, Softmax, T, Tensors, TensorsMut, Vjp, parameters_of,
};

use crate::{Work, ids, random};

type D = Cpu<f32>;

/// A layer with memory for its calls.
struct Single {
    device: D,
    batch: usize,
    buffers: Buffers<D>,
    params: Vec<f32>,
    dparams: Vec<f32>,
    x: Vec<f32>,
    ids: Vec<u32>,
    y: Vec<f32>,
    dy: Vec<f32>,
    dx: Vec<f32>,
}

impl Single {
    fn new<L: Module<D, X>, X: Signature>(batch: usize, ids: Vec<u32>) -> Result<Self, Error> {
        let device = D::new()?;
        let n = |sig: &nn::Sig| batch * sig.tensors()[0].dims.numel();
        let (inputs, outputs) = (n(&X::SIG), n(&L::RULE.out));
        let mut params = vec![0.0; L::TREE.params()];
        for (seed, p) in parameters_of::<L>().iter().enumerate() {
            p.write(&random(10 + seed as u64, p.len()), &mut params)?;
        }
        let real = if ids.is_empty() { inputs } else { 0 };
        Ok(Self {
            buffers: Buffers::new::<L, X>(&device, batch)?,
            device,
            batch,
            dparams: vec![0.0; params.len()],
            params,
            x: random(1, real),
            ids,
            y: vec![0.0; outputs],
            dy: random(2, outputs),
            dx: vec![0.0; real],
        })
    }

    fn forward<L: Module<D, X>, X: Signature>(&mut self, keep: bool) {
        let cx = Ctx::new(&self.device, self.batch);
        let mut cx = if keep { cx.mode(Mode::Train).keeping() } else { cx };
        let (saved, scratch) = self.buffers.forward();
        let x = if self.ids.is_empty() { Tensors::real(&self.x[..]) } else { Tensors::ids(&self.ids[..]) };
        let call = Forward::new(&self.params[..], black_box(x), TensorsMut::real(&mut self.y[..]));
        L::forward(&mut cx, Forward { saved, scratch, ..call });
    }

    fn vjp<L: Module<D, X>, X: Signature>(&mut self) {
        self.dparams.fill(0.0);
        let mut cx = Ctx::new(&self.device, self.batch).mode(Mode::Train).keeping();
        let (saved, scratch) = self.buffers.vjp();
        let (x, dx) = if self.ids.is_empty() {
            (Tensors::real(&self.x[..]), TensorsMut::real(&mut self.dx[..]))
        } else {
            (Tensors::ids(&self.ids[..]), TensorsMut::unwanted(1))
        };
        let dparams = Some(&mut self.dparams[..]);
        let y = Tensors::real(&self.y[..]);
        let call = Vjp::new(&self.params[..], x, black_box(Tensors::real(&self.dy[..])), dx);
        L::vjp(&mut cx, Vjp { y, saved, scratch, dparams, ..call });
        black_box(&self.dparams);
    }
}

fn single<L: Module<D, X> + 'static, X: Signature + 'static>(
    batch: usize,
    ids: Vec<u32>,
    vjp: bool,
) -> Result<Work, Error> {
    let mut layer = Single::new::<L, X>(batch, ids)?;
    Ok(Work {
        params: parameters_of::<L>().iter().map(|p| p.len()).sum(),
        call: if vjp {
            Box::new(move || {
                layer.forward::<L, X>(true);
                layer.vjp::<L, X>();
            })
        } else {
            Box::new(move || layer.forward::<L, X>(false))
        },
    })
}

/// Makes the work of a single layer, or `None` if there is none of that name.
pub(crate) fn work(name: &str) -> Option<Result<Work, Error>> {
    let layer = name.strip_prefix("w6-")?;
    let (layer, vjp) = layer.strip_suffix("-vjp").map_or((layer, false), |layer| (layer, true));
    let none = Vec::new();
    Some(match layer {
        "linear-64x256x256" => single::<Linear<256, 256>, T![256]>(64, none, vjp),
        "linear-1024x768x3072" => single::<Linear<768, 3072>, T![768]>(1024, none, vjp),
        "layer-norm" => single::<LayerNorm<768>, T![768]>(1024, none, vjp),
        "rms-norm" => single::<RMSNorm<768>, T![768]>(1024, none, vjp),
        "softmax" => single::<Softmax, T![768]>(1024, none, vjp),
        "gelu" => single::<GELU, T![1_048_576]>(1, none, vjp),
        "attention" => single::<MaskedAttention<256, 6, 64>, T![3, 6, 256, 64]>(2, none, vjp),
        "conv" => single::<Conv2D<64, 64, 3, 1, 1>, T![64, 32, 32]>(32, none, vjp),
        "rope" => single::<RoPE<256, 6, 64>, T![256, 384]>(2, none, vjp),
        "embedding" => single::<Embedding<65_536, 256>, Ids<T![4096]>>(1, ids(3, 4096, 65_536), vjp),
        _ => return None,
    })
}
