//! Moving values about: no arithmetic, so that forward and vjp are exact.

use nn_kernels::Device;
use nn_kernels::ops::{Block, PermuteSpec};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent, MAX_LENGTHS, MAX_RANK};
use crate::fault::{Fault, Input, Rule, one_real};
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::check_shape;
use crate::signature::{Kind, Sig, Signature};
use crate::{Text, layer};

/// All axes as one: `[..]` → `[n]`, the last axis running fastest.
///
/// ```
/// use nn::{Flatten, Layer, T};
/// assert_eq!(<Flatten as Layer<T![32, 7, 7]>>::RULE.out.to_string(), "[1568]");
/// ```
#[layer]
pub struct Flatten;

impl Params for Flatten {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature> Layer<X> for Flatten {
    const RULE: Rule = match one_real(&Self::LABEL, &[], &X::SIG) {
        Input::Done(rule) => rule,
        Input::Tensor(dims) if dims.is_bounded() => {
            Rule::mismatch(&Self::LABEL, Text::new().str("a tensor without bounds"), &X::SIG, Sig::POISON)
        }
        Input::Tensor(dims) => Rule::ok(Sig::real(Dims::new(&[dims.product(0, dims.rank())]))),
    };
}

/// The same values in another shape of as many: `Reshape<T![8, 49]>`, the last axis running fastest in both.
///
/// ```
/// use nn::{Layer, Reshape, T};
/// assert_eq!(<Reshape<T![8, 49]> as Layer<T![8, 7, 7]>>::RULE.out.to_string(), "[8, 49]");
/// let fault = <Reshape<T![8, 48]> as Layer<T![8, 7, 7]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Reshape<[8, 48]>` takes 384 values, but it is given [8, 7, 7], which are 392"
/// );
/// ```
#[layer]
pub struct Reshape<S: Signature>;

impl<S: Signature> Params for ReshapeOf<S> {
    const LABEL: Text = S::SIG.write(Text::new().str("Reshape<")).str(">");
}

impl<X: Signature, S: Signature> Layer<X> for ReshapeOf<S> {
    const RULE: Rule = match check_shape(&Self::LABEL, &S::SIG) {
        Some(rule) => rule,
        None => match one_real(&Self::LABEL, &[], &X::SIG) {
            Input::Done(rule) => Rule { out: S::SIG, fault: rule.fault },
            Input::Tensor(dims) if dims.is_bounded() => {
                Rule::mismatch(&Self::LABEL, Text::new().str("a tensor without bounds"), &X::SIG, S::SIG)
            }
            Input::Tensor(dims) if dims.numel() == S::SIG.dims(0).numel() => Rule::ok(S::SIG),
            Input::Tensor(dims) => {
                let text = Text::new().str("shape mismatch: `").text(&Self::LABEL).str("` takes ");
                let text = text.num(S::SIG.dims(0).numel()).str(" values, but it is given ");
                let text = dims.write(text).str(", which are ").num(dims.numel());
                Rule { out: S::SIG, fault: Some(Fault::of_input(text)) }
            }
        },
    };
}

macro_rules! same_values {
    ($name:ident [$($p:ident)*]) => {
        impl<D: Device, X: Signature, $($p: Signature),*> Module<D, X> for $name<$($p),*> {
            fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
                cx.device().copy(call.x.get(0), call.y.get(0));
            }
            fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
                if let Some(dx) = call.dx.wanted(0) {
                    cx.device().copy(call.dy.get(0), dx);
                }
            }
        }
    };
}
same_values!(Flatten []);
same_values!(ReshapeOf[S]);

/// The axes from `from` to `to`, as many values in this call.
fn between<D: Device>(cx: &Ctx<'_, D>, dims: &Dims, from: usize, to: usize) -> usize {
    (from..to).map(|i| dims.axis_at(i, &cx.lengths)).product()
}

