//! What parameters start as: distributions by their bounds and moments, and who decides.

use nn::*;

/// Mean, standard deviation, and the largest size.
fn moments(values: &[f64]) -> (f64, f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt(), values.iter().fold(0.0, |m: f64, v| m.max(v.abs())))
}

/// The standard deviation is `std`, the mean zero; bounded by `bound` and close to it, if there is one. Within
/// five standard errors, for a fixed seed.
#[track_caller]
fn assert_drawn(values: &[f64], std: f64, bound: Option<f64>) {
    let (mean, found, most) = moments(values);
    let n = values.len() as f64;
    assert!(mean.abs() < 5.0 * std / n.sqrt(), "the mean is {mean}");
    assert!((found / std - 1.0).abs() < 5.0 / (2.0 * n).sqrt(), "the deviation is {found} and not {std}");
    match bound {
        Some(bound) => {
            assert!(most <= bound && most > 0.99 * bound, "the largest is {most}, the bound {bound}")
        }
        None => assert!(most > 3.0 * std, "the largest is {most}: no normal distribution"),
    }
    // Neither in order nor repeated.
    let lag: f64 = values.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / (n * std * std);
    assert!(lag.abs() < 5.0 / n.sqrt(), "neighbours correlate: {lag}");
}

fn uniform(values: &[f64], bound: f64) {
    assert_drawn(values, bound / 3f64.sqrt(), Some(bound));
}

fn f64s<M: Declared>(weights: &Weights<M, Cpu<f64>>, path: &str) -> Vec<f64> {
    weights.get(path).unwrap()
}

sequential! {
    Net: [2, 8, 8] -> [40] =
        conv: Conv2D<2, 128, 3, 1, 1, 1, 2>, norm: BatchNorm2D<128>, Flatten, fc: Linear<8192, 40>
}

#[module]
struct Words {
    tokens: Embedding<300, 50>,
    norm: LayerNorm<50>,
    head: LinearNoBias<50, 300>,
}
#[module]
impl Words {
    fn forward(&self, ids: Ids<T![4]>) -> T![4, 300] {
        self.head(self.norm(self.tokens(ids)))
    }
}

fn weights<M: Declared>(seed: u64) -> Weights<M, Cpu<f64>> {
    Weights::new(Cpu::default(), seed).unwrap()
}

fn weights_with<M: Declared, I: Initialiser>(seed: u64) -> Weights<M, Cpu<f64>> {
    Weights::init_with::<I>(Cpu::default(), seed).unwrap()
}

#[test]
fn layers_start_as_pytorch_s() {
    let net = weights::<Net>(1);
    // fan_in: one channel of each group's two, 3×3.
    uniform(&f64s(&net, "conv.weight"), 1.0 / 3.0);
    uniform(&f64s(&net, "fc.weight"), 1.0 / 8192f64.sqrt());
    let bias = f64s(&net, "fc.bias");
    let bound = 1.0 / 8192f64.sqrt();
    assert!(bias.iter().all(|b| b.abs() <= bound) && bias.iter().any(|b| b.abs() > 0.8 * bound));
    let bias = f64s(&net, "conv.bias");
    assert!(bias.iter().all(|b| b.abs() <= 1.0 / 3.0) && bias.iter().any(|b| b.abs() > 0.3));
    assert_eq!(f64s(&net, "norm.weight"), [1.0; 128]);
    assert_eq!(f64s(&net, "norm.bias"), [0.0; 128]);
    assert_eq!(f64s(&net, "norm.running_mean"), [0.0; 128]);
    assert_eq!(f64s(&net, "norm.running_var"), [1.0; 128]);
    let words = weights::<Words>(2);
    assert_drawn(&f64s(&words, "tokens.weight"), 1.0, None);
    uniform(&f64s(&words, "head.weight"), 1.0 / 50f64.sqrt());
}

