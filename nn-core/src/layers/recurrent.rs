//! Recurrent layers: LSTM and GRU, one step of them and whole sequences.

use std::marker::PhantomData;

use nn_kernels::ops::{Binary, LinearSpec, PermuteSpec, Unary};
use nn_kernels::{Device, View, ViewMut};

use crate::ctx::Ctx;
use crate::dims::{Dim, Dims, Extent};
use crate::fault::{Rule, label};
use crate::init::Init;
use crate::layer::{Forward, Layer, Module, Params, Vjp};
use crate::layers::product;
use crate::region::{slice, slice_mut};
use crate::signature::{S1, S2, Sig, Signature};
use crate::tree::{Leaf, Node, Role};
use crate::{Size, Text, layer};

/// What a recurrent layer computes in a step, as a type argument: [`LSTM`] or [`GRU`].
#[diagnostic::on_unimplemented(message = "`{Self}` is not a recurrence", note = "take `LSTM` or `GRU`")]
pub trait Recurrence: 'static {
    /// The gates of a step.
    const GATES: usize;
    /// Whether there is a cell c besides the state h.
    const CELL: bool;
    /// What its layers' names begin with.
    const NAME: &'static str;
}

/// Long short-term memory.
#[derive(Clone, Copy, Debug)]
pub struct LSTM;
impl Recurrence for LSTM {
    const GATES: usize = 4;
    const CELL: bool = true;
    const NAME: &'static str = "LSTM";
}

/// The gated recurrent unit.
#[derive(Clone, Copy, Debug)]
pub struct GRU;
impl Recurrence for GRU {
    const GATES: usize = 3;
    const CELL: bool = false;
    const NAME: &'static str = "GRU";
}

/// So many gates of HID values, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Gates<KIND, HID>(PhantomData<(KIND, HID)>);
impl<KIND: Recurrence, HID: Dim> Dim for Gates<KIND, HID> {
    const EXTENT: Extent = HID::EXTENT.times(Extent::new(KIND::GATES));
}

/// One step of a recurrent layer: [`LSTMCell`] and [`GRUCell`].
#[layer(
    weight_ih: S2<Gates<KIND, HID>, IN>,
    weight_hh: S2<Gates<KIND, HID>, HID>,
    bias_ih: S1<Gates<KIND, HID>>,
    bias_hh: S1<Gates<KIND, HID>>
)]
pub struct RecurrentCell<const IN: usize, const HID: usize, KIND: Recurrence>;

/// A recurrent layer over sequences: [`LSTMSeq`] and [`GRUSeq`].
#[layer(
    weight_ih_l0: S2<Gates<KIND, HID>, IN>,
    weight_hh_l0: S2<Gates<KIND, HID>, HID>,
    bias_ih_l0: S1<Gates<KIND, HID>>,
    bias_hh_l0: S1<Gates<KIND, HID>>
)]
pub struct RecurrentSeq<const IN: usize, const HID: usize, const T: usize, KIND: Recurrence>;

/// One step of an LSTM: (x `[IN]`, h `[HID]`, c `[HID]`) → (h′ `[HID]`, c′ `[HID]`).
///
/// With i, f, g, o the four quarters, in this order, of W_ih·x + b_ih + W_hh·h + b_hh: c′ = σ(f)·c + σ(i)·tanh(g) and
/// h′ = σ(o)·tanh(c′).
///
/// Parameters, as in PyTorch: `weight_ih` `[4·HID, IN]`, `weight_hh` `[4·HID, HID]`, `bias_ih` `[4·HID]` and `bias_hh`
/// `[4·HID]`, all drawn from U(±1/√HID). Hochreiter and Schmidhuber 1997.
///
/// ```
/// use nn::{LSTMCell, Layer, T};
/// assert_eq!(<LSTMCell<3, 5> as Layer<(T![3], T![5], T![5])>>::RULE.out.to_string(), "([5], [5])");
/// let fault = <LSTMCell<3, 5> as Layer<(T![3], T![5])>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `LSTMCell<3, 5>` takes ([3], [5], [5]), but it is given ([3], [5])"
/// );
/// ```
pub type LSTMCell<const IN: usize, const HID: usize> = RecurrentCell<IN, HID, LSTM>;

/// One step of a GRU: (x `[IN]`, h `[HID]`) → h′ `[HID]`.
///
/// With a_r, a_z, a_n the three thirds, in this order, of W_ih·x + b_ih, and b_r, b_z, b_n those of W_hh·h + b_hh:
/// r = σ(a_r + b_r), z = σ(a_z + b_z), n = tanh(a_n + r·b_n) and h′ = (1 − z)·n + z·h. The reset gate multiplies the
/// product *and its bias*, as in PyTorch and cuDNN.
///
/// Parameters, as in PyTorch: `weight_ih` `[3·HID, IN]`, `weight_hh` `[3·HID, HID]`, `bias_ih` `[3·HID]` and `bias_hh`
/// `[3·HID]`, all drawn from U(±1/√HID). Cho et al. 2014, arXiv:1406.1078.
///
/// ```
/// use nn::{GRUCell, Layer, T};
/// assert_eq!(<GRUCell<3, 5> as Layer<(T![3], T![5])>>::RULE.out.to_string(), "[5]");
/// ```
pub type GRUCell<const IN: usize, const HID: usize> = RecurrentCell<IN, HID, GRU>;

