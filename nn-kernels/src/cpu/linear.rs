use super::elementwise::{slope, value};
use super::simd::{Simd, dispatch};
use super::{Cpu, Real};
use crate::ops::{Linear, LinearSpec, Unary};

#[inline(always)]
fn weight(s: &LinearSpec, i: usize, o: usize) -> usize {
    if s.transposed { o * s.inputs + i } else { i * s.outputs + o }
}

#[inline(always)]
fn forward<S: Simd, E: Real>(s: LinearSpec, act: Unary, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
    for r in 0..s.rows {
        for o in 0..s.outputs {
            let mut sum = E::ZERO;
            for i in 0..s.inputs {
                sum = x[r * s.inputs + i].mul_add::<S>(w[weight(&s, i, o)], sum);
            }
            y[r * s.outputs + o] = value::<S, E>(act, sum + b.map_or(E::ZERO, |b| b[o]));
        }
    }
}

#[inline(always)]
fn slopes<S: Simd, E: Real>(f: Unary, y: &[E], dy: &[E], dz: &mut [E]) {
    for i in 0..dz.len() {
        let y = if y.is_empty() { dz[i] } else { y[i] };
        dz[i] = slope::<S, E>(f, dz[i], y) * dy[i];
    }
}

#[inline(always)]
fn backward<S: Simd, E: Real>(s: LinearSpec, x: &[E], w: &[E], dz: &[E], dx: Option<&mut [E]>, dw: Option<&mut [E]>) {
    if let Some(dx) = dx {
        for r in 0..s.rows {
            for i in 0..s.inputs {
                let mut sum = E::ZERO;
                for o in 0..s.outputs {
                    sum += dz[r * s.outputs + o] * w[weight(&s, i, o)];
                }
                dx[r * s.inputs + i] = sum;
            }
        }
    }
    if let Some(dw) = dw {
        for i in 0..s.inputs {
            for o in 0..s.outputs {
                let mut sum = E::ZERO;
                for r in 0..s.rows {
                    sum += x[r * s.inputs + i] * dz[r * s.outputs + o];
                }
                dw[weight(&s, i, o)] += sum;
            }
        }
    }
}

#[track_caller]
fn check<E>(s: &LinearSpec, x: &[E], w: &[E], y: usize) {
    assert_eq!(x.len(), s.rows * s.inputs, "linear: x is not rows × inputs");
    assert_eq!(w.len(), s.inputs * s.outputs, "linear: the weight is not inputs × outputs");
    assert_eq!(y, s.rows * s.outputs, "linear: y or dy is not rows × outputs");
}

impl<E: Real> Linear for Cpu<E> {
    fn linear(&self, s: &LinearSpec, x: &[E], w: &[E], b: Option<&[E]>, y: &mut [E]) {
        check(s, x, w, y.len());
        b.inspect(|b| assert_eq!(b.len(), s.outputs, "linear: the bias is not outputs"));
        dispatch!(self.isa, forward::<E>(*s, s.act, x, w, b, y));
    }

    fn linear_vjp(
        &self,
        s: &LinearSpec,
        x: &[E],
        w: &[E],
        b: Option<&[E]>,
        y: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dw: Option<&mut [E]>,
        db: Option<&mut [E]>,
        scratch: &mut [E],
    ) {
        check(s, x, w, dy.len());
        let dz = match s.act {
            Unary::Identity => dy,
            act => {
                let dz = &mut scratch[..s.vjp_scratch()];
                if s.recomputes() {
                    dispatch!(self.isa, forward::<E>(*s, Unary::Identity, x, w, b, dz));
                }
                dispatch!(self.isa, slopes::<E>(act, y, dy, dz));
                dz
            }
        };
        dispatch!(self.isa, backward::<E>(*s, x, w, dz, dx, dw));
        if let Some(db) = db {
            assert_eq!(db.len(), s.outputs, "linear_vjp: db is not outputs");
            self.add_column_sums(s.outputs, dz, db);
        }
    }

    fn linear_route(_: &LinearSpec) -> &'static str {
        "small"
    }
}
