use std::marker::PhantomData;
use std::ops::Range;

use super::isa::Available;
use super::math::{self, sigmoid};
use super::par::{self, GRAIN};
use super::simd::{Outlined, Simd, kernels};
use super::{
    Real,
    kernels::{Kernels, given},
};
use crate::ops::{Binary, Unary};

kernels! {
    fn binary<E>(f: Binary, a: &[E], b: &[E], y: &mut [E]);
    fn columns_in_place<E>(f: Unary, row: usize, columns: Range<usize>, y: &mut [E]);
    fn slope_in_place<E>(f: Unary, dy: &[E], z: &mut [E]);
    fn scaled<E>(scale: f64, x: &[E], y: &mut [E]);
    fn unary<E>(f: Unary, x: &[E], y: &mut [E]);
    fn unary_slope<E>(f: Unary, known: &[E], dy: &[E], dx: &mut [E]);
    fn divisor_slope<E>(a: &[E], b: &[E], dy: &[E], db: &mut [E]);
    fn add_assign<E>(x: &[E], y: &mut [E]);
    fn mul_assign<E>(x: &[E], y: &mut [E]);
    fn all_finite<E>(x: &[E]) -> bool;
}

/// √(2/π), and the weight of the cube, in the tanh form of GELU.
const GELU_TANH: (f64, f64) = (0.797_884_560_802_865_4, 0.044_715);

/// f(x).
#[inline(always)]
fn value<S: Simd, E: Real>(f: Unary, x: E) -> E {
    match f {
        Unary::Identity => x,
        // Not `max`, which would lose a NaN.
        Unary::Relu => {
            if x <= E::ZERO {
                E::ZERO
            } else {
                x
            }
        }
        Unary::Tanh => math::tanh::<S, E>(x),
        Unary::Sigmoid => sigmoid::<S, E>(x),
        Unary::Silu => x * sigmoid::<S, E>(x),
        // x·Φ(x), where Φ(x) = 1 − Φ(−x) on the positive side.
        Unary::Gelu => {
            let positive = if x > E::ZERO { x } else { E::ZERO };
            (-x.abs()).mul_add::<S>(math::normal_tail::<S, E>(x), positive)
        }
        // ½·(1 + tanh u) is the sigmoid of 2u.
        Unary::GeluTanh => x * sigmoid::<S, E>(gelu_tanh_inner::<S, E>(x)),
        Unary::Mish => x * mish_tanh::<S, E>(x).0,
        Unary::Elu => {
            if x > E::ZERO {
                x
            } else {
                math::exp_m1::<S, E>(x)
            }
        }
        Unary::Affine { scale, shift } => x.mul_add::<S>(E::lit(scale), E::lit(shift)),
        Unary::Divide { by } => x / E::lit(by),
        Unary::Reciprocal { c } => E::lit(c) / x,
    }
}

/// f′(x), given y = f(x) where [`Unary::needs_y`] says so and x where [`Unary::needs_x`] does.
#[inline(always)]
fn slope<S: Simd, E: Real>(f: Unary, x: E, y: E) -> E {
    let one = E::ONE;
    match f {
        Unary::Identity => one,
        Unary::Relu => {
            if y > E::ZERO {
                one
            } else if y <= E::ZERO {
                E::ZERO
            } else {
                y
            }
        }
        Unary::Tanh => one - y * y,
        Unary::Sigmoid => y * (one - y),
        Unary::Silu => {
            let s = sigmoid::<S, E>(x);
            s * (one + x * (one - s))
        }
        Unary::Gelu => x.mul_add::<S>(math::normal_pdf::<S, E>(x), math::normal_cdf::<S, E>(x)),
        Unary::GeluTanh => {
            let s = sigmoid::<S, E>(gelu_tanh_inner::<S, E>(x));
            let (root, cube) = (2.0 * GELU_TANH.0, 6.0 * GELU_TANH.0 * GELU_TANH.1);
            let inner = (x * x).mul_add::<S>(E::lit(cube), E::lit(root));
            // s·(1 − s) is 0 far out, where x·inner may be infinite: their product must be 0, not NaN.
            let tail = s * (one - s);
            let bend = if tail > E::ZERO { x * tail * inner } else { x * tail };
            s + bend
        }
        Unary::Mish => {
            let (t, dt) = mish_tanh::<S, E>(x);
            x.mul_add::<S>(dt * sigmoid::<S, E>(x), t)
        }
        Unary::Elu => {
            if x > E::ZERO {
                one
            } else {
                math::exp::<S, E>(x)
            }
        }
        Unary::Affine { scale, .. } => E::lit(scale),
        Unary::Divide { by } => one / E::lit(by),
        Unary::Reciprocal { c } => -E::lit(c) / (x * x),
    }
}