/// An LSTM over sequences of T steps: x `[T, IN]` → `[T, HID]`, the state h after each step. It starts from zero. `[..T, IN]`
/// takes sequences of any length up to T. [`LSTMCell`] says what a step is.
///
/// Given (x, h `[HID]`, c `[HID]`), it starts from that state and gives (y, h `[HID]`, c `[HID]`), the state after the last
/// step too. The gradient goes back through all steps. The inputs of all steps are multiplied by their weight at once.
///
/// Parameters, as in PyTorch's `LSTM` with one layer: `weight_ih_l0` `[4·HID, IN]`, `weight_hh_l0` `[4·HID, HID]`,
/// `bias_ih_l0` `[4·HID]` and `bias_hh_l0` `[4·HID]`, all drawn from U(±1/√HID).
///
/// ```
/// use nn::{LSTMSeq, Layer, T};
/// assert_eq!(<LSTMSeq<3, 5, 7> as Layer<T![7, 3]>>::RULE.out.to_string(), "[7, 5]");
/// type State = (T![..7, 3], T![5], T![5]);
/// assert_eq!(<LSTMSeq<3, 5, 7> as Layer<State>>::RULE.out.to_string(), "([..7, 5], [5], [5])");
/// let fault = <LSTMSeq<3, 5, 7> as Layer<T![7, 5]>>::RULE.fault.unwrap();
/// assert_eq!(
///     fault.to_string(),
///     "shape mismatch: `LSTMSeq<3, 5, 7>` takes [7, 3] or ([7, 3], [5], [5]), but it is given [7, 5]"
/// );
/// ```
pub type LSTMSeq<const IN: usize, const HID: usize, const T: usize> = RecurrentSeq<IN, HID, T, LSTM>;

/// A GRU over sequences of T steps: x `[T, IN]` → `[T, HID]`, the state h after each step. It starts from zero. `[..T, IN]`
/// takes sequences of any length up to T. [`GRUCell`] says what a step is.
///
/// Given (x, h `[HID]`), it starts from that state and gives (y, h `[HID]`), the state after the last step too. The gradient
/// goes back through all steps. The inputs of all steps are multiplied by their weight at once.
///
/// Parameters, as in PyTorch's `GRU` with one layer: `weight_ih_l0` `[3·HID, IN]`, `weight_hh_l0` `[3·HID, HID]`,
/// `bias_ih_l0` `[3·HID]` and `bias_hh_l0` `[3·HID]`, all drawn from U(±1/√HID).
///
/// ```
/// use nn::{GRUSeq, Layer, T};
/// assert_eq!(<GRUSeq<3, 5, 7> as Layer<(T![7, 3], T![5])>>::RULE.out.to_string(), "([7, 5], [5])");
/// ```
pub type GRUSeq<const IN: usize, const HID: usize, const T: usize> = RecurrentSeq<IN, HID, T, GRU>;

