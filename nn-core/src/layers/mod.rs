//! The layers, one file a family.

pub(crate) mod batch_norm;
pub(crate) mod conv;
pub(crate) mod dropout;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod rope;
pub(crate) mod softmax;

use crate::Text;
use crate::dims::{Dims, Extent, Impossible};
use crate::fault::{Input, Rule, one_real};
use crate::signature::Sig;

/// The rule of a layer that turns rows of `takes` values, along the last axis, into rows of `gives`.
const fn along_last(label: &Text, args: &[Extent], given: &Sig, takes: Extent, gives: Extent) -> Rule {
    let dims = match one_real(label, args, given) {
        Input::Done(rule) => return rule,
        Input::Tensor(dims) => dims,
    };
    let out = Sig::real(dims.with_last(gives));
    if dims.rank() > 0 && dims.last().same(&takes) {
        return Rule::ok(out);
    }
    Rule::mismatch(label, takes.write(Text::new().str("[.., ")).str("]"), given, out)
}

/// How many rows a sample has, if a row is its last axis.
const fn rows_of(dims: &Dims) -> usize {
    if dims.rank() == 0 { 1 } else { dims.product(0, dims.rank() - 1).n }
}

/// The product of all; 0 if that is too large to be one, which is a fault elsewhere.
const fn product(factors: &[usize]) -> usize {
    let mut n: usize = 1;
    let mut i = 0;
    while i < factors.len() {
        n = match n.checked_mul(factors[i]) {
            // Far from the end, so that sums of a few don't overflow either.
            Some(n) if n <= usize::MAX >> 16 => n,
            _ => return 0,
        };
        i += 1;
    }
    n
}

/// A window that moves over an image, along one axis or, as here, both alike.
#[derive(Clone, Copy)]
struct Window {
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Window {
    /// How much of the image it covers at once, gaps included.
    const fn extent(&self) -> usize {
        self.dilation.saturating_mul(self.kernel.saturating_sub(1)).saturating_add(1)
    }

    const fn padded(&self, n: usize) -> usize {
        n.saturating_add(self.padding.saturating_mul(2))
    }

    /// How many places it has along an axis of `n` values.
    const fn places(&self, n: usize) -> Extent {
        let (padded, extent) = (self.padded(n), self.extent());
        if padded < extent || self.stride == 0 {
            return Extent::impossible(Impossible::Negative(padded, extent));
        }
        Extent::new((padded - extent) / self.stride + 1)
    }

    /// The rule of a layer that moves it over `[C, H, W]`, takes `channels` of them (none: any number) and
    /// gives as many as `out` says (none: as many as there are).
    const fn rule(&self, label: &Text, args: &[Extent], given: &Sig, channels: Option<Extent>, out: Extent) -> Rule {
        let dims = match one_real(label, args, given) {
            Input::Done(rule) => return rule,
            Input::Tensor(dims) => dims,
        };
        let any = channels.is_none();
        let takes = match &channels {
            Some(n) => n.write(Text::new().str("[")).str(", H, W]"),
            None => Text::new().str("[C, H, W]"),
        };
        if dims.rank() != 3 {
            return Rule::mismatch(label, takes, given, Sig::POISON);
        }
        let (h, w) = (dims.axis(1), dims.axis(2));
        if h.length.is_some() || w.length.is_some() || dims.axis(0).length.is_some() {
            return Rule::mismatch(label, takes.str(" without bounds"), given, Sig::POISON);
        }
        let gives = Sig::real(Dims::new(&[if any { dims.axis(0) } else { out }, self.places(h.n), self.places(w.n)]));
        if let Some(n) = &channels
            && !dims.axis(0).same(n)
        {
            return Rule::mismatch(label, takes, given, gives);
        }
        if h.n == 0 || w.n == 0 {
            return Rule::mismatch(label, takes.str(" with at least one value"), given, Sig::POISON);
        }
        if gives.is_poison() {
            let text = Text::new().str("shape mismatch: `").text(label).str("` needs an image of at least ");
            let text = text.num(self.extent()).str("×").num(self.extent());
            let text = text.str(if self.padding == 0 { "" } else { ", padding included" });
            let text = given.write(text.str(", but it is given "));
            let text = if self.padding == 0 {
                text
            } else {
                text.str(", padded to ").num(self.padded(h.n)).str("×").num(self.padded(w.n))
            };
            return Rule { out: Sig::POISON, fault: Some(crate::Fault::new(text)) };
        }
        Rule::ok(gives)
    }
}