/// f′(x)·dy, given what [`slope`] needs. A quotient's is a quotient too.
#[inline(always)]
fn pulled<S: Simd, E: Real>(f: Unary, x: E, y: E, dy: E) -> E {
    match f {
        Unary::Divide { by } => dy / E::lit(by),
        _ => slope::<S, E>(f, x, y) * dy,
    }
}

/// t = tanh(log(1 + eˣ)) and 1 − t². With w = eˣ(eˣ + 2), t is w / (w + 2).
#[inline(always)]
fn mish_tanh<S: Simd, E: Real>(x: E) -> (E, E) {
    // Beyond 20, t is 1 in double precision.
    let far = x > E::lit(20.0);
    let e = math::exp::<S, E>(if far { E::lit(20.0) } else { x });
    let w = e * (e + E::lit(2.0));
    let r = E::ONE / (w + E::lit(2.0));
    if far { (E::ONE, E::ZERO) } else { (w * r, E::lit(4.0) * (w + E::ONE) * r * r) }
}

/// 2·√(2/π)·(x + 0.044715·x³), of the tanh form of GELU.
#[inline(always)]
fn gelu_tanh_inner<S: Simd, E: Real>(x: E) -> E {
    let (root, cube) = (2.0 * GELU_TANH.0, 2.0 * GELU_TANH.0 * GELU_TANH.1);
    x * (x * x).mul_add::<S>(E::lit(cube), E::lit(root))
}

/// Calls the macro with each function as a constant, so that each loop has one function in it.
macro_rules! for_each_unary {
    ($f:expr, |$g:ident| $body:expr) => {
        match $f {
            Unary::Identity => {
                let $g = Unary::Identity;
                $body
            }
            Unary::Relu => {
                let $g = Unary::Relu;
                $body
            }
            Unary::Tanh => {
                let $g = Unary::Tanh;
                $body
            }
            Unary::Sigmoid => {
                let $g = Unary::Sigmoid;
                $body
            }
            Unary::Silu => {
                let $g = Unary::Silu;
                $body
            }
            Unary::Gelu => {
                let $g = Unary::Gelu;
                $body
            }
            Unary::GeluTanh => {
                let $g = Unary::GeluTanh;
                $body
            }
            Unary::Mish => {
                let $g = Unary::Mish;
                $body
            }
            Unary::Elu => {
                let $g = Unary::Elu;
                $body
            }
            Unary::Affine { scale, shift } => {
                let $g = Unary::Affine { scale, shift };
                $body
            }
            Unary::Divide { by } => {
                let $g = Unary::Divide { by };
                $body
            }
            Unary::Reciprocal { c } => {
                let $g = Unary::Reciprocal { c };
                $body
            }
        }
    };
}

/// Elements that are taken at once. The registers' constants are then shared by some vectors, and what is left over at
/// the end is computed as a block too.
const BLOCK: usize = 16;