const fn leaves(names: [&'static str; 4], gates: usize, inputs: Extent, hidden: Extent) -> [Leaf; 4] {
    let wide = hidden.times(Extent::new(gates));
    let init = Init::PyTorch(hidden.n);
    [
        Leaf::new(names[0], Dims::new(&[wide, inputs]), Role::Weight, init).transposed(),
        Leaf::new(names[1], Dims::new(&[wide, hidden]), Role::Weight, init).transposed(),
        Leaf::new(names[2], Dims::new(&[wide]), Role::Bias, init),
        Leaf::new(names[3], Dims::new(&[wide]), Role::Bias, init),
    ]
}

/// A buffer of so many values a sample for each of some steps.
const fn gates(steps: usize, hidden: usize, gates: usize) -> Size {
    Size::elements(steps.saturating_mul(hidden).saturating_mul(gates))
}

/// What steps keep besides the states: the gates, and the cells or what comes from the state.
const fn kept<KIND: Recurrence>(steps: usize, hidden: usize) -> Size {
    let more = if KIND::CELL { 1 } else { KIND::GATES };
    gates(steps, hidden, KIND::GATES).plus(gates(steps, hidden, more))
}

/// x, and the state that goes with it.
const fn with_state(x: Dims, hidden: Extent, cell: bool) -> Sig {
    let state = Sig::real(Dims::new(&[hidden]));
    let both = Sig::real(x).join(&state);
    if cell { both.join(&state) } else { both }
}

/// The sizes of a call: `steps` steps of a batch, all a step's samples next to each other.
#[derive(Clone, Copy)]
struct Steps {
    inputs: usize,
    hidden: usize,
    gates: usize,
    cell: bool,
    batch: usize,
    steps: usize,
}

impl Steps {
    /// Values of one state of the batch.
    fn state(&self) -> usize {
        self.batch * self.hidden
    }

    /// Values of one step's gates.
    fn wide(&self) -> usize {
        self.gates * self.state()
    }

    /// Values that a step keeps besides: the cell, or what comes from the state.
    fn more(&self) -> usize {
        if self.cell { self.state() } else { self.wide() }
    }

    fn of_input(&self) -> LinearSpec {
        LinearSpec {
            rows: self.steps * self.batch,
            inputs: self.inputs,
            outputs: self.gates * self.hidden,
            act: Unary::Identity,
            transposed: false,
        }
    }

    fn of_state(&self, steps: usize) -> LinearSpec {
        LinearSpec { rows: steps * self.batch, inputs: self.hidden, ..self.of_input() }
    }

    /// The two outer axes changed places: samples of steps to steps of samples, or `back`.
    fn turn<D: Device>(&self, device: &D, back: bool, width: usize, x: View<'_, D>, y: ViewMut<'_, D>) {
        let (outer, inner) = if back { (self.steps, self.batch) } else { (self.batch, self.steps) };
        let spec = PermuteSpec { rank: 3, dims: [outer, inner, width, 1, 1, 1], axes: [1, 0, 2, 3, 4, 5] };
        device.permute(1, &spec, x, y);
    }

    /// Where the four parameters lie.
    fn weights<'b, 'a: 'b, D: Device>(&self, tree: &Node, params: View<'a, D>) -> [View<'b, D>; 4] {
        let wide = self.gates * self.hidden;
        let lens = [self.inputs * wide, self.hidden * wide, wide, wide];
        [0, 1, 2, 3].map(|i| slice::<D>(params, tree.leaf_offset(i), lens[i]))
    }

    /// The gradients of the four.
    fn gradients<'a, D: Device>(&self, tree: &Node, dparams: ViewMut<'a, D>) -> [ViewMut<'a, D>; 4] {
        let wide = self.gates * self.hidden;
        let (a, rest) = D::split_mut(dparams, tree.leaf_offset(1));
        let (b, rest) = D::split_mut(rest, tree.leaf_offset(2) - tree.leaf_offset(1));
        let (c, d) = D::split_mut(rest, tree.leaf_offset(3) - tree.leaf_offset(2));
        let lens = [self.inputs * wide, self.hidden * wide, wide, wide];
        let [l0, l1, l2, l3] = lens;
        [
            slice_mut::<D>(a, 0, l0),
            slice_mut::<D>(b, 0, l1),
            slice_mut::<D>(c, 0, l2),
            slice_mut::<D>(d, 0, l3),
        ]
    }

    /// All steps: fills the gates after their activations, what a step keeps besides, and the states. `bias` has room for a
    /// step's gates of one sample.
    #[allow(clippy::too_many_arguments, reason = "one view for each operand")]
    fn forward<D: Device>(
        &self,
        device: &D,
        weights: [View<'_, D>; 4],
        x: View<'_, D>,
        [h, c]: [View<'_, D>; 2],
        mut gates: ViewMut<'_, D>,
        mut more: ViewMut<'_, D>,
        mut states: ViewMut<'_, D>,
        mut bias: ViewMut<'_, D>,
    ) {
        let [w_ih, w_hh, b_ih, b_hh] = weights;
        let (n, wide, others) = (self.state(), self.wide(), self.more());
        if self.cell {
            device.binary(Binary::Add, b_ih, b_hh, D::reborrow(&mut bias));
            device.linear(&self.of_input(), x, w_ih, Some(D::read(&bias)), D::reborrow(&mut gates));
        } else {
            device.linear(&self.of_input(), x, w_ih, Some(b_ih), D::reborrow(&mut gates));
        }
        let from_state = self.of_state(1);
        for t in 0..self.steps {
            let mut gates = slice_mut::<D>(D::reborrow(&mut gates), t * wide, wide);
            let (before, after) = D::split_mut(D::reborrow(&mut states), t * n);
            let (more_before, more_after) = D::split_mut(D::reborrow(&mut more), t * others);
            let mut more = slice_mut::<D>(more_after, 0, others);
            let h = if t == 0 { D::shorten(h) } else { slice::<D>(D::read(&before), (t - 1) * n, n) };
            let h_next = slice_mut::<D>(after, 0, n);
            if self.cell {
                let c =
                    if t == 0 { D::shorten(c) } else { slice::<D>(D::read(&more_before), (t - 1) * n, n) };
                device.linear_add(&from_state, h, w_hh, D::reborrow(&mut gates));
                device.lstm(self.hidden, gates, c, more, h_next);
            } else {
                device.linear(&from_state, h, w_hh, Some(b_hh), D::reborrow(&mut more));
                device.gru(self.hidden, gates, D::read(&more), h, h_next);
            }
        }
    }

    /// Back through all steps. `dstate` and `dcell` hold the gradient of the state after the last step, and afterwards that
    /// of the state before the first, if it is `given`; `dy` that of each step's state.
    fn vjp<D: Device>(&self, device: &D, weights: [View<'_, D>; 4], back: Back<'_, D>, given: bool) {
        let Back {
            x,
            h,
            c,
            gates,
            more,
            states,
            dy,
            mut dstate,
            mut dcell,
            mut dgates,
            mut drecurrent,
            mut one,
            dx,
            dparams,
        } = back;
        let [w_ih, w_hh, ..] = weights;
        let (n, wide, others) = (self.state(), self.wide(), self.more());
        let from_state = self.of_state(1);
        for t in (0..self.steps).rev() {
            let h = if t == 0 { D::shorten(h) } else { slice::<D>(states, (t - 1) * n, n) };
            if D::len(dy) > 0 {
                device.add_assign(slice::<D>(dy, t * n, n), D::reborrow(&mut dstate));
            }
            let gates = slice::<D>(gates, t * wide, wide);
            let mut dgates = slice_mut::<D>(D::reborrow(&mut dgates), t * wide, wide);
            let now = slice::<D>(more, t * others, others);
            if self.cell {
                let c = if t == 0 { D::shorten(c) } else { slice::<D>(more, (t - 1) * n, n) };
                let (dh, dc) = (D::read(&dstate), D::reborrow(&mut dcell));
                device.lstm_vjp(self.hidden, gates, c, now, dh, dc, D::reborrow(&mut dgates));
                if t > 0 || given {
                    let (dy, dx) = (D::read(&dgates), Some(D::reborrow(&mut dstate)));
                    let none = D::empty_mut();
                    device.linear_vjp(&from_state, h, w_hh, None, D::empty(), dy, dx, None, None, none);
                }
            } else {
                let mut drecurrent = slice_mut::<D>(D::reborrow(&mut drecurrent), t * wide, wide);
                let (dh, to) = (D::reborrow(&mut dstate), D::reborrow(&mut drecurrent));
                device.gru_vjp(self.hidden, gates, now, h, dh, dgates, to);
                if t > 0 || given {
                    let (dy, dx) = (D::read(&drecurrent), Some(D::reborrow(&mut one)));
                    let none = D::empty_mut();
                    device.linear_vjp(&from_state, h, w_hh, None, D::empty(), dy, dx, None, None, none);
                    device.add_assign(D::read(&one), D::reborrow(&mut dstate));
                }
            }
        }
        let (dw_ih, dw_hh, db_ih, db_hh) = match dparams {
            Some([a, b, c, d]) => (Some(a), Some(b), Some(c), Some(d)),
            None => (None, None, None, None),
        };
        let dgates = D::read(&dgates);
        let drecurrent = if self.cell { D::shorten(dgates) } else { D::read(&drecurrent) };
        if let Some(mut dw) = dw_hh {
            let mut product = |steps: usize, h: View<'_, D>, first: usize| {
                let dy = slice::<D>(drecurrent, first * wide, steps * wide);
                let (spec, dw) = (self.of_state(steps), Some(D::reborrow(&mut dw)));
                device.linear_vjp(&spec, h, w_hh, None, D::empty(), dy, None, dw, None, D::empty_mut());
            };
            if given && self.steps > 0 {
                product(1, D::shorten(h), 0);
            }
            if self.steps > 1 {
                product(self.steps - 1, slice::<D>(states, 0, (self.steps - 1) * n), 1);
            }
        }
        if let Some(db) = db_hh {
            device.sum_rows(self.steps * self.batch, drecurrent, db);
        }
        let spec = self.of_input();
        device.linear_vjp(&spec, x, w_ih, None, D::empty(), dgates, dx, dw_ih, db_ih, D::empty_mut());
    }
}

/// What the way back works on, all of it a step's samples next to each other.
struct Back<'a, D: Device> {
    x: View<'a, D>,
    /// The state before the first step.
    h: View<'a, D>,
    c: View<'a, D>,
    gates: View<'a, D>,
    more: View<'a, D>,
    states: View<'a, D>,
    /// That of each step's state; empty where there is one step.
    dy: View<'a, D>,
    dstate: ViewMut<'a, D>,
    dcell: ViewMut<'a, D>,
    dgates: ViewMut<'a, D>,
    /// For a GRU, the gradients of what comes from the state.
    drecurrent: ViewMut<'a, D>,
    /// For a GRU, room for one state.
    one: ViewMut<'a, D>,
    dx: Option<ViewMut<'a, D>>,
    dparams: Option<[ViewMut<'a, D>; 4]>,
}

impl<IN: Dim, HID: Dim, KIND: Recurrence> RecurrentCellOf<IN, HID, KIND> {
    const LEAVES: [Leaf; 4] =
        leaves(["weight_ih", "weight_hh", "bias_ih", "bias_hh"], KIND::GATES, IN::EXTENT, HID::EXTENT);

    const BIAS: Size = Size::fixed_elements(HID::N.saturating_mul(KIND::GATES));
    /// The gates after their activations; for a GRU also what comes from the state.
    const KEPT: Size = gates(1, HID::N, KIND::GATES).times(if KIND::CELL { 1 } else { 2 });

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = Rule::check_positive(&Self::LABEL, &["IN", "HID"], Self::ARGS) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(&Self::LABEL, Self::ARGS) {
            return rule;
        }
        if given.is_poison() {
            return Rule::ok(Sig::POISON);
        }
        let takes = with_state(Dims::new(&[IN::EXTENT]), HID::EXTENT, KIND::CELL);
        let state = Sig::real(Dims::new(&[HID::EXTENT]));
        let gives = if KIND::CELL { state.join(&state) } else { state };
        if given.same(&takes) {
            return Rule::ok(gives);
        }
        Rule::mismatch(&Self::LABEL, takes.write(Text::new()), given, gives)
    }

    fn steps(batch: usize) -> Steps {
        let (inputs, hidden, gates, cell) = (IN::N, HID::N, KIND::GATES, KIND::CELL);
        Steps { inputs, hidden, gates, cell, batch, steps: 1 }
    }
}