/// Two to six tensors behind one another along an axis; on the others they are equal. Called with several
/// values: `Concat::<0>(a, b)`.
///
/// ```
/// use nn::{Concat, Layer, T};
/// assert_eq!(<Concat<0> as Layer<(T![16, 8, 8], T![4, 8, 8])>>::RULE.out.to_string(), "[20, 8, 8]");
/// let fault = <Concat<0> as Layer<(T![16, 8, 8], T![4, 8, 9])>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Concat<0>` takes tensors that differ on axis 0 only, \
///      but it is given ([16, 8, 8], [4, 8, 9])"
/// );
/// ```
#[layer]
pub struct Concat<const AXIS: usize>;

impl<AXIS: Dim> Params for ConcatOf<AXIS> {
    const LABEL: Text = Self::SHOWN;
}

const fn concat(label: &Text, args: &[Extent], given: &Sig, axis: usize) -> Rule {
    if let Some(rule) = Rule::check_args(label, args) {
        return rule;
    }
    if given.is_poison() {
        return Rule::ok(Sig::POISON);
    }
    let tensors = given.tensors();
    let mut real = tensors.len() > 1;
    let mut i = 0;
    while i < tensors.len() {
        real = real && matches!(tensors[i].kind, Kind::Real);
        i += 1;
    }
    let takes = Text::new();
    if !real {
        return Rule::mismatch(label, takes.str("two tensors or more"), given, Sig::POISON);
    }
    let first = tensors[0].dims;
    let (mut sum, mut bounded) = (Extent::new(0), false);
    i = 0;
    while i < tensors.len() {
        let dims = tensors[i].dims;
        if axis >= dims.rank() {
            return Rule::mismatch(label, takes.str("tensors with an axis ").num(axis), given, Sig::POISON);
        }
        if !dims.with(axis, Extent::new(0)).same(&first.with(axis, Extent::new(0))) {
            let takes = takes.str("tensors that differ on axis ").num(axis).str(" only");
            return Rule::mismatch(label, takes, given, Sig::POISON);
        }
        bounded |= dims.axis(axis).length.is_some();
        sum = sum.plus(dims.axis(axis));
        i += 1;
    }
    if bounded {
        let takes = takes.str("tensors without a bound on axis ").num(axis);
        return Rule::mismatch(label, takes, given, Sig::POISON);
    }
    Rule::ok(Sig::real(first.with(axis, sum)))
}

impl<X: Signature, AXIS: Dim> Layer<X> for ConcatOf<AXIS> {
    const RULE: Rule = concat(&Self::LABEL, Self::ARGS, &X::SIG, AXIS::N);
    const CAUSAL: bool = true;
}

impl<AXIS: Dim> ConcatOf<AXIS> {
    /// For each tensor: where its columns start, and how many there are; then the number of rows, and the
    /// columns of all.
    fn blocks<D: Device, X: Signature>(
        cx: &Ctx<'_, D>,
    ) -> ([(usize, usize); crate::MAX_TENSORS], usize, usize) {
        let mut blocks = [(0, 0); crate::MAX_TENSORS];
        let mut all = 0;
        for (block, tensor) in blocks.iter_mut().zip(X::SIG.tensors()) {
            let cols = between(cx, &tensor.dims, AXIS::N, tensor.dims.rank());
            *block = (all, cols);
            all += cols;
        }
        (blocks, cx.batch * between(cx, &X::SIG.dims(0), 0, AXIS::N), all)
    }
}

impl<D: Device, X: Signature, AXIS: Dim> Module<D, X> for ConcatOf<AXIS> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let (blocks, rows, stride) = Self::blocks::<D, X>(cx);
        for (i, &(offset, cols)) in blocks.iter().enumerate().take(X::SIG.len()) {
            let (from, to) = (Block { offset: 0, stride: cols }, Block { offset, stride });
            cx.device().copy_block(rows, cols, call.x.get(i), from, call.y.get(0), to);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let (blocks, rows, stride) = Self::blocks::<D, X>(cx);
        for (i, &(offset, cols)) in blocks.iter().enumerate().take(X::SIG.len()) {
            if let Some(dx) = call.dx.wanted(i) {
                let (from, to) = (Block { offset, stride }, Block { offset: 0, stride: cols });
                cx.device().copy_block(rows, cols, call.dy.get(0), from, dx, to);
            }
        }
    }
}