/// Keeps the compiler from taking several turns of a loop at once. Where an instruction set has gathers and scatters, it
/// would else make vectors of the first elements of many blocks, of their second ones and so on: ten times as slow.
#[inline(always)]
fn one_by_one() {
    #[cfg(not(miri))]
    // SAFETY: there are no instructions.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// y = f(x), y = f(y, x) or y = f(x, z) for each element. This is no function of a closure, which would not be inlined: `f`
/// is large before it is known which function it is.
macro_rules! blockwise {
    ($y:ident = |$a:ident in $x:ident| $f:expr) => {
        let ((x, x_rest), (y, y_rest)) = ($x.as_chunks::<BLOCK>(), $y.as_chunks_mut::<BLOCK>());
        for (y, x) in y.iter_mut().zip(x) {
            one_by_one();
            for (y, &$a) in y.iter_mut().zip(x) {
                *y = $f;
            }
        }
        if !y_rest.is_empty() {
            let mut block = filled(x_rest);
            for y in &mut block {
                let $a = *y;
                *y = $f;
            }
            y_rest.copy_from_slice(&block[..y_rest.len()]);
        }
    };
    ($y:ident = |$a:ident, $b:ident in $x:ident| $f:expr) => {
        let ((x, x_rest), (y, y_rest)) = ($x.as_chunks::<BLOCK>(), $y.as_chunks_mut::<BLOCK>());
        for (y, x) in y.iter_mut().zip(x) {
            one_by_one();
            for (y, &$b) in y.iter_mut().zip(x) {
                let $a = *y;
                *y = $f;
            }
        }
        if !y_rest.is_empty() {
            let (mut block, x) = (filled(y_rest), filled(x_rest));
            for (y, $b) in block.iter_mut().zip(x) {
                let $a = *y;
                *y = $f;
            }
            y_rest.copy_from_slice(&block[..y_rest.len()]);
        }
    };
    ($y:ident = |$a:ident in $x:ident, $b:ident in $z:ident| $f:expr) => {
        let ((x, x_rest), (z, z_rest)) = ($x.as_chunks::<BLOCK>(), $z.as_chunks::<BLOCK>());
        let (y, y_rest) = $y.as_chunks_mut::<BLOCK>();
        for ((y, x), z) in y.iter_mut().zip(x).zip(z) {
            one_by_one();
            for ((y, &$a), &$b) in y.iter_mut().zip(x).zip(z) {
                *y = $f;
            }
        }
        if !y_rest.is_empty() {
            let (mut block, z) = (filled(x_rest), filled(z_rest));
            for (y, $b) in block.iter_mut().zip(z) {
                let $a = *y;
                *y = $f;
            }
            y_rest.copy_from_slice(&block[..y_rest.len()]);
        }
    };
}

/// A block that starts with these values.
#[inline(always)]
fn filled<E: Real>(x: &[E]) -> [E; BLOCK] {
    let mut block = [E::ZERO; BLOCK];
    block[..x.len()].copy_from_slice(x);
    block
}

#[inline(always)]
fn unary<S: Simd, E: Real>(f: Unary, x: &[E], y: &mut [E]) {
    for_each_unary!(f, |g| {
        blockwise!(y = |x in x| value::<S, E>(g, x));
    });
}

/// y = f(y), for kernels that apply it to what they have just written.
#[inline(always)]
pub(crate) fn activate<S: Simd, E: Real>(f: Unary, y: &mut [E]) {
    if f != Unary::Identity {
        // SAFETY: `S` is the instruction set this runs on, as kernels are called through `run` alone.
        unsafe { S::outline(InPlace::<S, E> { f, y, isa: PhantomData }) };
    }
}

struct InPlace<'a, S, E> {
    f: Unary,
    y: &'a mut [E],
    isa: PhantomData<S>,
}

impl<S: Simd, E: Real> Outlined for InPlace<'_, S, E> {
    #[inline(always)]
    fn run(self) {
        for_each_unary!(self.f, |g| {
            for y in self.y {
                *y = value::<S, E>(g, *y);
            }
        });
    }
}

#[inline(always)]
fn columns_in_place<S: Simd, E: Real>(f: Unary, row: usize, columns: Range<usize>, y: &mut [E]) {
    if columns == (0..row) {
        return activate::<S, E>(f, y);
    }
    for y in y.chunks_exact_mut(row) {
        activate::<S, E>(f, &mut y[columns.clone()]);
    }
}

/// y = f(y) of some columns of whole rows of `row` values, on this thread.
pub(crate) fn activate_columns<E: Real>(
    isa: Available,
    f: Unary,
    row: usize,
    columns: Range<usize>,
    y: &mut [E],
) {
    if f != Unary::Identity {
        run::columns_in_place(isa, f, row, columns, y);
    }
}

/// z = f′(z)·dy.
#[inline(always)]
fn slope_in_place<S: Simd, E: Real>(f: Unary, dy: &[E], z: &mut [E]) {
    for_each_unary!(f, |g| {
        blockwise!(z = |z, dy in dy| pulled::<S, E>(g, z, z, dy));
    });
}