impl<IN: Dim, HID: Dim, KIND: Recurrence> Params for RecurrentCellOf<IN, HID, KIND> {
    const LABEL: Text = label(Text::new().str(KIND::NAME).str("Cell").as_str(), Self::ARGS);
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, IN: Dim, HID: Dim, KIND: Recurrence> Layer<X> for RecurrentCellOf<IN, HID, KIND> {
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    // c′.
    const KEEPS_Y: bool = KIND::CELL;
    const SAVED: Size = Self::KEPT;
    // A bias; and where nothing is kept, the rest.
    const SCRATCH: Size = Self::BIAS.plus(Self::KEPT);
    // The gradients of the state and of the cell, or what a GRU adds to that of the state; and those of what is kept.
    const VJP_SCRATCH: Size = gates(1, HID::N, 1).times(2).plus(Self::KEPT);
    const MACS: usize = product(&[KIND::GATES, HID::N, IN::N]) + product(&[KIND::GATES, HID::N, HID::N]);
}

impl<D: Device, X: Signature, IN: Dim, HID: Dim, KIND: Recurrence> Module<D, X>
    for RecurrentCellOf<IN, HID, KIND>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let s = Self::steps(cx.batch);
        let weights = s.weights::<D>(Self::TREE, call.params);
        let bias = call.scratch.take(s.gates * s.hidden);
        let kept = if cx.keeps() { &mut call.saved } else { &mut call.scratch };
        let now = kept.take(s.wide());
        let (x, h) = (call.x.get(0), call.x.get(1));
        if KIND::CELL {
            let (h_next, c_next) = call.y.wanted_pair(0, 1);
            let [h_next, c_next] = [h_next, c_next].map(|view| view.unwrap_or_else(D::empty_mut));
            s.forward(cx.device(), weights, x, [h, call.x.get(2)], now, c_next, h_next, bias);
        } else {
            let recurrent = kept.take(s.wide());
            s.forward(cx.device(), weights, x, [h, h], now, recurrent, call.y.get(0), bias);
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let s = Self::steps(cx.batch);
        let (device, n) = (cx.device(), s.state());
        let now = call.saved.take(s.wide());
        let more = if KIND::CELL { call.y.get(1) } else { call.saved.take(s.wide()) };
        let (mut dstate, mut second) = (call.scratch.take(n), call.scratch.take(n));
        device.copy(call.dy.get(0), D::reborrow(&mut dstate));
        if KIND::CELL {
            device.copy(call.dy.get(1), D::reborrow(&mut second));
        }
        let mut dgates = call.scratch.take(s.wide());
        let mut drecurrent = call.scratch.take(if KIND::CELL { 0 } else { s.wide() });
        let weights = s.weights::<D>(Self::TREE, call.params);
        let (h, c) = (call.x.get(1), if KIND::CELL { call.x.get(2) } else { D::empty() });
        let (dcell, one) = if KIND::CELL {
            (D::reborrow(&mut second), D::empty_mut())
        } else {
            (D::empty_mut(), D::reborrow(&mut second))
        };
        let back = Back {
            x: D::shorten(call.x.get(0)),
            h: D::shorten(h),
            c: D::shorten(c),
            gates: D::shorten(now),
            more: D::shorten(more),
            states: D::empty(),
            dy: D::empty(),
            dstate: D::reborrow(&mut dstate),
            dcell,
            dgates: D::reborrow(&mut dgates),
            drecurrent: D::reborrow(&mut drecurrent),
            one,
            dx: call.dx.wanted(0),
            dparams: call.dparams.map(|dparams| s.gradients::<D>(Self::TREE, D::shorten_mut(dparams))),
        };
        s.vjp(device, weights, back, true);
        if let Some(dh) = call.dx.wanted(1) {
            device.copy(D::read(&dstate), dh);
        }
        if KIND::CELL
            && let Some(dc) = call.dx.wanted(2)
        {
            device.copy(D::read(&second), dc);
        }
    }
}