/// The part from FROM to TO (not included) of an axis.
///
/// ```
/// use nn::{Layer, Slice, T};
/// assert_eq!(<Slice<1, 0, 5> as Layer<T![3, 8]>>::RULE.out.to_string(), "[3, 5]");
/// let fault = <Slice<1, 4, 9> as Layer<T![3, 8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Slice<1, 4, 9>` takes at least 9 values on axis 1, but it is given [3, 8]"
/// );
/// ```
#[layer]
pub struct Slice<const AXIS: usize, const FROM: usize, const TO: usize>;

impl<AXIS: Dim, FROM: Dim, TO: Dim> Params for SliceOf<AXIS, FROM, TO> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, AXIS: Dim, FROM: Dim, TO: Dim> Layer<X> for SliceOf<AXIS, FROM, TO> {
    const RULE: Rule = match one_real(&Self::LABEL, Self::ARGS, &X::SIG) {
        Input::Done(rule) => rule,
        Input::Tensor(_) if FROM::N >= TO::N => {
            let text = Text::new().str("nothing lies from ").num(FROM::N).str(" to ").num(TO::N);
            Rule::cannot_exist(&Self::LABEL, text)
        }
        Input::Tensor(dims) => {
            let takes = Text::new();
            if AXIS::N >= dims.rank() {
                Rule::mismatch(
                    &Self::LABEL,
                    takes.str("a tensor with an axis ").num(AXIS::N),
                    &X::SIG,
                    Sig::POISON,
                )
            } else {
                let (axis, out) =
                    (dims.axis(AXIS::N), Sig::real(dims.with(AXIS::N, TO::EXTENT.minus(FROM::EXTENT))));
                if axis.length.is_some() {
                    let takes = takes.str("a tensor without a bound on axis ").num(AXIS::N);
                    Rule::mismatch(&Self::LABEL, takes, &X::SIG, out)
                } else if axis.n < TO::N {
                    let takes = takes.str("at least ").num(TO::N).str(" values on axis ").num(AXIS::N);
                    Rule::mismatch(&Self::LABEL, takes, &X::SIG, out)
                } else {
                    Rule::ok(out)
                }
            }
        }
    };
    const CAUSAL: bool = true;
}

impl<AXIS: Dim, FROM: Dim, TO: Dim> SliceOf<AXIS, FROM, TO> {
    /// Rows, columns of the part, and where it lies in the whole and in itself.
    fn blocks<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> (usize, usize, Block, Block) {
        let dims = X::SIG.dims(0);
        let rows = cx.batch * between(cx, &dims, 0, AXIS::N);
        let inner = between(cx, &dims, AXIS::N + 1, dims.rank());
        let cols = (TO::N - FROM::N) * inner;
        let whole = Block { offset: FROM::N * inner, stride: dims.n(AXIS::N) * inner };
        (rows, cols, whole, Block { offset: 0, stride: cols })
    }
}

impl<D: Device, X: Signature, AXIS: Dim, FROM: Dim, TO: Dim> Module<D, X> for SliceOf<AXIS, FROM, TO> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let (rows, cols, whole, part) = Self::blocks::<D, X>(cx);
        cx.device().copy_block(rows, cols, call.x.get(0), whole, call.y.get(0), part);
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let (rows, cols, whole, part) = Self::blocks::<D, X>(cx);
        if let Some(mut dx) = call.dx.wanted(0) {
            cx.device().fill(0.0, D::reborrow(&mut dx));
            cx.device().copy_block(rows, cols, call.dy.get(0), part, dx, whole);
        }
    }
}

