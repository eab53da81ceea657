//! What `forward` can say.

use super::output;
use nn::{
    Add, Concat, Embedding, Flatten, Ids, LayerNorm, Linear, LinearOf, MaxPool2D, Model, Param, ReLU, Repeat,
    Residual, T, TiedLinear, Zero, module, sequential,
};
use typenum::{Prod, U2, U3, U4};

#[module]
struct Numbers {
    scale: Param<T![2]>,
}

#[module]
impl Numbers {
    fn forward(&self, x: T![2]) -> (T![2], T![2]) {
        let a = 1.0 - x * 0.5;
        let b = (2.0 / (x + 1)) / 4 - 0.25;
        let c = -a + (b - a) * b / (b + 3.0);
        (c * self.scale, x)
    }
}

#[test]
fn numbers_stand_on_either_side() {
    let mut model = Model::<Numbers>::init(1, 1).expect("a model of this size fits");
    let scale = model.weights().get("scale").expect("there is one");
    let (y, x) = model.forward(&[3.0, 1.0]).expect("one sample fits");
    let f = |x: f32| {
        let (a, b) = (1.0 - x * 0.5, 2.0 / (x + 1.0) / 4.0 - 0.25);
        -a + (b - a) * b / (b + 3.0)
    };
    assert!((y[0] - f(3.0) * scale[0]).abs() < 1e-6 && (y[1] - f(1.0) * scale[1]).abs() < 1e-6);
    assert_eq!(x, [3.0, 1.0]);
}

#[module]
struct Two<const D: usize> {
    fc: Linear<D, D>,
}

#[module]
impl<const D: usize> Two<D> {
    fn forward(&self, x: T![D], y: T![D]) -> (T![D], T![D]) {
        let h = self.fc(x);
        (h + y, self.fc(h))
    }
}

#[module]
struct Tuples<const D: usize> {
    two: Two<D>,
    last: Two<D>,
    join: Linear<{ 2 * D }, D>,
}

#[module]
impl<const D: usize> Tuples<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        let (a, b) = self.two(x, x);
        let ((c, _), d) = (self.last(a, b), self.two(b, a));
        let (e, f) = d;
        let x = Concat::<0>(c, Add(e, f));
        self.join(ReLU(x))
    }
}

#[module]
type Tuples3 = Tuples<3>;

#[test]
fn tuples_are_taken_apart_and_weights_shared() {
    assert_eq!(output::<Tuples3>(&[1.0, 2.0, 3.0]).len(), 3);
}

#[module]
struct Images<const C: usize> {
    fc: Linear<{ C * 4 }, C>,
}

#[module]
impl<const C: usize> Images<C> {
    fn forward(&self, x: T![C, 4, 4]) -> T![C] {
        self.fc(Flatten(MaxPool2D::<2>(x)))
    }
}

sequential! { Typenum: [2] -> [3] = LinearOf<U2, Prod<U3, U4>>, Linear<12, 3> }

#[module]
type Images2 = Images<2>;

#[test]
fn layers_are_called_by_their_types() {
    assert_eq!(output::<Images2>(&[1.0; 32]).len(), 2);
    assert_eq!(output::<Typenum>(&[1.0; 2]).len(), 3);
}

#[module]
struct Gpt<const S: usize, const D: usize, const V: usize> {
    tokens: Embedding<V, D>,
    blocks: Repeat<Residual<Block<D>>, 2>,
    norm: LayerNorm<D, 1e-6>,
    #[tied = "tokens.weight"]
    head: TiedLinear<D, V>,
}

#[module]
impl<const S: usize, const D: usize, const V: usize> Gpt<S, D, V> {
    fn forward(&self, ids: Ids<T![..S]>) -> T![..S, V] {
        self.head(self.norm(self.blocks(self.tokens(ids))))
    }
}

#[module]
struct Block<const D: usize> {
    up: Linear<D, { 4 * D }>,
    #[init(Zero)]
    down: Linear<{ 4 * D }, D>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![..8, D]) -> T![..8, D] {
        self.down(ReLU(self.up(x)))
    }
}

#[module]
type Tiny = Gpt<8, 4, 11>;

#[test]
fn lengths_may_vary() {
    assert_eq!(output::<Tiny>(&[1, 2, 3]).len(), 33);
    assert_eq!(output::<Tiny>(&[1]).len(), 11);
}

#[module]
struct Lengths<const Q: usize, const K: usize, const D: usize> {
    queries: Linear<D, D>,
    keys: Linear<D, { 2 * D }>,
}

#[module]
impl<const Q: usize, const K: usize, const D: usize> Lengths<Q, K, D> {
    fn forward(&self, q: T![..Q, D], k: T![..K @ 1, D]) -> (T![..Q, D], T![..K @ 1, { 2 * D }]) {
        (self.queries(q), self.keys(k))
    }
}

#[module]
type TwoLengths = Lengths<5, 7, 2>;

#[test]
fn a_module_can_have_two_lengths() {
    let mut model = Model::<TwoLengths>::init(1, 1).expect("a model of this size fits");
    let (q, k) = model.forward((&[0.0; 3 * 2], &[0.0; 6 * 2])).expect("both lengths are within their bounds");
    assert_eq!((q.len(), k.len()), (3 * 2, 6 * 4));
    assert!(model.forward((&[0.0; 6 * 2], &[0.0; 6 * 2])).is_err(), "six queries are more than five");
}

#[module(rename_all = "camelCase")]
struct Named<const D: usize> {
    #[fused("self.query" = D, key = 2)]
    query_and_key: Linear<D, { D + 2 }>,
    #[rename = ""]
    down: Linear<{ D + 2 }, D>,
    #[rename = "LayerNorm"]
    r#final: LayerNorm<D>,
}

#[module]
impl<const D: usize> Named<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        self.r#final(self.down(self.query_and_key(x)))
    }
}

#[module]
type Named4 = Named<4>;

nn::checkpoint!("tests/headers/named.json" as Named4, dtype = F32);
nn::checkpoint!("tests/headers/named.json" as Named4, only = "self", extra = allow);

#[test]
fn names_may_be_another_library_s() {
    assert_eq!(output::<Named4>(&[1.0; 4]).len(), 4);
}
