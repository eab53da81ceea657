//! Tables of vectors, looked up by index, and their use as an output layer.

use nn_kernels::Device;
use nn_kernels::ops::{LinearSpec, Unary};

use crate::ctx::{CallFault, Ctx};
use crate::dims::{Dim, Dims, Extent, MAX_RANK};
use crate::fault::{Input, Rule, one_ids};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::{along_last, product, rows_of};
use crate::region::{slice, slice_mut};
use crate::signature::{S2, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Text, layer};

/// A vector for each of V indices: ids `[..]` → `[.., D]`.
///
/// Parameter: `weight` `[V, D]`, drawn from N(0, 1) as in PyTorch. An index past the end is a
/// [`CallFault::IdOutOfRange`]. Gradients of equal indices are added up in the order of the indices.
///
/// ```
/// use nn::{Embedding, Ids, Layer, T};
/// assert_eq!(<Embedding<1000, 64> as Layer<Ids<T![..128]>>>::RULE.out.to_string(), "[..128, 64]");
/// let fault = <Embedding<1000, 64> as Layer<T![128]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Embedding<1000, 64>` takes one tensor of ids, but it is given [128]"
/// );
/// ```
#[layer(weight: S2<V, D>)]
pub struct Embedding<const V: usize, const D: usize>;

const fn table(v: Extent, d: Extent, init: Init) -> [Leaf; 1] {
    [Leaf::new("weight", Dims::new(&[v, d]), Role::Weight, init)]
}

impl<V: Dim, D: Dim> EmbeddingOf<V, D> {
    const LEAVES: [Leaf; 1] = table(V::EXTENT, D::EXTENT, Init::Normal(1.0));
}

impl<V: Dim, D: Dim> Params for EmbeddingOf<V, D> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, V: Dim, D: Dim> Layer<X> for EmbeddingOf<V, D> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["V", "D"], Self::ARGS) {
        Some(rule) => rule,
        None => match one_ids(&Self::LABEL, Self::ARGS, &X::SIG) {
            Input::Done(rule) => rule,
            Input::Tensor(dims) if dims.rank() < MAX_RANK => Rule::ok(Sig::real(dims.push(D::EXTENT))),
            Input::Tensor(_) => {
                let takes = Text::new().str("ids of at most ").num(MAX_RANK - 1).str(" axes");
                Rule::mismatch(&Self::LABEL, takes, &X::SIG, Sig::POISON)
            }
        },
    };
    const KEEPS_X: bool = true;
    const CAUSAL: bool = true;
}

impl<M: Device, X: Signature, V: Dim, D: Dim> Module<M, X> for EmbeddingOf<V, D> {
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        let table = slice::<M>(call.params, 0, V::N * D::N);
        if let Some(id) = cx.device().gather(cx.place(), D::N, table, call.x.get_ids(0), call.y.get(0)) {
            cx.fail(CallFault::IdOutOfRange { id, rows: V::N });
        }
    }

    fn vjp(cx: &mut Ctx<'_, M>, call: Vjp<'_, M>) {
        if let Some(dparams) = call.dparams {
            let dtable = slice_mut::<M>(dparams, 0, V::N * D::N);
            cx.device().scatter_add(D::N, call.x.get_ids(0), call.dy.get(0), dtable);
        }
    }
}

/// y = x·Wᵀ with W the table of an [`Embedding<V, D>`](Embedding): `[.., D]` → `[.., V]`, the scores of V indices.
///
/// Parameter: `weight` `[V, D]`, which lies in memory as an embedding's does, so that a model can use one for both:
/// `#[tied = "tokens.weight"] head: TiedLinear<384, 1000>`. The gradients of both uses are added. Alone it is
/// a [`LinearNoBias`](crate::LinearNoBias) that lies otherwise in memory, with the same initial values. Press
/// and Wolf 2016, arXiv:1608.05859.
///
/// ```
/// use nn::{Layer, T, TiedLinear};
/// assert_eq!(<TiedLinear<64, 1000> as Layer<T![128, 64]>>::RULE.out.to_string(), "[128, 1000]");
/// ```
#[layer(weight: S2<V, D>)]
pub struct TiedLinear<const D: usize, const V: usize>;

impl<D: Dim, V: Dim> TiedLinearOf<D, V> {
    const LEAVES: [Leaf; 1] = table(V::EXTENT, D::EXTENT, Init::PyTorch(0));

