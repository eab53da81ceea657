use nn_kernels::{Cpu, Device};

use crate::error::Error;
use crate::fault::Fault;
use crate::host::Host;
use crate::layer::{Declared, Layer, Module};
use crate::region::Region;
use crate::signature::{Sig, Signature};
use crate::weights::Weights;
use crate::workspace::{Call, Workspace};
use crate::{Text, accept};

/// Sequences that go on: what a model's attention keeps of the tokens that were given (keys and values), so that each
/// further token costs one token's work.
///
/// It has the memory for so many sequences of the model's longest length, all of it allocated when it is made, and a
/// workspace of its own. Any number of tokens may be given at a time, the prompt at once and then one by one: the
/// result is what one call with all of them would give for the new ones. All sequences go on in step.
///
/// The model must take a bounded length, as `Ids<T![..512]>`, and be causal: no token may depend on a later one. Anything else
/// does not compile.
///
/// ```
/// use nn::{CausalAttention, Cpu, Embedding, KvCache, Linear, T, Weights, sequential};
///
/// sequential! {
///     /// Looks back, over at most eight tokens.
///     Tiny: Ids[..8] -> [..8, 5] = Embedding<5, 4>, Linear<4, 12>, CausalAttention<8, 2, 2>, Linear<4, 5>
/// }
///
/// let weights = Weights::<Tiny, Cpu<f64>>::new(Cpu::default(), 1)?;
/// let mut cache = KvCache::new(&weights, 1)?;
/// assert_eq!(cache.forward(&weights, &[3, 1, 4])?.len(), 3 * 5); // the prompt
/// assert_eq!(cache.forward(&weights, &[1])?.len(), 5); // one more
/// assert_eq!(cache.position(), 4);
///
/// let error = cache.forward(&weights, &[0; 5]).unwrap_err();
/// assert_eq!(error.to_string(), "5 tokens after 4 are more than the model's context of 8: reset the cache or give fewer");
/// cache.reset();
/// assert_eq!(cache.position(), 0);
/// # Ok::<(), nn::Error>(())
/// ```
///
/// In a model whose attention looks ahead, or that takes one length only, there is nothing to go on with:
///
/// ```compile_fail,E0080
/// # use nn::{Cpu, Embedding, KvCache, Linear, ScaledDotProductAttentionQKV, Weights, sequential};
/// sequential! {
///     Ahead: Ids[..8] -> [..8, 4] = Embedding<5, 4>, Linear<4, 12>, ScaledDotProductAttentionQKV<8, 2, 2>
/// }
/// let weights = Weights::<Ahead, Cpu<f64>>::new(Cpu::default(), 1)?;
/// let cache = KvCache::new(&weights, 1)?; // `Ahead` can't go on with a sequence: one of its layers is not causal (`Layer::CAUSAL`)
/// # Ok::<(), nn::Error>(())
/// ```
pub struct KvCache<M: Declared, D: Device = Cpu<f32>> {
    cache: D::Buffer<u8>,
    workspace: Workspace<M, D>,
    sequences: usize,
    past: usize,
}

/// The longest sequence that a model takes; a fault if sequences can't be given to it piece by piece.
#[allow(clippy::result_large_err, reason = "only the compiler ever holds one, and it can't box")]
const fn context(label: &Text, takes: &Sig, causal: bool) -> Result<usize, Fault> {
    let text = Text::new().str("`").text(label).str("` can't go on with a sequence: ");
    let mut bound: Option<usize> = None;
    let mut i = 0;
    while i < takes.len() {
        let dims = takes.dims(i);
        if dims.rank() == 0 || dims.axis(0).length.is_none() {
            let text = takes
                .write(text.str("it takes "))
                .str(", whose first axis has no run-time length; write `T![..N]`");
            return Err(Fault::new(text));
        }
        let mut axis = 0;
        while axis < dims.rank() {
            match (dims.axis(axis).length, bound) {
                (Some(0), None) if axis == 0 => bound = Some(dims.n(0)),
                (Some(0), Some(n)) if axis == 0 && n == dims.n(0) => {}
                (None, _) => {}
                _ => {
                    return Err(Fault::new(
                        takes.write(text.str("it takes ")).str(", which has more than one length"),
                    ));
                }
            }
            axis += 1;
        }
        i += 1;
    }
    match bound {
        Some(bound) if causal => Ok(bound),
        Some(_) => Err(Fault::new(text.str("one of its layers is not causal (`Layer::CAUSAL`)"))),
        None => Err(Fault::new(text.str("it takes no sequence"))),
    }
}