/// Two axes change places.
///
/// ```
/// use nn::{Layer, T, Transpose};
/// assert_eq!(<Transpose<0, 2> as Layer<T![3, ..32, 8]>>::RULE.out.to_string(), "[8, ..32, 3]");
/// let fault = <Transpose<0, 2> as Layer<T![3, 8]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `Transpose<0, 2>` takes a tensor with axes 0 and 2, but it is given [3, 8]"
/// );
/// ```
#[layer]
pub struct Transpose<const A: usize, const B: usize>;

impl<A: Dim, B: Dim> Params for TransposeOf<A, B> {
    const LABEL: Text = Self::SHOWN;
}

impl<X: Signature, A: Dim, B: Dim> Layer<X> for TransposeOf<A, B> {
    const RULE: Rule = match one_real(&Self::LABEL, Self::ARGS, &X::SIG) {
        Input::Done(rule) => rule,
        Input::Tensor(dims) if A::N < dims.rank() && B::N < dims.rank() => {
            Rule::ok(Sig::real(dims.with(A::N, dims.axis(B::N)).with(B::N, dims.axis(A::N))))
        }
        Input::Tensor(_) => {
            let takes = Text::new().str("a tensor with axes ").num(A::N).str(" and ").num(B::N);
            Rule::mismatch(&Self::LABEL, takes, &X::SIG, Sig::POISON)
        }
    };
    const CAUSAL: bool = true;
}

impl<A: Dim, B: Dim> TransposeOf<A, B> {
    fn spec<X: Signature>(lengths: &[usize; MAX_LENGTHS]) -> PermuteSpec {
        let given = X::SIG.dims(0);
        let (mut dims, mut axes) = ([1; MAX_RANK], [0, 1, 2, 3, 4, 5]);
        for (i, n) in dims.iter_mut().enumerate().take(given.rank()) {
            *n = given.axis_at(i, lengths);
        }
        axes.swap(A::N, B::N);
        PermuteSpec { rank: given.rank(), dims, axes }
    }
}

impl<D: Device, X: Signature, A: Dim, B: Dim> Module<D, X> for TransposeOf<A, B> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        cx.device().permute(cx.batch, &Self::spec::<X>(&cx.lengths), call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().permute(cx.batch, &Self::spec::<X>(&cx.lengths).inverse(), call.dy.get(0), dx);
        }
    }
}

/// Fewer and wider tokens: the S×S neighbours in a square of GRID×GRID tokens become one,
/// `[GRID², E]` → `[(GRID/S)², E·S²]`.
///
/// out\[t, c\] = in\[h·GRID + w, e\] with t = ⌊h/S⌋·(GRID/S) + ⌊w/S⌋ and c = (h mod S)·S·E + (w mod S)·E + e: the form
/// of SmolVLM (Marafioti et al. 2025, arXiv:2504.05299) and Idefics 3. It is not PyTorch's, in which E runs
/// slowest in c.
///
/// ```
/// use nn::{Layer, PixelShuffle, T};
/// assert_eq!(<PixelShuffle<32, 768, 4> as Layer<T![1024, 768]>>::RULE.out.to_string(), "[64, 12288]");
/// let fault = <PixelShuffle<7, 4, 2> as Layer<T![49, 4]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "`PixelShuffle<7, 4, 2>` can't exist: 7 / 2 is not a whole number"
/// );
/// ```
#[layer]
pub struct PixelShuffle<const GRID: usize, const E: usize, const S: usize>;

impl<GRID: Dim, E: Dim, S: Dim> Params for PixelShuffleOf<GRID, E, S> {
    const LABEL: Text = Self::SHOWN;
}

impl<GRID: Dim, E: Dim, S: Dim> PixelShuffleOf<GRID, E, S> {
    /// Tokens along a side afterwards.
    const SIDE: Extent = GRID::EXTENT.over(S::EXTENT);
    const TAKES: Dims = Dims::new(&[GRID::EXTENT.times(GRID::EXTENT), E::EXTENT]);
    const GIVES: Dims =
        Dims::new(&[Self::SIDE.times(Self::SIDE), E::EXTENT.times(S::EXTENT).times(S::EXTENT)]);
    /// ⌊h/S⌋, h mod S, ⌊w/S⌋, w mod S, e.
    const SPEC: PermuteSpec = PermuteSpec {
        rank: 5,
        dims: [Self::SIDE.n, S::N, Self::SIDE.n, S::N, E::N, 1],
        axes: [0, 2, 1, 3, 4, 5],
    };
}