#[test]
fn an_initialiser_replaces_weights_and_clears_biases() {
    fn check<I: Initialiser>(drawn: impl Fn(&[f64], f64, f64)) {
        let net = weights_with::<Net, I>(3);
        // fan_in and fan_out as PyTorch counts them: of the weight's own shape [128, 1, 3, 3].
        drawn(&f64s(&net, "conv.weight"), 9.0, 128.0 * 9.0);
        drawn(&f64s(&net, "fc.weight"), 8192.0, 40.0);
        assert_eq!(f64s(&net, "fc.bias"), [0.0; 40]);
        assert_eq!(f64s(&net, "conv.bias"), [0.0; 128]);
        assert_eq!(f64s(&net, "norm.weight"), [1.0; 128]);
        assert_eq!(f64s(&net, "norm.running_var"), [1.0; 128]);
    }
    check::<Kaiming>(|w, fan_in, _| uniform(w, (6.0 / fan_in).sqrt()));
    check::<KaimingNormal>(|w, fan_in, _| assert_drawn(w, (2.0 / fan_in).sqrt(), None));
    check::<Xavier>(|w, fan_in, fan_out| uniform(w, (6.0 / (fan_in + fan_out)).sqrt()));
    check::<XavierNormal>(|w, fan_in, fan_out| assert_drawn(w, (2.0 / (fan_in + fan_out)).sqrt(), None));
    check::<Normal02>(|w, _, _| assert_drawn(w, 0.02, None));
    // Cut off at two of its standard deviations, and scaled back to 1/fan_in.
    check::<TruncatedNormal>(|w, fan_in, _| {
        assert_drawn(w, fan_in.sqrt().recip(), Some(2.0 / fan_in.sqrt() / 0.879_625_661_034_239_8));
    });
}

#[test]
fn zero_is_everything_but_the_running_variance() {
    let net = weights_with::<Net, Zero>(3);
    for path in ["conv.weight", "conv.bias", "norm.weight", "norm.bias", "fc.weight", "fc.bias"] {
        assert!(f64s(&net, path).iter().all(|v| *v == 0.0), "{path}");
    }
    assert_eq!(f64s(&net, "norm.running_var"), [1.0; 128]);
}

sequential! {
    Square: [24] -> [24] = Linear<24, 24>
}
sequential! {
    Wide: [40] -> [24] = Linear<40, 24>
}
sequential! {
    Tall: [24] -> [40] = Linear<24, 40>
}
sequential! {
    Kernel: [4, 3, 3] -> [6, 1, 1] = Conv2D<4, 6, 3>
}

/// The shorter side's vectors are orthonormal; and drawn anew for each seed.
fn orthogonal<M: Declared>(rows: usize, cols: usize) {
    let q = f64s(&weights_with::<M, Orthogonal>(7), "0.weight");
    assert_ne!(q, f64s(&weights_with::<M, Orthogonal>(8), "0.weight"));
    let at = |r: usize, c: usize| q[r * cols + c];
    let (count, len) = (rows.min(cols), rows.max(cols));
    for a in 0..count {
        for b in 0..count {
            let dot = |i| if rows <= cols { at(a, i) * at(b, i) } else { at(i, a) * at(i, b) };
            let dot: f64 = (0..len).map(dot).sum();
            let expected = if a == b { 1.0 } else { 0.0 };
            assert!((dot - expected).abs() < 1e-13, "{a}·{b} is {dot}");
        }
    }
}

#[test]
fn orthogonal_matrices_are() {
    orthogonal::<Square>(24, 24);
    orthogonal::<Wide>(24, 40);
    orthogonal::<Tall>(40, 24);
    orthogonal::<Kernel>(6, 36);
}

#[module]
struct Inner {
    #[init(Zero)]
    last: Linear<20, 20>,
    norm: LayerNorm<20>,
    free: Linear<20, 20>,
}
#[module]
impl Inner {
    fn forward(&self, x: T![20]) -> T![20] {
        self.last(self.norm(self.free(x)))
    }
}

#[module]
struct Outer {
    #[init(Xavier)]
    a: Inner,
    b: Inner,
    #[init(Zero)]
    norm: LayerNorm<20>,
}
#[module]
impl Outer {
    fn forward(&self, x: T![20]) -> T![20] {
        self.norm(x + self.b(self.a(x)))
    }
}