impl<M: Declared, D: Device> KvCache<M, D> {
    const CONTEXT: Result<usize, Fault> =
        context(&M::LABEL, &<M::In as Signature>::SIG, <M as Layer<M::In>>::CAUSAL);

    /// For so many sequences, at least 1, of the model with these weights, on their device.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(weights: &Weights<M, D>, sequences: usize) -> Result<Self, Error>
    where
        M: Module<D, M::In>,
    {
        const {
            if let Err(fault) = Self::CONTEXT {
                accept(&Some(fault));
            }
        }
        let (device, sequences) = (weights.device(), sequences.max(1));
        let mut workspace = Workspace::new(device, sequences)?;
        workspace.set_sequences(sequences);
        let bytes = <M as Layer<M::In>>::CACHE.at(sequences, size_of::<D::Elem>());
        Ok(Self { cache: device.alloc(bytes)?, workspace, sequences, past: 0 })
    }

    /// The most tokens a sequence can have.
    pub fn context(&self) -> usize {
        Self::CONTEXT.unwrap_or(0)
    }

    /// How many tokens were given.
    pub fn position(&self) -> usize {
        self.past
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Starts anew.
    pub fn reset(&mut self) {
        self.past = 0;
    }

    /// Takes back all tokens but the first `position`: those that follow are given anew. Nothing happens if there
    /// are no more than that.
    pub fn rewind(&mut self, position: usize) {
        self.past = self.past.min(position);
    }

    /// Bytes it holds, its workspace included.
    pub fn bytes(&self) -> usize {
        D::len(D::view(&self.cache)) + self.workspace.bytes()
    }
}

impl<M: Declared<In: Host, Out: Host> + Module<D, <M as Declared>::In>, D: Device> KvCache<M, D> {
    /// Gives each sequence its next tokens, those of the first sequence first, and gives what the model says to them.
    ///
    /// # Errors
    /// [`Error::ContextOverflow`], before anything is done; and those of [`Model::forward`](crate::Model::forward). The position
    /// stays as it was.
    pub fn forward(
        &mut self,
        weights: &Weights<M, D>,
        x: <M::In as Host>::Slices<'_, D::Wide>,
    ) -> Result<<M::Out as Host>::Slices<'_, D::Wide>, Error> {
        let (past, context) = (self.past, self.context());
        let given = self.workspace.samples(x)?.lengths[0];
        if given > context - past {
            return Err(Error::ContextOverflow { past, given, context });
        }
        let call = Call { past: Some(past), ..Call::inference(self.workspace.extents(x)?) };
        let cache = Region::new(D::view_mut(&mut self.cache));
        let y = self.workspace.infer_as(weights, x, call, Some(cache))?;
        // Once, when every layer has added to it.
        self.past += given;
        Ok(y)
    }
}