impl<X: Signature, GRID: Dim, E: Dim, S: Dim> Layer<X> for PixelShuffleOf<GRID, E, S> {
    const RULE: Rule = match Rule::check_positive(&Self::LABEL, &["GRID", "E", "S"], Self::ARGS) {
        Some(rule) => rule,
        None => match Rule::check_args(&Self::LABEL, Self::ARGS) {
            Some(rule) => rule,
            None => match one_real(&Self::LABEL, &[Self::SIDE], &X::SIG) {
                Input::Done(rule) => rule,
                Input::Tensor(dims) if dims.same(&Self::TAKES) => Rule::ok(Sig::real(Self::GIVES)),
                Input::Tensor(_) => Rule::mismatch(
                    &Self::LABEL,
                    Self::TAKES.write(Text::new()),
                    &X::SIG,
                    Sig::real(Self::GIVES),
                ),
            },
        },
    };
}

impl<D: Device, X: Signature, GRID: Dim, E: Dim, S: Dim> Module<D, X> for PixelShuffleOf<GRID, E, S> {
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        cx.device().permute(cx.batch, &Self::SPEC, call.x.get(0), call.y.get(0));
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        if let Some(dx) = call.dx.wanted(0) {
            cx.device().permute(cx.batch, &Self::SPEC.inverse(), call.dy.get(0), dx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<Flatten, T![2, 3]>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<Reshape<T![3, 4]>, T![2, 6]>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<Concat<1>, (T![2, 3], T![2, 1], T![2, 2])>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<Concat<1>, (T![..4, 3, 2], T![..4, 1, 2])>(batch, Mode::Train, 4).assert_within(1e-7);
            gradients::<Concat<0>, (T![1, ..4], T![2, ..4])>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<Slice<1, 1, 3>, T![..3, 4, 2]>(batch, Mode::Train, 6).assert_within(1e-7);
            gradients::<Slice<0, 0, 1>, T![2, ..3]>(batch, Mode::Train, 7).assert_within(1e-7);
            gradients::<Transpose<0, 2>, T![2, ..3, 4]>(batch, Mode::Train, 8).assert_within(1e-7);
            gradients::<PixelShuffle<4, 3, 2>, T![16, 3]>(batch, Mode::Train, 9).assert_within(1e-7);
        }
    }

    /// Whole numbers, so that sums are exact.
    fn counted(n: usize) -> Vec<f64> {
        (0..n).map(|i| ((i * 37 + 11) % 101) as f64).collect()
    }

    /// Checks ⟨A·x, y⟩ = ⟨x, Aᵀ·y⟩ to the last bit, and gives A·x.
    fn adjoint<M: Module<Cpu<f64>, X>, X: Signature>(batch: usize) -> Vec<f64> {
        let mut run = Run::<M, X, Cpu<f64>>::new(&Cpu::default(), batch);
        let x: Vec<_> = run.numels(&X::SIG).into_iter().map(counted).collect();
        let y = run.forward(&x.iter().cloned().map(Values::Real).collect::<Vec<_>>());
        let dy = counted(y[0].real().len());
        let dx = run.vjp(&[Values::Real(dy.clone())]).dx;
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let back: f64 = x.iter().zip(&dx).map(|(x, dx)| dot(x, dx.as_ref().unwrap())).sum();
        assert_eq!(dot(y[0].real(), &dy), back);
        y[0].real().to_vec()
    }

