use crate::{Memory, View, ViewMut, WideView, WideViewMut};

/// Where the rows of a tensor `[batch, token, head, head_dim]` lie, in elements. The values of a head lie one after
/// the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    /// From one sample to the next.
    pub batch: usize,
    /// From one token to the next.
    pub token: usize,
    /// From one head to the next.
    pub head: usize,
}

impl Strides {
    /// `[tokens, heads·head_dim]`: the heads of a token side by side, in rows of `width` values, which may hold more
    /// than these heads.
    pub const fn token_major(tokens: usize, width: usize, head_dim: usize) -> Self {
        Self { batch: product(tokens, width), token: width, head: head_dim }
    }

    /// `[heads, tokens, head_dim]`: the tokens of a head side by side, in samples of `sample` values, which may hold
    /// more than these heads.
    pub const fn head_major(sample: usize, tokens: usize, head_dim: usize) -> Self {
        Self { batch: sample, token: head_dim, head: product(tokens, head_dim) }
    }
}

const fn product(a: usize, b: usize) -> usize {
    match a.checked_mul(b) {
        Some(product) => product,
        None => panic!("attention: a stride overflows"),
    }
}

/// Attention of `q_len` queries to `k_len` keys in each head of each sample.
///
/// Query head h reads key and value head h / (heads / kv_heads). The queries are the last `q_len` of `k_len` positions: where `causal`,
/// query i sees key j if j ≤ i + k_len − q_len. So one query and a cache of many keys is a step of decoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Samples.
    pub batch: usize,
    /// Queries in a sample.
    pub q_len: usize,
    /// Keys and values in a sample.
    pub k_len: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values, a divisor of `heads`.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Whether queries see no later keys.
    pub causal: bool,
    /// What a query's product with a key is multiplied by.
    pub scale: f64,
    /// Where the queries lie.
    pub q: Strides,
    /// Where the keys lie.
    pub k: Strides,
    /// Where the values lie.
    pub v: Strides,
    /// Where the output lies.
    pub y: Strides,
}

impl AttentionSpec {
    /// All heads of a token side by side in q, k, v and y, each a tensor of its own; not causal, with a scale of
    /// 1/√head_dim.
    pub fn new(
        batch: usize,
        q_len: usize,
        k_len: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> Self {
        let q = Strides::token_major(q_len, product(heads, head_dim), head_dim);
        let k = Strides::token_major(k_len, product(kv_heads, head_dim), head_dim);
        let scale = Self::scale(head_dim);
        Self { batch, q_len, k_len, heads, kv_heads, head_dim, causal: false, scale, q, k, v: k, y: q }
    }

    /// 1/√head_dim.
    pub fn scale(head_dim: usize) -> f64 {
        1.0 / (head_dim as f64).sqrt()
    }

    /// How many values `lse` holds.
    pub const fn lse(&self) -> usize {
        product(product(self.batch, self.heads), self.q_len)
    }

    /// How many values of scratch `attention_vjp` needs: sums of the gradients of keys and values.
    pub const fn vjp_scratch(&self) -> usize {
        product(product(product(self.batch, self.kv_heads), self.k_len), product(2, self.head_dim))
    }
}

/// Where [`Attention::attention_vjp`] writes its gradients; they lie as q, k and v do.
#[derive(Debug)]
pub enum AttentionGradients<V> {
    /// Each in a view of its own, if anyone wants it.
    Apart {
        /// Of the queries.
        q: Option<V>,
        /// Of the keys.
        k: Option<V>,
        /// Of the values.
        v: Option<V>,
    },
    /// All in one view, as of a packed input.
    Packed {
        /// The view.
        qkv: V,
        /// Where the gradients of q, k and v start in it.
        at: [usize; 3],
    },
}

/// Softmax attention: y = softmax(scale·q·kᵀ)·v in each head, without a matrix of all scores at any time.
///
/// A key that is not seen is passed over, whatever it and its value hold. A query that sees none has zeros for its
/// output, and gives no gradients. `mask`, if given, is `[batch, k_len]`: where it is 0, the key is not seen.
pub trait Attention: Memory {
    /// Computes the output. `lse`, if given, gets the logarithm of each softmax's denominator, `[batch, heads, q_len]`,
    /// or +∞ where no key is seen.
    ///
    /// A query's output depends, to the last bit, on itself and on the keys and values that it may see only: not on how
    /// many queries there are.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand")]
    fn attention(
        &self,
        s: &AttentionSpec,
        q: View<'_, Self>,
        k: View<'_, Self>,
        v: View<'_, Self>,
        mask: Option<View<'_, Self>>,
        y: ViewMut<'_, Self>,
        lse: Option<WideViewMut<'_, Self>>,
    );
    /// Gradients of [`attention`](Self::attention), which gave `y` and `lse`. The scores are computed again. `scratch`
    /// holds [`AttentionSpec::vjp_scratch`] values.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand and each gradient")]
    fn attention_vjp(
        &self,
        s: &AttentionSpec,
        q: View<'_, Self>,
        k: View<'_, Self>,
        v: View<'_, Self>,
        mask: Option<View<'_, Self>>,
        y: View<'_, Self>,
        lse: WideView<'_, Self>,
        dy: View<'_, Self>,
        gradients: AttentionGradients<ViewMut<'_, Self>>,
        scratch: WideViewMut<'_, Self>,
    );
}