impl<IN: Dim, HID: Dim, T: Dim, KIND: Recurrence> RecurrentSeqOf<IN, HID, T, KIND> {
    const LEAVES: [Leaf; 4] = leaves(
        ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"],
        KIND::GATES,
        IN::EXTENT,
        HID::EXTENT,
    );
    const BIAS: Size = Size::fixed_elements(HID::N.saturating_mul(KIND::GATES));
    /// The states after all steps, batch outermost where they are given and steps outermost where they are kept.
    const STATES: Size = gates(T::N, HID::N, 1);
    const INPUTS: Size = gates(T::N, IN::N, 1);
    /// What steps keep.
    const KEPT: Size = kept::<KIND>(T::N, HID::N).plus(Self::STATES);
    const ONE: Size = gates(1, HID::N, 1);

    const fn rule(given: &Sig) -> Rule {
        if let Some(rule) = Rule::check_positive(&Self::LABEL, &["IN", "HID", "T"], Self::ARGS) {
            return rule;
        }
        if let Some(rule) = Rule::check_args(&Self::LABEL, Self::ARGS) {
            return rule;
        }
        if given.is_poison() {
            return Rule::ok(Sig::POISON);
        }
        let dims = given.dims(0);
        if !given.is_empty() && dims.rank() == 2 && dims.n(0) == T::N && !dims.is_poison() {
            let x = Dims::new(&[dims.axis(0), IN::EXTENT]);
            let y = Dims::new(&[dims.axis(0), HID::EXTENT]);
            if given.same(&Sig::real(x)) {
                return Rule::ok(Sig::real(y));
            }
            if given.same(&with_state(x, HID::EXTENT, KIND::CELL)) {
                return Rule::ok(with_state(y, HID::EXTENT, KIND::CELL));
            }
        }
        let x = Dims::new(&[T::EXTENT, IN::EXTENT]);
        let takes = x.write(Text::new()).str(" or ");
        let takes = with_state(x, HID::EXTENT, KIND::CELL).write(takes);
        let y = Dims::new(&[T::EXTENT, HID::EXTENT]);
        let gives = if given.len() > 1 { with_state(y, HID::EXTENT, KIND::CELL) } else { Sig::real(y) };
        // Whether it is bounded would be a guess.
        Rule::mismatch(&Self::LABEL, takes, given, gives).keeping()
    }