    #[test]
    fn gradients_are_adjoints_to_the_last_bit() {
        adjoint::<PixelShuffle<6, 5, 3>, T![36, 5]>(2);
        adjoint::<Transpose<1, 3>, T![2, 3, 4, 5]>(2);
        adjoint::<Transpose<0, 1>, T![3, 3]>(1);
        adjoint::<Concat<2>, (T![2, 3, 4], T![2, 3, 1])>(3);
        adjoint::<Slice<1, 2, 3>, T![2, 4, 3]>(3);
        adjoint::<Flatten, T![2, 4, 3]>(2);
    }

    #[test]
    fn pixel_shuffle_is_the_token_form() {
        const GRID: usize = 4;
        const E: usize = 3;
        const S: usize = 2;
        let y = adjoint::<PixelShuffle<GRID, E, S>, T![16, 3]>(1);
        let x = counted(GRID * GRID * E);
        let shuffle = |channel: fn(usize, usize, usize) -> usize| {
            let mut out = vec![0.0; x.len()];
            for (h, w, e) in
                (0..GRID).flat_map(|h| (0..GRID).flat_map(move |w| (0..E).map(move |e| (h, w, e))))
            {
                let t = h / S * (GRID / S) + w / S;
                out[t * E * S * S + channel(h % S, w % S, e)] = x[(h * GRID + w) * E + e];
            }
            out
        };
        assert_eq!(y, shuffle(|h, w, e| h * S * E + w * E + e));
        // PyTorch's order of channels, and columns before rows, fit as well and are wrong.
        assert_ne!(y, shuffle(|h, w, e| e * S * S + h * S + w));
        assert_ne!(y, shuffle(|h, w, e| w * S * E + h * E + e));
    }

    #[test]
    fn concat_and_slice_undo_each_other() {
        let y = adjoint::<Concat<1>, (T![2, 2], T![2, 1])>(1);
        assert_eq!(y, [11.0, 48.0, 11.0, 85.0, 21.0, 48.0]);
        let mut run = Run::<Slice<1, 2, 3>, T![2, 3], Cpu<f64>>::new(&Cpu::default(), 1);
        assert_eq!(run.forward_only(&[Values::Real(y)])[0].real(), [11.0, 48.0]);
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        fn fault<L: Layer<X>, X: Signature>() -> String {
            L::RULE.fault.unwrap().to_string()
        }
        assert_eq!(
            fault::<Flatten, T![2, ..3]>(),
            "shape mismatch: `Flatten` takes a tensor without bounds, but it is given [2, ..3]"
        );
        assert_eq!(
            fault::<Concat<0>, T![2]>(),
            "shape mismatch: `Concat<0>` takes two tensors or more, but it is given [2]"
        );
        assert_eq!(
            fault::<Concat<1>, (T![2], T![2])>(),
            "shape mismatch: `Concat<1>` takes tensors with an axis 1, but it is given ([2], [2])"
        );
        assert_eq!(
            fault::<Concat<0>, (T![..2], T![2])>(),
            "shape mismatch: `Concat<0>` takes tensors without a bound on axis 0, but it is given ([..2], [2])"
        );
        assert_eq!(
            fault::<Slice<0, 2, 2>, T![4]>(),
            "`Slice<0, 2, 2>` can't exist: nothing lies from 2 to 2"
        );
        assert_eq!(
            fault::<Slice<0, 0, 2>, T![..4]>(),
            "shape mismatch: `Slice<0, 0, 2>` takes a tensor without a bound on axis 0, but it is given [..4]"
        );
        assert_eq!(
            fault::<PixelShuffle<4, 3, 2>, T![15, 3]>(),
            "shape mismatch: `PixelShuffle<4, 3, 2>` takes [16, 3], but it is given [15, 3]"
        );
        assert_eq!(
            fault::<PixelShuffle<4, 3, 0>, T![16, 3]>(),
            "`PixelShuffle<4, 3, 0>` can't exist: S is 0"
        );
        assert_eq!(
            fault::<Reshape<(T![2], T![2])>, T![4]>(),
            "`Reshape<([2], [2])>` can't exist: it is one tensor of real numbers"
        );
    }
}