/// dx = f′·dy, for functions whose derivative is one of `known`: x or y.
#[inline(always)]
fn unary_slope<S: Simd, E: Real>(f: Unary, known: &[E], dy: &[E], dx: &mut [E]) {
    for_each_unary!(f, |g| {
        blockwise!(dx = |known in known, dy in dy| pulled::<S, E>(g, known, known, dy));
    });
}

#[inline(always)]
fn scaled<S: Simd, E: Real>(scale: f64, x: &[E], y: &mut [E]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = E::lit(scale) * x;
    }
}

#[inline(always)]
fn binary<S: Simd, E: Real>(f: Binary, a: &[E], b: &[E], y: &mut [E]) {
    macro_rules! each {
        ($op:tt) => {
            for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
                *y = a $op b;
            }
        };
    }
    match f {
        Binary::Add => each!(+),
        Binary::Sub => each!(-),
        Binary::Mul => each!(*),
        Binary::Div => each!(/),
    }
}

/// db = −a·dy / b².
#[inline(always)]
fn divisor_slope<S: Simd, E: Real>(a: &[E], b: &[E], dy: &[E], db: &mut [E]) {
    for (((db, &a), &b), &dy) in db.iter_mut().zip(a).zip(b).zip(dy) {
        *db = -(dy * (a / b)) / b;
    }
}

#[inline(always)]
fn add_assign<S: Simd, E: Real>(x: &[E], y: &mut [E]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

#[inline(always)]
fn mul_assign<S: Simd, E: Real>(x: &[E], y: &mut [E]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = *y * x;
    }
}

/// Whether none has all its exponent's bits set: then x − x is 0.
#[inline(always)]
fn all_finite<S: Simd, E: Real>(x: &[E]) -> bool {
    // In blocks, so that the inner loop has no way out and is vectorised.
    x.chunks(1024).all(|block| block.iter().fold(true, |all, v| all & v.is_finite()))
}

impl<E: Real> Kernels<E> {
    pub(crate) fn two_operands(&self, f: Binary, a: &[E], b: &[E], y: &mut [E]) {
        let isa = self.isa;
        par::split(y.len(), GRAIN, (a, b, y), &|_, (a, b, y)| run::binary(isa, f, a, b, y));
    }

    /// z = f′(z)·dy, for functions whose derivative needs the input.
    pub(crate) fn slope_in_place(&self, f: Unary, dy: &[E], z: &mut [E]) {
        let isa = self.isa;
        par::split(z.len(), GRAIN, (dy, z), &|_, (dy, z)| run::slope_in_place(isa, f, dy, z));
    }

    pub(crate) fn scale_into(&self, scale: f64, x: &[E], y: &mut [E]) {
        let isa = self.isa;
        par::split(y.len(), GRAIN, (x, y), &|_, (x, y)| run::scaled(isa, scale, x, y));
    }
}

/// On this thread alone, for kernels that have shared out the work already.
impl<E: Real> Kernels<E> {
    pub(crate) fn unary_here(&self, f: Unary, x: &[E], y: &mut [E]) {
        run::unary(self.isa, f, x, y);
    }

    /// dx = f′·dy, given x and y = f(x).
    pub(crate) fn slope_here(&self, f: Unary, x: &[E], y: &[E], dy: &[E], dx: &mut [E]) {
        run::unary_slope(self.isa, f, if f.needs_y() { y } else { x }, dy, dx);
    }

    pub(crate) fn product_here(&self, a: &[E], b: &[E], y: &mut [E]) {
        run::binary(self.isa, Binary::Mul, a, b, y);
    }