    fn steps<D: Device, X: Signature>(cx: &Ctx<'_, D>) -> Steps {
        let (inputs, hidden, gates, cell) = (IN::N, HID::N, KIND::GATES, KIND::CELL);
        let steps = X::SIG.dims(0).axis_at(0, &cx.lengths);
        Steps { inputs, hidden, gates, cell, batch: cx.batch, steps }
    }
}

impl<IN: Dim, HID: Dim, T: Dim, KIND: Recurrence> Params for RecurrentSeqOf<IN, HID, T, KIND> {
    const LABEL: Text = label(Text::new().str(KIND::NAME).str("Seq").as_str(), Self::ARGS);
    const TREE: &'static Node = &Node::of(&Self::LEAVES);
}

impl<X: Signature, IN: Dim, HID: Dim, T: Dim, KIND: Recurrence> Layer<X>
    for RecurrentSeqOf<IN, HID, T, KIND>
{
    const RULE: Rule = Self::rule(&X::SIG);
    const KEEPS_X: bool = true;
    const SAVED: Size = Self::KEPT;
    // A state that has moved on can't be taken back to an earlier token.
    const CAUSAL: bool = false;
    // A bias, the inputs, and a first state; where nothing is kept, the rest too.
    const SCRATCH: Size = Self::BIAS.plus(Self::INPUTS).plus(Self::ONE).plus(Self::KEPT);
    // The inputs and their gradients, those of the states, a first state, the gradients of two states; those of the gates,
    // and for a GRU those of what comes from the state.
    const VJP_SCRATCH: Size = Self::INPUTS
        .times(2)
        .plus(Self::STATES)
        .plus(Self::ONE.times(3))
        .plus(gates(T::N, HID::N, KIND::GATES).times(if KIND::CELL { 1 } else { 2 }));
    const MACS: usize =
        product(&[T::N, KIND::GATES, HID::N, IN::N]) + product(&[T::N, KIND::GATES, HID::N, HID::N]);
}