    const fn spec(rows: usize) -> LinearSpec {
        LinearSpec { rows, inputs: D::N, outputs: V::N, act: Unary::Identity, transposed: true }
    }
}

impl<D: Dim, V: Dim> Params for TiedLinearOf<D, V> {
    const LABEL: Text = Self::SHOWN;
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, D: Dim, V: Dim> Layer<X> for TiedLinearOf<D, V> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["D", "V"], Self::ARGS) {
        Some(rule) => rule,
        None => along_last(&Self::LABEL, Self::ARGS, &X::SIG, D::EXTENT, V::EXTENT),
    };
    const KEEPS_X: bool = true;
    const MACS: usize = product(&[rows_of(&X::SIG.dims(0)), D::N, V::N]);
    const CAUSAL: bool = true;
}

impl<M: Device, X: Signature, D: Dim, V: Dim> Module<M, X> for TiedLinearOf<D, V> {
    fn forward(cx: &mut Ctx<'_, M>, mut call: Forward<'_, M>) {
        let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
        let table = slice::<M>(call.params, 0, D::N * V::N);
        cx.device().linear(&spec, call.x.get(0), table, None, call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, M>, mut call: Vjp<'_, M>) {
        let spec = Self::spec(cx.rows(const { &X::SIG.dims(0) }));
        let table = slice::<M>(call.params, 0, D::N * V::N);
        let dtable = call.dparams.map(|dparams| slice_mut::<M>(dparams, 0, D::N * V::N));
        let (x, y, dy, dx) = (call.x.get(0), call.y.get(0), call.dy.get(0), call.dx.wanted(0));
        cx.device().linear_vjp(&spec, x, table, None, y, dy, dx, dtable, None, M::empty_mut());
    }

    fn route() -> &'static str {
        M::linear_route(&Self::spec(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Options, Run, Values, gradients};
    use crate::{Cpu, Ids, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            let options = |seed| Options { ids_below: 4, ..Options::new(batch, Mode::Train, seed) };
            options(1).check::<Embedding<4, 3>, Ids<T![5]>>().assert_within(1e-7);
            options(2).check::<Embedding<4, 1>, Ids<T![]>>().assert_within(1e-7);
            options(3).check::<Embedding<5, 2>, Ids<T![2, ..4]>>().assert_within(1e-7);
            gradients::<TiedLinear<4, 3>, T![4]>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<TiedLinear<3, 5>, T![..3, 3]>(batch, Mode::Infer, 5).assert_within(1e-7);
        }
    }

    #[test]
    fn gradients_of_equal_ids_add_up() {
        let mut run = Run::<Embedding<3, 2>, Ids<T![3]>, Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward(&[Values::Ids(vec![2, 0, 2])]);
        let gradients = run.vjp(&[Values::Real(vec![1.0, 2.0, 10.0, 20.0, 100.0, 200.0])]);
        assert_eq!(run.gradient(&gradients, "weight"), [10.0, 20.0, 0.0, 0.0, 101.0, 202.0]);
        assert_eq!(gradients.dx, [None]);
    }

    #[test]
    fn an_id_out_of_range_is_a_fault_with_its_number() {
        let mut run = Run::<Embedding<3, 2>, Ids<T![2]>, Cpu<f64>>::new(&Cpu::default(), 1);
        run.forward(&[Values::Ids(vec![2, 3])]);
        assert_eq!(run.fault(), Some((0, CallFault::IdOutOfRange { id: 3, rows: 3 })));
    }

    #[test]
    fn a_tied_linear_reads_the_table_as_it_lies() {
        let mut run = Run::<TiedLinear<2, 3>, T![2], Cpu<f64>>::new(&Cpu::default(), 1);
        run.set("weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(run.params[..6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        // Row v of the table times x; columns would give 130, 240 and so on.
        assert_eq!(run.forward(&[Values::Real(vec![10.0, 1.0])])[0].real(), [12.0, 34.0, 56.0]);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <Embedding<9, 2> as Layer<Ids<T![1, 1, 1, 1, 1, 1]>>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `Embedding<9, 2>` takes ids of at most 5 axes, but it is given ids [1, 1, 1, 1, 1, 1]"
        );
        let fault = <Embedding<0, 2> as Layer<Ids<T![1]>>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`Embedding<0, 2>` can't exist: V is 0");
        let fault = <TiedLinear<4, 2> as Layer<T![3]>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `TiedLinear<4, 2>` takes [.., 4], but it is given [3]"
        );
    }
}