    /// y = x·y.
    pub(crate) fn mul_assign_here(&self, x: &[E], y: &mut [E]) {
        run::mul_assign(self.isa, x, y);
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn unary(&self, f: Unary, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), y.len(), "unary: x and y differ in length");
        let isa = self.isa;
        par::split(y.len(), GRAIN, (x, y), &|_, (x, y)| run::unary(isa, f, x, y));
    }

    pub(crate) fn unary_vjp(&self, f: Unary, x: &[E], y: &[E], dy: &[E], dx: &mut [E]) {
        assert_eq!(dy.len(), dx.len(), "unary_vjp: dy and dx differ in length");
        let known = match (f.needs_x(), f.needs_y()) {
            (true, _) => x,
            (_, true) => y,
            _ => dy,
        };
        assert_eq!(known.len(), dx.len(), "unary_vjp: the operand that {f:?} needs and dx differ in length");
        let isa = self.isa;
        par::split(dx.len(), GRAIN, (known, dy, dx), &|_, (known, dy, dx)| {
            run::unary_slope(isa, f, known, dy, dx)
        });
    }

    pub(crate) fn copy_unless(&self, switch: &[E], x: &[E], y: &mut [E]) {
        assert_eq!(switch.len(), 1, "copy_unless: the switch is one value");
        if switch[0] > E::lit(0.5) { self.fill(0.0, y) } else { self.copy(x, y) }
    }

    pub(crate) fn binary(&self, f: Binary, a: &[E], b: &[E], y: &mut [E]) {
        assert_eq!(a.len(), y.len(), "binary: a and y differ in length");
        assert_eq!(b.len(), y.len(), "binary: b and y differ in length");
        self.two_operands(f, a, b, y);
    }

    pub(crate) fn binary_vjp(
        &self,
        f: Binary,
        a: &[E],
        b: &[E],
        dy: &[E],
        da: Option<&mut [E]>,
        db: Option<&mut [E]>,
    ) {
        let operands = matches!(f, Binary::Mul | Binary::Div);
        for (name, operand) in [("a", a), ("b", b)] {
            assert!(
                operand.len() == dy.len() || !operands && given(operand).is_none(),
                "binary_vjp: {name} has {} values and dy has {}",
                operand.len(),
                dy.len()
            );
        }
        if let Some(da) = da {
            assert_eq!(da.len(), dy.len(), "binary_vjp: da and dy differ in length");
            match f {
                Binary::Add | Binary::Sub => self.copy(dy, da),
                Binary::Mul => self.two_operands(Binary::Mul, dy, b, da),
                Binary::Div => self.two_operands(Binary::Div, dy, b, da),
            }
        }
        if let Some(db) = db {
            assert_eq!(db.len(), dy.len(), "binary_vjp: db and dy differ in length");
            match f {
                Binary::Add => self.copy(dy, db),
                Binary::Sub => self.scale_into(-1.0, dy, db),
                Binary::Mul => self.two_operands(Binary::Mul, dy, a, db),
                Binary::Div => {
                    let isa = self.isa;
                    par::split(db.len(), GRAIN, (a, b, dy, db), &|_, (a, b, dy, db)| {
                        run::divisor_slope(isa, a, b, dy, db)
                    });
                }
            }
        }
    }

    pub(crate) fn add_assign(&self, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), y.len(), "add_assign: x and y differ in length");
        let isa = self.isa;
        par::split(y.len(), GRAIN, (x, y), &|_, (x, y)| run::add_assign(isa, x, y));
    }

    pub(crate) fn fill(&self, value: f64, y: &mut [E]) {
        par::split(y.len(), GRAIN, y, &|_, y| y.fill(E::from_f64(value)));
    }

    pub(crate) fn copy(&self, x: &[E], y: &mut [E]) {
        assert_eq!(x.len(), y.len(), "copy: x and y differ in length");
        par::split(y.len(), GRAIN, (x, y), &|_, (x, y)| y.copy_from_slice(x));
    }

    pub(crate) fn all_finite(&self, x: &[E]) -> bool {
        run::all_finite(self.isa, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    const ALL: [Unary; 12] = [
        Unary::Identity,
        Unary::Relu,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Silu,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Mish,
        Unary::Elu,
        Unary::Affine { scale: -1.5, shift: 0.25 },
        Unary::Divide { by: 3.0 },
        Unary::Reciprocal { c: 2.0 },
    ];

    fn reference(f: Unary, x: f64) -> f64 {
        // erf by quadrature, good to 1e-14 for the arguments here.
        let erf = |x: f64| {
            let n = 2000;
            let h = x / f64::from(n);
            let weight = |i| if i == 0 || i == n { 1.0 } else { 2.0 + 2.0 * f64::from(i % 2) };
            let sum: f64 = (0..=n).map(|i| weight(i) * (-(f64::from(i) * h).powi(2)).exp()).sum();
            sum * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
        };
        match f {
            Unary::Identity => x,
            Unary::Relu => x.max(0.0),
            Unary::Tanh => x.tanh(),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Silu => x / (1.0 + (-x).exp()),
            Unary::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
            Unary::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Unary::Mish => x * x.exp().ln_1p().tanh(),
            Unary::Elu => {
                if x > 0.0 {
                    x
                } else {
                    x.exp_m1()
                }
            }
            Unary::Affine { scale, shift } => scale * x + shift,
            Unary::Divide { by } => x / by,
            Unary::Reciprocal { c } => c / x,
        }
    }

    fn inputs() -> Vec<f64> {
        let n = if cfg!(miri) { 5 } else { 67 };
        random(1, n).iter().map(|x| f64::from((x * 5.0) as f32)).collect()
    }

    fn forward<E: Real>(tolerance: f64) {
        let x = inputs();
        for (device, f) in devices::<E>().into_iter().flat_map(|d| ALL.map(|f| (d, f))) {
            let mut y = vec![E::ZERO; x.len()];
            device.unary(f, &reals(&x), &mut y);
            let expected: Vec<f64> = x.iter().map(|&x| reference(f, x)).collect();
            assert_close(&y, &expected, tolerance, &format!("{device:?} {f:?}"));
        }
    }

    #[test]
    fn functions_are_those_of_their_formulas() {
        forward::<f32>(3e-7);
        forward::<f64>(1e-13);
    }

    #[test]
    fn a_quotient_and_its_gradient_are_rounded_once() {
        fn check<E: Real>() {
            let x: Vec<E> = reals(&random(1, 67));
            for (device, by) in
                devices::<E>().into_iter().flat_map(|d| [3.0, 0.1, -7.0, 1e30].map(|by| (d, by)))
            {
                let f = Unary::Divide { by };
                let (mut y, mut dx) = (x.clone(), x.clone());
                device.unary(f, &x, &mut y);
                device.unary_vjp(f, &[], &[], &x, &mut dx);
                let expected: Vec<E> = x.iter().map(|&x| x / E::from_f64(by)).collect();
                assert!(y == expected && dx == expected, "{device:?} {by}");
            }
        }
        check::<f32>();
        check::<f64>();
    }

    #[test]
    fn the_two_gelus_differ() {
        let device = devices::<f64>()[0];
        let (mut erf, mut tanh) = ([0.0], [0.0]);
        device.unary(Unary::Gelu, &[2.0], &mut erf);
        device.unary(Unary::GeluTanh, &[2.0], &mut tanh);
        assert!((erf[0] - tanh[0]).abs() > 5e-5);
    }

    #[test]
    fn slopes_match_finite_differences_from_what_they_say_they_need() {
        let x = inputs();
        let dy = random(2, x.len());
        for (device, f) in devices::<f64>().into_iter().flat_map(|d| ALL.map(|f| (d, f))) {
            let mut y = vec![0.0; x.len()];
            device.unary(f, &x, &mut y);
            let mut dx = vec![0.0; x.len()];
            let known_x = if f.needs_x() { &x[..] } else { &[] };
            let known_y = if f.needs_y() { &y[..] } else { &[] };
            device.unary_vjp(f, known_x, known_y, &dy, &mut dx);
            let expected: Vec<f64> = x
                .iter()
                .zip(&dy)
                .map(|(&x, g)| {
                    let step = 1e-6 * x.abs().max(0.1);
                    g * (reference(f, x + step) - reference(f, x - step)) / (2.0 * step)
                })
                .collect();
            assert_close(&dx, &expected, 1e-7, &format!("{device:?} {f:?}"));
            if f.needs_x() {
                let mut z = x.clone();
                device.slope_in_place(f, &dy, &mut z);
                assert_eq!(z, dx);
            }
        }
    }

    fn extremes<E: Real>() {
        let x: Vec<E> = reals(&[1e4, -1e4, 0.0, -0.0, f64::NAN]);
        for (device, f) in devices::<E>().into_iter().flat_map(|d| ALL.map(|f| (d, f))) {
            let (mut y, mut dx) = (vec![E::ZERO; 5], vec![E::ZERO; 5]);
            device.unary(f, &x, &mut y);
            device.unary_vjp(f, &x, &y, &[E::ONE; 5], &mut dx);
            let what = format!("{device:?} {f:?} {y:?} {dx:?}");
            let [y, dx] = [y, dx].map(|v| v.iter().map(|v| v.to_f64()).collect::<Vec<_>>());
            assert!(y[4].is_nan(), "{what}");
            let far = match f {
                Unary::Identity | Unary::Affine { .. } | Unary::Divide { .. } | Unary::Reciprocal { .. } => {
                    continue;
                }
                Unary::Relu | Unary::Silu | Unary::Gelu | Unary::GeluTanh | Unary::Mish => {
                    (1e4, 0.0, 1.0, 0.0)
                }
                Unary::Tanh => (1.0, -1.0, 0.0, 0.0),
                Unary::Sigmoid => (1.0, 0.0, 0.0, 0.0),
                Unary::Elu => (1e4, -1.0, 1.0, 0.0),
            };
            assert_eq!((y[0], y[1], dx[0], dx[1]), far, "{what}");
            let at_zero = if f == Unary::Sigmoid { 0.5 } else { 0.0 };
            assert_eq!((y[2], y[3]), (at_zero, at_zero), "{what}");
            assert!(dx[4].is_nan(), "{what}");
        }
    }

    #[test]
    fn bounded_and_linear_functions_stay_right_far_out_and_pass_nan_on() {
        extremes::<f32>();
        extremes::<f64>();
    }

    #[test]
    fn binary_operations_and_their_gradients() {
        for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div] {
            for device in devices::<f64>() {
                let (a, dy) = (random(1, 37), random(3, 37));
                let b: Vec<f64> = random(2, 37).iter().map(|b| b + 3.0).collect();
                let value = |a: &[f64], b: &[f64]| {
                    let mut y = vec![0.0; 37];
                    device.binary(f, a, b, &mut y);
                    y
                };
                let loss =
                    |a: &[f64], b: &[f64]| value(a, b).iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
                let expected: Vec<f64> = a
                    .iter()
                    .zip(&b)
                    .map(|(a, b)| match f {
                        Binary::Add => a + b,
                        Binary::Sub => a - b,
                        Binary::Mul => a * b,
                        Binary::Div => a / b,
                    })
                    .collect();
                assert_eq!(value(&a, &b), expected);
                let (mut da, mut db) = (vec![0.0; 37], vec![0.0; 37]);
                let needed = matches!(f, Binary::Mul | Binary::Div);
                let (ga, gb) = if needed { (&a[..], &b[..]) } else { (&[][..], &[][..]) };
                device.binary_vjp(f, ga, gb, &dy, Some(&mut da), Some(&mut db));
                assert_close(&da, &gradient(&a, |a| loss(a, &b)), 1e-8, "da");
                assert_close(&db, &gradient(&b, |b| loss(&a, b)), 1e-8, "db");
            }
        }
    }

    #[test]
    fn fill_copy_add_and_finiteness() {
        for device in devices::<f32>() {
            let (mut y, x) = (vec![0.0; 2100], vec![2.0; 2100]);
            device.fill(1.5, &mut y);
            device.add_assign(&x, &mut y);
            assert!(y.iter().all(|&y| y == 3.5) && device.all_finite(&y));
            device.copy(&x, &mut y);
            assert_eq!(x, y);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                y[2050] = bad;
                assert!(!device.all_finite(&y));
            }
            assert!(device.all_finite(&[]));
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let x: Vec<f32> = reals(&random(1, 100_001));
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                ALL.map(|f| {
                    let (mut y, mut dx) = (x.clone(), x.clone());
                    device.unary(f, &x, &mut y);
                    device.unary_vjp(f, &x, &y, &x, &mut dx);
                    (y, dx)
                })
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    #[should_panic(expected = "the operand that Tanh needs and dx differ in length")]
    fn a_missing_operand_is_refused() {
        devices::<f32>()[0].unary_vjp(Unary::Tanh, &[1.0], &[], &[1.0], &mut [0.0]);
    }
}