impl<D: Device, X: Signature, IN: Dim, HID: Dim, T: Dim, KIND: Recurrence> Module<D, X>
    for RecurrentSeqOf<IN, HID, T, KIND>
{
    fn forward(cx: &mut Ctx<'_, D>, mut call: Forward<'_, D>) {
        let s = Self::steps::<D, X>(cx);
        let (device, n, given) = (cx.device(), s.state(), X::SIG.len() > 1);
        let weights = s.weights::<D>(Self::TREE, call.params);
        let bias = call.scratch.take(s.gates * s.hidden);
        let mut x = call.scratch.take(s.steps * s.batch * s.inputs);
        s.turn(device, false, s.inputs, call.x.get(0), D::reborrow(&mut x));
        let mut zero = call.scratch.take(n);
        device.fill(0.0, D::reborrow(&mut zero));
        let zero = D::read(&zero);
        let first = if given {
            [D::shorten(call.x.get(1)), if KIND::CELL { D::shorten(call.x.get(2)) } else { zero }]
        } else {
            [zero, zero]
        };
        let kept = if cx.keeps() { &mut call.saved } else { &mut call.scratch };
        let now = kept.take(s.steps * s.wide());
        let mut more = kept.take(s.steps * s.more());
        let mut states = kept.take(s.steps * n);
        let (to_more, to_states) = (D::reborrow(&mut more), D::reborrow(&mut states));
        s.forward(device, weights, D::read(&x), first, now, to_more, to_states, bias);
        s.turn(device, true, s.hidden, D::read(&states), call.y.get(0));
        if given {
            let last = |all: View<'_, D>, first: View<'_, D>, to: ViewMut<'_, D>| match s.steps {
                0 => device.copy(first, to),
                steps => device.copy(slice::<D>(all, (steps - 1) * n, n), to),
            };
            last(D::read(&states), first[0], call.y.get(1));
            if KIND::CELL {
                last(D::read(&more), first[1], call.y.get(2));
            }
        }
    }

    fn vjp(cx: &mut Ctx<'_, D>, mut call: Vjp<'_, D>) {
        let s = Self::steps::<D, X>(cx);
        let (device, n, given) = (cx.device(), s.state(), X::SIG.len() > 1);
        let inputs = s.steps * s.batch * s.inputs;
        let (mut x, mut dx) = (call.scratch.take(inputs), call.scratch.take(inputs));
        s.turn(device, false, s.inputs, call.x.get(0), D::reborrow(&mut x));
        let mut dy = call.scratch.take(s.steps * n);
        s.turn(device, false, s.hidden, call.dy.get(0), D::reborrow(&mut dy));
        let [mut zero, mut dstate, mut second] = [0; 3].map(|_| call.scratch.take(n));
        device.fill(0.0, D::reborrow(&mut zero));
        let zero = D::read(&zero);
        let [h, c] = if given {
            [D::shorten(call.x.get(1)), if KIND::CELL { D::shorten(call.x.get(2)) } else { zero }]
        } else {
            [zero, zero]
        };
        let [from_state, from_cell] = if given {
            [D::shorten(call.dy.get(1)), if KIND::CELL { D::shorten(call.dy.get(2)) } else { zero }]
        } else {
            [zero, zero]
        };
        device.copy(from_state, D::reborrow(&mut dstate));
        device.copy(from_cell, D::reborrow(&mut second));
        let mut dgates = call.scratch.take(s.steps * s.wide());
        let mut drecurrent = call.scratch.take(if KIND::CELL { 0 } else { s.steps * s.wide() });
        let (dcell, one) = if KIND::CELL {
            (D::reborrow(&mut second), D::empty_mut())
        } else {
            (D::empty_mut(), D::reborrow(&mut second))
        };
        let back = Back {
            x: D::read(&x),
            h,
            c,
            gates: D::shorten(call.saved.take(s.steps * s.wide())),
            more: D::shorten(call.saved.take(s.steps * s.more())),
            states: D::shorten(call.saved.take(s.steps * n)),
            dy: D::read(&dy),
            dstate: D::reborrow(&mut dstate),
            dcell,
            dgates: D::reborrow(&mut dgates),
            drecurrent: D::reborrow(&mut drecurrent),
            one,
            dx: call.dx.wanted(0).is_some().then(|| D::reborrow(&mut dx)),
            dparams: call.dparams.map(|dparams| s.gradients::<D>(Self::TREE, D::shorten_mut(dparams))),
        };
        s.vjp(device, s.weights::<D>(Self::TREE, call.params), back, given);
        if let Some(to) = call.dx.wanted(0) {
            s.turn(device, true, s.inputs, D::read(&dx), to);
        }
        if given {
            if let Some(to) = call.dx.wanted(1) {
                device.copy(D::read(&dstate), to);
            }
            if KIND::CELL
                && let Some(to) = call.dx.wanted(2)
            {
                device.copy(D::read(&second), to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Run, Values, gradients};
    use crate::{Cpu, MAX_LENGTHS, Mode, T};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for batch in [1, 3] {
            gradients::<LSTMCell<3, 4>, (T![3], T![4], T![4])>(batch, Mode::Train, 1).assert_within(1e-7);
            gradients::<GRUCell<3, 4>, (T![3], T![4])>(batch, Mode::Train, 2).assert_within(1e-7);
            gradients::<LSTMSeq<3, 4, 5>, T![5, 3]>(batch, Mode::Train, 3).assert_within(1e-7);
            gradients::<GRUSeq<3, 4, 5>, T![5, 3]>(batch, Mode::Infer, 4).assert_within(1e-7);
            // Sequences of three, and of one step.
            gradients::<LSTMSeq<2, 3, 4>, T![..4, 2]>(batch, Mode::Train, 5).assert_within(1e-7);
            gradients::<GRUSeq<2, 3, 1>, T![1, 2]>(batch, Mode::Train, 6).assert_within(1e-7);
            gradients::<LSTMSeq<3, 2, 4>, (T![4, 3], T![2], T![2])>(batch, Mode::Train, 7)
                .assert_within(1e-7);
            gradients::<GRUSeq<3, 2, 4>, (T![..4, 3], T![2])>(batch, Mode::Train, 8).assert_within(1e-7);
        }
    }

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn one(values: &[f64]) -> Values<f64> {
        Values::Real(values.to_vec())
    }

    #[test]
    fn gates_stand_in_pytorchs_order() {
        // One value each: the gates are the biases.
        type Cell = LSTMCell<1, 1>;
        let mut run = Run::<Cell, (T![1], T![1], T![1]), Cpu<f64>>::new(&Cpu::default(), 1);
        run.set("weight_ih", &[0.0; 4]);
        run.set("weight_hh", &[0.0; 4]);
        run.set("bias_ih", &[0.1, 0.5, 1.0, -1.5]);
        run.set("bias_hh", &[0.2, 0.1, -0.3, 0.5]);
        let y = run.forward_only(&[one(&[0.0]), one(&[0.0]), one(&[2.0])]);
        let step = |[i, f, g, o]: [f64; 4]| {
            let c = logistic(f) * 2.0 + logistic(i) * g.tanh();
            [logistic(o) * c.tanh(), c]
        };
        let near = |a: [f64; 2]| a.iter().zip(&y).all(|(a, y)| (a - y.real()[0]).abs() < 1e-14);
        assert!(near(step([0.3, 0.6, 0.7, -1.0])));
        // ONNX's order i, o, f, g, and others, would fit as well.
        assert!(!near(step([0.3, 0.7, -1.0, 0.6])) && !near(step([0.6, 0.3, 0.7, -1.0])));
        assert!(!near(step([0.3, 0.6, -1.0, 0.7])));
    }

    #[test]
    fn the_reset_gate_multiplies_the_bias_too_and_the_update_gate_keeps_the_state() {
        let mut run = Run::<GRUCell<1, 1>, (T![1], T![1]), Cpu<f64>>::new(&Cpu::default(), 1);
        run.set("weight_ih", &[0.0; 3]);
        run.set("weight_hh", &[0.0, 0.0, 0.4]);
        run.set("bias_ih", &[0.1, 0.5, 1.0]);
        run.set("bias_hh", &[-0.7, 0.2, -0.8]);
        let y = run.forward_only(&[one(&[0.0]), one(&[2.0])])[0].real()[0];
        let (r, z) = (logistic(0.1 - 0.7), logistic(0.5 + 0.2));
        let n = (1.0 + r * (0.4 * 2.0 - 0.8)).tanh();
        let n_outside = (1.0 + r * 0.4 * 2.0 - 0.8).tanh();
        let step = |z: f64, n: f64| (1.0 - z) * n + z * 2.0;
        assert!((y - step(z, n)).abs() < 1e-14);
        // The bias outside of the product, gates in the order z, r, n, and z that lets in instead of keeping.
        assert!((y - step(z, n_outside)).abs() > 1e-2);
        assert!((y - step(r, (1.0 + z * 0.0).tanh())).abs() > 1e-2);
        assert!((y - step(1.0 - z, n)).abs() > 1e-2);
    }

    fn numbers(n: usize) -> Vec<f64> {
        (0..n).map(|i| (i * 37 % 23) as f64 / 10.0 - 1.1).collect()
    }

    /// A sequence step by step, given that the parameters' names differ by `_l0` alone.
    fn by_steps<C, X, S, Y>(cell: bool)
    where
        C: Module<Cpu<f64>, X>,
        X: Signature,
        S: Module<Cpu<f64>, Y>,
        Y: Signature,
    {
        let (batch, steps, inputs, hidden) = (2, 5, 3, 4);
        let mut seq = Run::<S, Y, Cpu<f64>>::new(&Cpu::default(), batch);
        let mut step = Run::<C, X, Cpu<f64>>::new(&Cpu::default(), batch);
        seq.init(9);
        for (path, _) in step.paths().map(|(path, dims)| (path.to_owned(), dims)).collect::<Vec<_>>() {
            step.set(&path, &seq.get(&format!("{path}_l0")));
        }
        let (x, h, c) = (numbers(batch * steps * inputs), numbers(batch * hidden), numbers(batch * hidden));
        let mut given = vec![one(&x), one(&h)];
        let mut state = vec![one(&h)];
        if cell {
            given.push(one(&c));
            state.push(one(&c));
        }
        let y = seq.forward_only(&given);
        for t in 0..steps {
            let at = |b: usize| x[(b * steps + t) * inputs..][..inputs].to_vec();
            let mut input = vec![Values::Real((0..batch).flat_map(at).collect())];
            input.extend(state);
            state = step.forward_only(&input);
            for (b, h) in state[0].real().chunks(hidden).enumerate() {
                assert_eq!(&y[0].real()[(b * steps + t) * hidden..][..hidden], h, "sample {b}, step {t}");
            }
        }
        assert_eq!(y[1..], state);
    }

    #[test]
    fn a_sequence_is_its_steps() {
        by_steps::<LSTMCell<3, 4>, (T![3], T![4], T![4]), LSTMSeq<3, 4, 5>, (T![5, 3], T![4], T![4])>(true);
        by_steps::<GRUCell<3, 4>, (T![3], T![4]), GRUSeq<3, 4, 5>, (T![..5, 3], T![4])>(false);
    }

    #[test]
    fn later_steps_do_not_change_earlier_ones_and_lengths_may_be_zero() {
        type Seq = LSTMSeq<2, 3, 4>;
        let run = |steps: usize, x: &[f64]| {
            let mut lengths = [0; MAX_LENGTHS];
            lengths[0] = steps;
            let mut run = Run::<Seq, T![..4, 2], Cpu<f64>>::new(&Cpu::default(), 1).lengths(lengths);
            run.forward(&[one(x)])[0].real().to_vec()
        };
        let x = numbers(8);
        let whole = run(4, &x);
        assert_eq!(run(2, &x[..4]), whole[..6]);
        assert!(run(0, &[]).is_empty());
        let lengths = [0; MAX_LENGTHS];
        type State = (T![..4, 2], T![3]);
        let mut run = Run::<GRUSeq<2, 3, 4>, State, Cpu<f64>>::new(&Cpu::default(), 1).lengths(lengths);
        let y = run.forward(&[one(&[]), one(&[1.0, 2.0, 3.0])]);
        assert_eq!(y[1].real(), [1.0, 2.0, 3.0]);
        let gradients = run.vjp(&[one(&[]), one(&[4.0, 5.0, 6.0])]);
        assert_eq!(gradients.dx[1].as_deref(), Some(&[4.0, 5.0, 6.0][..]));
    }

    #[test]
    fn all_parameters_start_within_the_bound_of_the_states_width() {
        let mut run = Run::<LSTMSeq<100, 4, 2>, T![2, 100], Cpu<f64>>::new(&Cpu::default(), 1);
        run.init(1);
        for path in ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"] {
            let most = run.get(path).iter().fold(0.0_f64, |most, v| most.max(v.abs()));
            assert!(most <= 0.5 && most > 0.3, "{path}: {most}");
        }
    }

    #[test]
    fn what_does_not_fit_is_said_in_numbers() {
        let fault = <GRUCell<3, 0> as Layer<(T![3], T![0])>>::RULE.fault.unwrap();
        assert_eq!(fault.to_string(), "`GRUCell<3, 0>` can't exist: HID is 0");
        let fault = <GRUSeq<3, 5, 7> as Layer<(T![7, 3], T![4])>>::RULE.fault.unwrap();
        assert_eq!(
            fault.to_string(),
            "shape mismatch: `GRUSeq<3, 5, 7>` takes [7, 3] or ([7, 3], [5]), but it is given ([7, 3], [4])"
        );
    }
}