#[test]
fn the_innermost_choice_wins() {
    let (pytorch, xavier, kaiming) = (1.0 / 20f64.sqrt(), (6.0 / 40f64).sqrt(), (6.0 / 20f64).sqrt());
    let largest = |w: &Weights<Outer, Cpu<f64>>, path: &str| moments(&f64s(w, path)).2;
    let near = |found: f64, bound: f64| found <= bound && found > 0.9 * bound;
    let plain = weights::<Outer>(1);
    assert_eq!(largest(&plain, "a.last.weight"), 0.0);
    assert_eq!(largest(&plain, "b.last.weight"), 0.0);
    assert!(near(largest(&plain, "a.free.weight"), xavier));
    assert_eq!(largest(&plain, "a.free.bias"), 0.0);
    assert!(near(largest(&plain, "b.free.weight"), pytorch));
    assert!(largest(&plain, "b.free.bias") > 0.0);
    assert_eq!(f64s(&plain, "a.norm.weight"), [1.0; 20]);
    assert_eq!(f64s(&plain, "norm.weight"), [0.0; 20], "zero is for gains, too");
    let chosen = weights_with::<Outer, Kaiming>(1);
    assert_eq!(largest(&chosen, "b.last.weight"), 0.0);
    assert!(near(largest(&chosen, "a.free.weight"), xavier));
    assert!(near(largest(&chosen, "b.free.weight"), kaiming));
    assert_eq!(largest(&chosen, "b.free.bias"), 0.0);
    assert_eq!(f64s(&chosen, "b.norm.weight"), [1.0; 20]);
    assert_eq!(f64s(&chosen, "norm.weight"), [0.0; 20]);
}

#[module]
struct Offset {
    mark: Param<T![20], Normal02>,
    place: Param<T![20]>,
    #[init(Xavier)]
    grid: Param<T![20, 20], Normal02>,
}
#[module]
impl Offset {
    fn forward(&self, x: T![20], rows: T![20, 20]) -> (T![20], T![20, 20]) {
        (x + self.mark + self.place, rows + self.grid)
    }
}

#[module]
struct Marked {
    offset: Offset,
    fc: Linear<20, 20>,
}
#[module]
impl Marked {
    fn forward(&self, x: T![20], rows: T![20, 20]) -> (T![20], T![20, 20]) {
        let (y, rows) = self.offset(x, rows);
        (y, self.fc(rows))
    }
}

#[test]
fn a_parameter_that_says_how_it_starts_does_so() {
    let chosen = weights_with::<Marked, Kaiming>(1);
    let plain = weights::<Marked>(1);
    for path in ["offset.mark", "offset.place"] {
        assert_eq!(f64s(&chosen, path), f64s(&plain, path), "{path}");
    }
    assert_eq!(f64s(&chosen, "offset.place"), [0.0; 20]);
    let (_, _, most) = moments(&f64s(&chosen, "offset.mark"));
    assert!(most > 0.0 && most < 0.1, "{most}");
    // An attribute is nearer than what the type says; a model's initialiser is not.
    uniform(&f64s(&chosen, "offset.grid"), (6.0 / 40f64).sqrt());
    assert!(moments(&f64s(&chosen, "fc.weight")).2 > 0.9 * (6.0 / 20f64).sqrt());
}

#[test]
fn equal_layers_start_differently_and_the_same_everywhere() {
    let net = weights::<Outer>(1);
    assert_ne!(f64s(&net, "a.free.weight"), f64s(&net, "b.free.weight"));
    // The path decides, and not what else is in the model; single precision is the same, rounded.
    let single = Weights::<Outer, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    let rounded: Vec<f32> = f64s(&net, "b.free.weight").iter().map(|v| *v as f32).collect();
    assert_eq!(single.get("b.free.weight").unwrap(), rounded);
    let [square, wide] = [f64s(&weights::<Square>(5), "0.bias"), f64s(&weights::<Wide>(5), "0.bias")];
    for (a, b) in square.iter().zip(wide) {
        assert!((a * 24f64.sqrt() - b * 40f64.sqrt()).abs() < 1e-14);
    }
}