impl<M: Declared, D: Device> std::fmt::Debug for KvCache<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvCache")
            .field("model", &M::LABEL)
            .field("sequences", &self.sequences)
            .field("position", &self.past)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::context;
    use crate::check::causal;
    use crate::*;

    sequential! {
        Inner: [..7, 4] -> [..7, 4] = LinearReLU<4, 4>, RMSNorm<4>, Dropout<0.5>, Residual<DecoderBlock<7, 4, 2, 6>>
    }

    /// Both what a layer says and what it does.
    fn both<M: Module<Cpu<f64>, X>, X: Signature>() -> [bool; 2] {
        [M::CAUSAL, causal::<M, X>(1)]
    }

    #[test]
    fn layers_that_say_that_they_can_go_on_can() {
        type Four = T![..7, 4];
        type Half = LlamaBlock<7, 4, 2, 1, 6>;
        type Heads = SelfAttention<7, 4, 2, 1, 4, Yes, Sci<1, 4>, Sci<1, -6>>;
        macro_rules! all {
            ($expected:expr, $($layer:ty, $x:ty;)*) => {$(
                assert_eq!(both::<$layer, $x>(), [$expected; 2], "{}", stringify!($layer));
            )*};
        }
        all! {
            true,
            Linear<4, 3>, Four; GELU, Four; LayerNorm<4>, Four; RMSNorm<4>, Four; Softmax, Four; LogSoftmax, Four;
            Add, (Four, Four); Dropout<Sci<1, -1>>, Four; Embedding<4, 3>, Ids<T![..7]>; TiedLinear<4, 5>, Four;
            RoPE<7, 2, 2>, Four; RoPEInterleaved<7, 1, 4>, Four; PosEmbed<7, 4>, Four; SinusoidalPosAdd<7, 4>, Four;
            SwiGLU<2>, Four; SwiGLUFeedForward<4, 6>, Four; FeedForwardGELU<4, 6>, Four; LoRALinear<4, 3, 2, Sci<1, 0>>, Four;
            CausalAttention<7, 2, 2>, T![..7, 12]; MaskedAttention<7, 2, 2>, T![3, 2, ..7, 2];
            GQAAttention<7, 2, 1, 2>, (Four, T![..7, 2], T![..7, 2]); RepeatKVHeads<7, 2, 3, 2>, Four;
            QKVToMajor<7, 2, 2>, T![..7, 12]; CausalSelfAttention<7, 4, 2>, Four; Heads, Four;
            DecoderBlock<7, 4, 2, 6>, Four; Half, Four; Inner, Four; Repeat<Half, 3>, Four; Remat<Half>, Four;
            Residual<Half>, Four; StopGradParams<Half>, Four; InitWith<Half, Orthogonal>, Four; Tok<Linear<4, 4>>, Four;
            Tok<ScaledDotProductAttentionQKV<3, 1, 2>>, T![..7, 3, 6]; RepeatConditional<Add, 2>, (Four, Four);
            Transpose<0, 1>, Four; Slice<1, 1, 3>, Four; crate::at::Same, Four; Concat<1>, (Four, Four); BatchNorm1D<4>, T![4, ..7];
        }
        all! {
            false,
            Softmax, T![4, ..7]; LogSoftmax, T![4, ..7]; ScaledDotProductAttentionQKV<7, 2, 2>, T![..7, 12];
            ScaledDotProductAttention<7, 2, 2>, T![3, 2, ..7, 2]; GQAAttention<7, 2, 1, 2, No>, (Four, T![..7, 2], T![..7, 2]);
            CrossAttention<4, 2, 7, 7>, (Four, Four, Four); SelfAttention<7, 4, 2, 2, 0, No>, Four;
            EncoderBlock<7, 4, 2, 6>, Four; EncoderBlockPreNorm<7, 4, 2, 6>, Four; Repeat<EncoderBlock<7, 4, 2, 6>, 2>, Four;
            LSTMSeq<4, 3, 7>, Four; GRUSeq<4, 3, 7>, Four; Tok<CausalAttention<7, 1, 2>>, T![3, ..7, 6];
            Tok<ScaledDotProductAttentionQKV<7, 1, 2>>, T![3, ..7, 6]; Tok<Softmax>, T![4, ..7]; Tok<RoPE<7, 1, 2>>, T![3, ..7, 2];
        }
    }

    fn fault<X: Signature>(causal: bool) -> String {
        match context(&Text::new().str("Net"), &X::SIG, causal) {
            Ok(n) => n.to_string(),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn what_can_go_on_is_said_in_words() {
        assert_eq!(fault::<Ids<T![..8]>>(true), "8");
        assert_eq!(fault::<(Ids<T![..8]>, T![..8, 4])>(true), "8");
        assert_eq!(
            fault::<Ids<T![..8]>>(false),
            "`Net` can't go on with a sequence: one of its layers is not causal (`Layer::CAUSAL`)"
        );
        let said = "`Net` can't go on with a sequence: it takes ";
        let fixed = "whose first axis has no run-time length; write `T![..N]`";
        assert_eq!(fault::<Ids<T![8]>>(true), format!("{said}ids [8], {fixed}"));
        assert_eq!(fault::<(Ids<T![..8]>, T![4])>(true), format!("{said}(ids [..8], [4]), {fixed}"));
        let lengths = "which has more than one length";
        assert_eq!(fault::<(T![..8, 4], T![..9, 4])>(true), format!("{said}([..8, 4], [..9, 4]), {lengths}"));
        assert_eq!(
            fault::<(T![..8, 4], T![..8 @ 1, 4])>(true),
            format!("{said}([..8, 4], [..8 @ 1, 4]), {lengths}")
        );
        assert_eq!(fault::<T![..8, ..8]>(true), format!("{said}[..8, ..8], {lengths}"));
        assert_eq!(fault::<()>(true), "`Net` can't go on with a sequence: it takes no sequence");
    }
}
