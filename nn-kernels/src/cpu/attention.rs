//! Softmax attention, tile by tile: scores exist for one tile of queries and one of keys at a time, so that memory
//! grows with the number of tokens and not with its square.
//!
//! A tile of scores is computed as k·qᵀ, queries along the vectors: maxima and sums over keys are then sums of vectors,
//! and of all operands only the tile of queries must be packed.
//!
//! Tiles of keys start at multiples of [`KEYS`], counted from the first key, and every sum over keys runs in their order
//! within a tile and then from tile to tile. Keys that are not seen add zeros at most, which change nothing. So the bits
//! of a query's output are the same whatever other queries there are.

pub(crate) mod sheet;

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::gemm::{self, Left, Mat, Start, Threads};
use super::par::{self, Piece, Rows};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::{reach, size};
use super::{Real, kernels::Kernels, math, reduce};
use crate::ops::{AttentionGradients, AttentionSpec, Strides, Unary};
use sheet::{Extent, Sheet};

kernels! {
    fn scale<E>(factor: f64, x: &mut [E]);
    fn weigh<E>(sight: Sight<'_, E>, scores: &mut [E], max: &mut [E], sum: &mut [E], carry: &mut [E]);
    fn weigh_few<E>(sight: Sight<'_, E>, scores: &mut [E], max: &mut [E], sum: &mut [E], carry: &mut [E]);
    fn scale_rows<E>(factors: &[E], x: &mut [E]);
    fn weigh_again<E>(sight: Sight<'_, E>, lse: &[E], scores: &mut [E]);
    fn slopes<E>(sight: Sight<'_, E>, factor: f64, weights: &[E], delta: &[E], slopes: &mut [E]);
    fn skipping_product<E>(a: Weights<'_, E>, b: &[E], b_row: usize, c: &mut [E], c_row: usize);
    fn is_finite<E>(size: (usize, usize), step: usize, x: &[E]) -> bool;
    fn dot<E>(a: &[E], b: &[E]) -> f64;
}

/// Queries in a tile.
const QUERIES: usize = 64;
/// Keys in a tile.
const KEYS: usize = 64;
/// Rows of a tile that are looked at alone where not all of its keys are seen: whole tiles of a product.
const PART: usize = 16;
/// So few queries leave most of a vector empty.
const FEW: usize = 4;

/// Which queries of a tile see which of its keys.
#[derive(Clone, Copy)]
struct Sight<'a, E> {
    /// Queries in the tile.
    n: usize,
    /// How many queries come before the first that sees the tile's first key: one fewer for each key before the
    /// tile. None where all see all.
    shift: Option<isize>,
    /// The mask of the tile's keys.
    mask: Option<&'a [E]>,
}

impl<E: Real> Sight<'_, E> {
    /// The tile's queries that see key `j` are those from here on.
    #[inline(always)]
    fn from(&self, j: usize) -> usize {
        match self.mask {
            Some(mask) if mask[j] == E::ZERO => self.n,
            _ => match self.shift {
                Some(shift) => (shift + j as isize).clamp(0, self.n as isize) as usize,
                None => 0,
            },
        }
    }

    /// How many of the first `keys` keys query `i` sees at most.
    fn seen(&self, i: usize, keys: usize) -> usize {
        match self.shift {
            Some(shift) => (i as isize + 1 - shift).clamp(0, keys as isize) as usize,
            None => keys,
        }
    }

    /// The first query that sees key `j`, but for the mask.
    fn first(&self, j: usize) -> usize {
        Self { mask: None, ..*self }.from(j)
    }

    /// Whether the mask hides some of the first `keys` keys.
    fn has_holes(&self, keys: usize) -> bool {
        self.mask.is_some_and(|mask| mask[..keys].contains(&E::ZERO))
    }
}

#[inline(always)]
fn scale<S: Simd, E: Real>(factor: f64, x: &mut [E]) {
    let factor = E::from_f64(factor);
    for x in x {
        *x = *x * factor;
    }
}

/// Turns scores, a row for each key, into weights 2^(score − max), and brings the maxima and the sums of the weights up
/// to date. `carry` gets what earlier sums must be multiplied by.
#[inline(always)]
fn weigh<S: Simd, E: Real>(
    sight: Sight<'_, E>,
    scores: &mut [E],
    max: &mut [E],
    sum: &mut [E],
    carry: &mut [E],
) {
    let n = sight.n;
    carry.copy_from_slice(max);
    for (block, rows) in scores.chunks(ROWS * n).enumerate() {
        let j = block * ROWS;
        if rows.len() == ROWS * n && (j..j + ROWS).all(|j| sight.from(j) == 0) {
            let [a, b, c, d] = rows_of(rows, n);
            for ((((max, &a), &b), &c), &d) in max.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *max = larger(larger(larger(larger(*max, a), b), c), d);
            }
            continue;
        }
        for (j, row) in (j..).zip(rows.chunks_exact(n)) {
            let from = sight.from(j);
            for (max, &score) in max[from..].iter_mut().zip(&row[from..]) {
                *max = larger(*max, score);
            }
        }
    }
    carry_on::<S, E>(max, carry);
    let mut parts = [E::ZERO; QUERIES];
    let parts = &mut parts[..n];
    for (block, rows) in scores.chunks_mut(ROWS * n).enumerate() {
        let j = block * ROWS;
        if rows.len() == ROWS * n && (j..j + ROWS).all(|j| sight.from(j) == 0) {
            let [a, b, c, d] = rows_of_mut(rows, n);
            let rows = a.iter_mut().zip(b).zip(c).zip(d);
            for (((((a, b), c), d), &max), part) in rows.zip(&*max).zip(&mut *parts) {
                *a = math::exp2::<S, E>(*a - max);
                *b = math::exp2::<S, E>(*b - max);
                *c = math::exp2::<S, E>(*c - max);
                *d = math::exp2::<S, E>(*d - max);
                *part = *part + *a + *b + *c + *d;
            }
            continue;
        }
        for (j, row) in (j..).zip(rows.chunks_exact_mut(n)) {
            let (unseen, row) = row.split_at_mut(sight.from(j));
            let from = unseen.len();
            unseen.fill(E::ZERO);
            for ((score, &max), part) in row.iter_mut().zip(&max[from..]).zip(&mut parts[from..]) {
                *score = math::exp2::<S, E>(*score - max);
                *part += *score;
            }
        }
    }
    for ((sum, &part), &carry) in sum.iter_mut().zip(&*parts).zip(&*carry) {
        *sum = *sum * carry + part;
    }
}

/// [`weigh`] of scores with a row for each query, where every query sees the same keys. The sums are the same.
#[inline(always)]
fn weigh_few<S: Simd, E: Real>(
    sight: Sight<'_, E>,
    scores: &mut [E],
    max: &mut [E],
    sum: &mut [E],
    carry: &mut [E],
) {
    carry.copy_from_slice(max);
    let keys = scores.len() / sight.n;
    for (row, max) in scores.chunks_exact_mut(keys).zip(&mut *max) {
        if let Some(mask) = sight.mask {
            for (score, &mask) in row.iter_mut().zip(mask) {
                *score = if mask == E::ZERO { E::lit(f64::NEG_INFINITY) } else { *score };
            }
        }
        *max = larger(*max, reduce::max(row));
    }
    carry_on::<S, E>(max, carry);
    for (row, ((&max, sum), &carry)) in scores.chunks_exact_mut(keys).zip(max.iter().zip(sum).zip(&*carry)) {
        for score in &mut *row {
            *score = math::exp2::<S, E>(*score - max);
        }
        if let Some(mask) = sight.mask {
            for (score, &mask) in row.iter_mut().zip(mask) {
                *score = if mask == E::ZERO { E::ZERO } else { *score };
            }
        }
        let mut part = E::ZERO;
        for &weight in &*row {
            part += weight;
        }
        *sum = *sum * carry + part;
    }
}

/// Rows of scores that are passed over together.
const ROWS: usize = 4;

#[inline(always)]
fn rows_of<E>(rows: &[E], n: usize) -> [&[E]; ROWS] {
    std::array::from_fn(|i| &rows[i * n..(i + 1) * n])
}

#[inline(always)]
fn rows_of_mut<E>(rows: &mut [E], n: usize) -> [&mut [E]; ROWS] {
    let (a, rows) = rows.split_at_mut(n);
    let (b, rows) = rows.split_at_mut(n);
    let (c, d) = rows.split_at_mut(n);
    [a, b, c, d]
}

/// The larger, or the first where the second is NaN.
#[inline(always)]
fn larger<E: Real>(a: E, b: E) -> E {
    if b > a { b } else { a }
}

/// Turns what the maxima were into what earlier sums must be multiplied by.
#[inline(always)]
fn carry_on<S: Simd, E: Real>(max: &[E], carry: &mut [E]) {
    for (carry, &max) in carry.iter_mut().zip(max) {
        // They are both −∞ as long as nothing was seen.
        *carry = if *carry == max { E::ONE } else { math::exp2::<S, E>(*carry - max) };
    }
}

/// Multiplies each row by its factor.
#[inline(always)]
fn scale_rows<S: Simd, E: Real>(factors: &[E], x: &mut [E]) {
    let cols = x.len() / factors.len().max(1);
    for (row, &factor) in x.chunks_exact_mut(cols).zip(factors) {
        for x in row {
            *x = *x * factor;
        }
    }
}

/// Turns scores into the softmax's values, of which `lse` has the denominators' logarithms, to base 2.
#[inline(always)]
fn weigh_again<S: Simd, E: Real>(sight: Sight<'_, E>, lse: &[E], scores: &mut [E]) {
    for (j, row) in scores.chunks_exact_mut(sight.n).enumerate() {
        let (unseen, row) = row.split_at_mut(sight.from(j));
        let lse = &lse[unseen.len()..];
        unseen.fill(E::ZERO);
        for (score, &lse) in row.iter_mut().zip(lse) {
            *score = math::exp2::<S, E>(*score - lse);
        }
    }
}

/// Turns gradients of the weights into gradients of the scores before they were scaled: factor·p·(dp − δ).
#[inline(always)]
fn slopes<S: Simd, E: Real>(sight: Sight<'_, E>, factor: f64, weights: &[E], delta: &[E], slopes: &mut [E]) {
    let factor = E::from_f64(factor);
    let rows = slopes.chunks_exact_mut(sight.n).zip(weights.chunks_exact(sight.n));
    for (j, (row, weights)) in rows.enumerate() {
        let (unseen, row) = row.split_at_mut(sight.from(j));
        let from = unseen.len();
        unseen.fill(E::ZERO);
        for ((slope, &weight), &delta) in row.iter_mut().zip(&weights[from..]).zip(&delta[from..]) {
            *slope = weight * (*slope - delta) * factor;
        }
    }
}

#[inline(always)]
fn dot<S: Simd, E: Real>(a: &[E], b: &[E]) -> f64 {
    reduce::sum2(a, b, |a, b| a * b)
}

/// Whether all values are finite, in so many rows of `cols` that start `step` apart.
#[inline(always)]
fn is_finite<S: Simd, E: Real>((rows, cols): (usize, usize), step: usize, x: &[E]) -> bool {
    let mut finite = true;
    for i in 0..rows {
        for x in &x[i * step..i * step + cols] {
            finite &= x.is_finite();
        }
    }
    finite
}

/// A tile's weights as the left factor of a product: that of row i and term p is `data[i·row + p·term]`.
#[derive(Clone, Copy)]
struct Weights<'a, E> {
    data: &'a [E],
    rows: usize,
    terms: usize,
    row: usize,
    term: usize,
}

impl<'a, E> Weights<'a, E> {
    /// A row for each key, as they lie.
    fn by_key(data: &'a [E], n: usize) -> Self {
        Self { data, rows: data.len() / n, terms: n, row: n, term: 1 }
    }

    /// The same, a row for each query.
    fn by_query(data: &'a [E], n: usize) -> Self {
        Self { data, rows: n, terms: data.len() / n, row: 1, term: n }
    }

    /// Some of the rows, and some of the terms.
    fn part(self, rows: Range<usize>, terms: Range<usize>) -> Self {
        let data = &self.data[rows.start * self.row + terms.start * self.term..];
        Self { data, rows: rows.len(), terms: terms.len(), ..self }
    }
}

/// C += A·B, passing over what has no weight: NaN in a row of B that is not seen stays there.
#[inline(always)]
fn skipping_product<S: Simd, E: Real>(a: Weights<'_, E>, b: &[E], b_row: usize, c: &mut [E], c_row: usize) {
    for (i, c) in c.chunks_exact_mut(c_row).enumerate() {
        for (j, c) in c.iter_mut().enumerate() {
            let mut sum = E::ZERO;
            for p in 0..a.terms {
                let weight = a.data[i * a.row + p * a.term];
                if weight != E::ZERO {
                    sum = weight.mul_add::<S>(b[p * b_row + j], sum);
                }
            }
            *c += sum;
        }
    }
}

/// So many pieces of work.
struct Span(usize);

impl Piece for Span {
    fn cut(self, rows: usize) -> (Self, Self) {
        (Self(rows), Self(self.0 - rows))
    }
}

/// What both directions read.
struct Operands<'a, E> {
    s: &'a AttentionSpec,
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    mask: Option<&'a [E]>,
}

/// Some tokens of a head.
#[track_caller]
fn rows<E: Real>(
    x: &[E],
    at: Strides,
    width: usize,
    batch: usize,
    head: usize,
    from: usize,
    len: usize,
) -> Mat<'_, E> {
    let start = batch * at.batch + head * at.head + from * at.token;
    Mat::strided(&x[start..], len, width, at.token)
}

impl<'a, E: Real> Operands<'a, E> {
    #[track_caller]
    fn new(
        name: &str,
        s: &'a AttentionSpec,
        q: &'a [E],
        k: &'a [E],
        v: &'a [E],
        mask: Option<&'a [E]>,
    ) -> Self {
        assert!(
            s.head_dim > 0 && s.kv_heads > 0 && s.heads.is_multiple_of(s.kv_heads),
            "{name}: {} query heads over {} heads of keys of {} values",
            s.heads,
            s.kv_heads,
            s.head_dim
        );
        size(name, &[s.batch, s.heads, s.q_len, s.head_dim]);
        size(name, &[s.batch, s.kv_heads, s.k_len, s.head_dim, 2]);
        // Positions are also counted with a sign.
        reach(name, 2, s.q_len.max(s.k_len), QUERIES + KEYS);
        for (what, x, extent) in [("q", q, queries(s, s.q)), ("k", k, keys(s, s.k)), ("v", v, keys(s, s.v))] {
            assert!(x.len() >= extent.len(name), "{name}: {what} of {} values", x.len());
        }
        if let Some(mask) = mask {
            assert_eq!(mask.len(), s.batch * s.k_len, "{name}: mask");
        }
        Self { s, q, k, v, mask }
    }

    fn queries(&self, b: usize, h: usize, from: usize, len: usize) -> Mat<'a, E> {
        rows(self.q, self.s.q, self.s.head_dim, b, h, from, len)
    }
    fn keys(&self, b: usize, g: usize, from: usize, len: usize) -> Mat<'a, E> {
        rows(self.k, self.s.k, self.s.head_dim, b, g, from, len)
    }
    fn values(&self, b: usize, g: usize, from: usize, len: usize) -> Mat<'a, E> {
        rows(self.v, self.s.v, self.s.head_dim, b, g, from, len)
    }

    /// How many keys query `i` and those before it see at most.
    fn seen(&self, i: usize) -> usize {
        let (q_len, k_len) = (self.s.q_len, self.s.k_len);
        if self.s.causal { (i + 1 + k_len).saturating_sub(q_len).min(k_len) } else { k_len }
    }

    /// The tile of `n` queries from `i` on, and of `keys` keys from `j` on.
    fn sight(&self, b: usize, i: usize, n: usize, j: usize, keys: usize) -> Sight<'a, E> {
        let (q_len, k_len) = (self.s.q_len as isize, self.s.k_len as isize);
        let mask = self.mask.map(|mask| &mask[b * self.s.k_len + j..][..keys]);
        Sight { n, shift: self.s.causal.then_some(j as isize + q_len - k_len - i as isize), mask }
    }
}

/// The heads that share keys as so many queries, where there is one query only: then they pass over the keys together.
pub(crate) fn together(s: &AttentionSpec) -> AttentionSpec {
    let group = s.heads / s.kv_heads.max(1);
    if s.q_len != 1 || group * s.kv_heads != s.heads {
        return *s;
    }
    let rows = |at: Strides| Strides { token: at.head, head: at.head.saturating_mul(group), ..at };
    AttentionSpec { q_len: group, heads: s.kv_heads, causal: false, q: rows(s.q), y: rows(s.y), ..*s }
}

/// The extent of a tensor of queries.
pub(crate) fn queries(s: &AttentionSpec, at: Strides) -> Extent {
    Extent { at, batch: s.batch, tokens: s.q_len, heads: s.heads, width: s.head_dim }
}

/// The extent of a tensor of keys or values.
pub(crate) fn keys(s: &AttentionSpec, at: Strides) -> Extent {
    Extent { at, batch: s.batch, tokens: s.k_len, heads: s.kv_heads, width: s.head_dim }
}

/// The extent of `lse`, one value a row.
fn lse_extent(s: &AttentionSpec) -> Extent {
    let at = Strides { batch: s.heads * s.q_len, token: 1, head: s.q_len };
    Extent { at, batch: s.batch, tokens: s.q_len, heads: s.heads, width: 1 }
}

/// Cuts buffers off the front of a scratch.
fn take<'a, E>(scratch: &mut &'a mut [E], n: usize) -> &'a mut [E] {
    let (head, tail) = std::mem::take(scratch).split_at_mut(n);
    *scratch = tail;
    head
}

impl<E: Real> Kernels<E> {
    /// c = start + a·b.
    fn tile(&self, a: Mat<'_, E>, b: Mat<'_, E>, start: Start<'_, E>, c: &mut [E], c_row: usize) {
        gemm::product(self.isa, Threads::This, &a, &b, start, Unary::Identity, c, c_row);
    }

    /// The products of each of a tile's keys, or values, with each of its queries, of which it has the transpose:
    /// a row for each key. Those of keys that are not seen may be left out.
    fn scores(&self, sight: Sight<'_, E>, keys: Mat<'_, E>, turned: &[E], scores: &mut [E]) {
        let (n, (len, d)) = (sight.n, keys.shape());
        if sight.first(len - 1) == 0 {
            return self.tile(keys, Mat::new(turned, d, n), Start::Zero, scores, n);
        }
        for j in (0..len).step_by(PART) {
            let to = len.min(j + PART);
            // Whole vectors.
            let from = sight.first(j) / PART * PART;
            if from < n {
                let queries = Mat::strided(&turned[from..], d, n - from, n);
                self.tile(keys.some(j..to), queries, Start::Zero, &mut scores[j * n + from..to * n], n);
            }
        }
    }

    /// sums += weights·b, a row for each query.
    fn by_query(&self, sight: Sight<'_, E>, weights: &[E], b: Mat<'_, E>, sums: &mut [E]) {
        let (n, (len, d)) = (sight.n, b.shape());
        let (weights, holes) = (Weights::by_query(weights, n), sight.has_holes(len));
        if sight.first(len - 1) == 0 {
            return self.weighted(weights, b, if holes { 0..len } else { 0..0 }, sums);
        }
        for i in (0..n).step_by(PART) {
            let to = n.min(i + PART);
            let (least, seen) = (sight.seen(i, len), sight.seen(to - 1, len));
            if seen > 0 {
                let unseen = if holes { 0 } else { least }..seen;
                let weights = weights.part(i..to, 0..seen);
                self.weighted(weights, b.some(0..seen), unseen, &mut sums[i * d..to * d]);
            }
        }
    }

    /// sums += weights·b, a row for each key.
    fn by_key(&self, sight: Sight<'_, E>, weights: &[E], b: Mat<'_, E>, sums: &mut [E]) {
        let (n, d) = b.shape();
        let len = weights.len() / n;
        let (weights, holes) = (Weights::by_key(weights, n), sight.has_holes(len));
        if sight.first(len - 1) == 0 {
            return self.weighted(weights, b, if holes { 0..n } else { 0..0 }, sums);
        }
        for j in (0..len).step_by(PART) {
            let to = len.min(j + PART);
            let (from, most) = (sight.first(j), sight.first(to - 1));
            if from < n {
                let unseen = if holes { n } else { most };
                let weights = weights.part(j..to, from..n);
                self.weighted(weights, b.some(from..n), 0..unseen - from, &mut sums[j * d..to * d]);
            }
        }
    }

    /// c += weights·b. Among the terms `unseen`, some weights stand for what is not seen, and what b holds there must
    /// not matter.
    fn weighted(&self, weights: Weights<'_, E>, b: Mat<'_, E>, unseen: Range<usize>, c: &mut [E]) {
        let Weights { data, rows, terms, row, term } = weights;
        let n = c.len() / rows;
        if !unseen.is_empty() {
            let ((doubtful, step), size) = (b.some(unseen.clone()).rows(), (unseen.len(), n));
            if !run::is_finite(self.isa, size, step, doubtful) {
                return run::skipping_product(self.isa, weights, b.rows().0, step, c, n);
            }
        }
        let a = if term == 1 {
            Mat::strided(data, rows, terms, row)
        } else {
            Mat::strided(data, terms, rows, term).t()
        };
        self.tile(a, b, Start::Add, c, n);
    }

    pub(crate) fn attention(
        &self,
        s: &AttentionSpec,
        q: &[E],
        k: &[E],
        v: &[E],
        mask: Option<&[E]>,
        y: &mut [E],
        lse: Option<&mut [E]>,
    ) {
        const NAME: &str = "attention";
        let s = &together(s);
        let x = Operands::new(NAME, s, q, k, v, mask);
        let y = Sheet::new(NAME, y, queries(s, s.y));
        let lse = lse.map(|lse| {
            assert_eq!(lse.len(), s.lse(), "{NAME}: lse");
            Sheet::new(NAME, lse, lse_extent(s))
        });
        let tiles = s.q_len.div_ceil(QUERIES);
        let units = s.batch * s.heads * tiles;
        if units == 0 {
            return;
        }
        let work = QUERIES.min(s.q_len).saturating_mul(s.head_dim * s.k_len.max(1));
        par::split(units, gemm::WORK.div_ceil(work), Span(units), &|first, Span(count)| {
            let mut scratch = Scratch::new(QUERIES * (2 * s.head_dim + KEYS + 3));
            for unit in first..first + count {
                let (b, h, tile) = (unit / tiles / s.heads, unit / tiles % s.heads, unit % tiles);
                self.attention_tile(&x, b, h, tile * QUERIES, &y, lse.as_ref(), &mut scratch);
            }
        });
    }

    /// The queries from `i` on, as many as a tile has: this call alone writes their outputs.
    fn attention_tile(
        &self,
        x: &Operands<'_, E>,
        b: usize,
        h: usize,
        i: usize,
        y: &Sheet<'_, E>,
        lse: Option<&Sheet<'_, E>>,
        mut scratch: &mut [E],
    ) {
        let (s, isa) = (x.s, self.isa);
        let (n, d) = (QUERIES.min(s.q_len - i), s.head_dim);
        let g = h / (s.heads / s.kv_heads);
        let few = n <= FEW && (n == 1 || !s.causal);
        let turned = take(&mut scratch, d * n);
        x.queries(b, h, i, n).pack(isa, 0..n, 0..d, turned);
        run::scale(isa, s.scale * LOG2_E, turned);
        let (scores, acc) = (take(&mut scratch, KEYS * n), take(&mut scratch, n * d));
        let (max, sum, carry) = (take(&mut scratch, n), take(&mut scratch, n), take(&mut scratch, n));
        acc.fill(E::ZERO);
        max.fill(E::from_f64(f64::NEG_INFINITY));
        sum.fill(E::ZERO);
        let seen = x.seen(i + n - 1);
        for j in (0..seen).step_by(KEYS) {
            let len = KEYS.min(seen - j);
            let sight = x.sight(b, i, n, j, len);
            let scores = &mut scores[..len * n];
            let (keys, values) = (x.keys(b, g, j, len), x.values(b, g, j, len));
            if few {
                // Vectors of so few queries would be mostly empty: the keys take their place.
                let turned_keys = &mut scratch[..d * len];
                Left::pack(&keys, isa, 0..len, 0..d, turned_keys);
                let queries = Mat::new(turned, d, n).t();
                self.tile(queries, Mat::new(turned_keys, d, len), Start::Zero, scores, len);
                run::weigh_few(isa, sight, scores, max, sum, carry);
            } else {
                self.scores(sight, keys, turned, scores);
                run::weigh(isa, sight, scores, max, sum, carry);
            }
            if j > 0 {
                run::scale_rows(isa, carry, acc);
            }
            if few {
                let weights = Weights { data: scores, rows: n, terms: len, row: len, term: 1 };
                let unseen = 0..if sight.has_holes(len) { len } else { 0 };
                self.weighted(weights, values, unseen, acc);
            } else {
                self.by_query(sight, scores, values, acc);
            }
        }
        for (factor, &sum) in carry.iter_mut().zip(&*sum) {
            *factor = E::ONE / sum;
        }
        run::scale_rows(isa, carry, acc);
        for (r, acc) in acc.chunks_exact_mut(d).enumerate() {
            let (sum, max) = (sum[r].to_f64(), max[r].to_f64());
            // SAFETY: this call alone, of all threads', is about the tile that query i + r is in, and the row is not
            // used when the next is taken.
            let y = unsafe { y.row(b, i + r, h) };
            if sum == 0.0 {
                y.fill(E::ZERO);
            } else {
                y.copy_from_slice(acc);
            }
            if let Some(lse) = lse {
                let log = if sum == 0.0 { f64::INFINITY } else { max / LOG2_E + sum.ln() };
                // SAFETY: as above.
                unsafe { lse.row(b, i + r, h) }.fill(E::from_f64(log));
            }
        }
    }

    pub(crate) fn attention_vjp(
        &self,
        s: &AttentionSpec,
        q: &[E],
        k: &[E],
        v: &[E],
        mask: Option<&[E]>,
        y: &[E],
        lse: &[E],
        dy: &[E],
        gradients: AttentionGradients<&mut [E]>,
        scratch: &mut [E],
    ) {
        const NAME: &str = "attention_vjp";
        let x = Operands::new(NAME, s, q, k, v, mask);
        for (what, x) in [("y", y), ("dy", dy)] {
            assert!(x.len() >= queries(s, s.y).len(NAME), "{NAME}: {what} of {} values", x.len());
        }
        assert_eq!(lse.len(), s.lse(), "{NAME}: lse");
        assert_eq!(scratch.len(), s.vjp_scratch(), "{NAME}: scratch");
        let extents = [queries(s, s.q), keys(s, s.k), keys(s, s.v)];
        let to = match gradients {
            AttentionGradients::Packed { qkv, at } => {
                let parts = [(at[0], extents[0]), (at[1], extents[1]), (at[2], extents[2])];
                Sheet::packed(NAME, qkv, parts).map(Some)
            }
            AttentionGradients::Apart { q, k, v } => [
                q.map(|q| Sheet::new(NAME, q, extents[0])),
                k.map(|k| Sheet::new(NAME, k, extents[1])),
                v.map(|v| Sheet::new(NAME, v, extents[2])),
            ],
        };
        let units = s.batch * s.kv_heads;
        if units == 0 || to.iter().all(Option::is_none) {
            return;
        }
        let back = Back { x, y, lse, dy, to };
        let cols = 2 * s.k_len * s.head_dim;
        let work = (s.heads / s.kv_heads * s.q_len).saturating_mul(cols).max(1);
        let piece = (Span(units), Rows(scratch, cols));
        par::split(units, gemm::WORK.div_ceil(work), piece, &|first,
                                                              (Span(count), Rows(sums, _)): (
            Span,
            Rows<&mut [E]>,
        )| {
            let mut scratch = Scratch::new(QUERIES * (3 * s.head_dim + 2 * KEYS + 2));
            for i in 0..count {
                let (unit, sums) = (first + i, &mut sums[i * cols..(i + 1) * cols]);
                self.attention_vjp_unit(&back, unit / s.kv_heads, unit % s.kv_heads, sums, &mut scratch);
            }
        });
    }

    /// The gradients of head `g` of the keys and values, and of the queries that read it: this call alone writes them.
    fn attention_vjp_unit(
        &self,
        back: &Back<'_, E>,
        b: usize,
        g: usize,
        sums: &mut [E],
        mut scratch: &mut [E],
    ) {
        let (x, isa, d) = (&back.x, self.isa, back.x.s.head_dim);
        let s = x.s;
        let [to_q, to_k, to_v] = &back.to;
        sums.fill(E::ZERO);
        let (dk, dv) = sums.split_at_mut(s.k_len * d);
        let most = QUERIES.min(s.q_len);
        let (turned, turned_dy) = (take(&mut scratch, d * most), take(&mut scratch, d * most));
        let (weights, slopes) = (take(&mut scratch, KEYS * most), take(&mut scratch, KEYS * most));
        let (acc, delta, lse) =
            (take(&mut scratch, most * d), take(&mut scratch, most), take(&mut scratch, most));
        let group = s.heads / s.kv_heads;
        for h in g * group..(g + 1) * group {
            for i in (0..s.q_len).step_by(QUERIES) {
                let n = QUERIES.min(s.q_len - i);
                let (queries, dy) = (x.queries(b, h, i, n), rows(back.dy, s.y, d, b, h, i, n));
                let (turned, turned_dy) = (&mut turned[..d * n], &mut turned_dy[..d * n]);
                queries.pack(isa, 0..n, 0..d, turned);
                run::scale(isa, s.scale * LOG2_E, turned);
                dy.pack(isa, 0..n, 0..d, turned_dy);
                let (acc, delta, lse) = (&mut acc[..n * d], &mut delta[..n], &mut lse[..n]);
                acc.fill(E::ZERO);
                for (r, delta) in delta.iter_mut().enumerate() {
                    let at = b * s.y.batch + (i + r) * s.y.token + h * s.y.head;
                    *delta = E::from_f64(run::dot(isa, &back.y[at..at + d], &back.dy[at..at + d]));
                }
                lse.copy_from_slice(&back.lse[(b * s.heads + h) * s.q_len + i..][..n]);
                run::scale(isa, LOG2_E, lse);
                let seen = x.seen(i + n - 1);
                for j in (0..seen).step_by(KEYS) {
                    let len = KEYS.min(seen - j);
                    let sight = x.sight(b, i, n, j, len);
                    let keys = x.keys(b, g, j, len);
                    let (weights, slopes) = (&mut weights[..len * n], &mut slopes[..len * n]);
                    self.scores(sight, keys, turned, weights);
                    run::weigh_again(isa, sight, lse, weights);
                    if to_v.is_some() {
                        self.by_key(sight, weights, dy, &mut dv[j * d..(j + len) * d]);
                    }
                    if to_q.is_none() && to_k.is_none() {
                        continue;
                    }
                    self.scores(sight, x.values(b, g, j, len), turned_dy, slopes);
                    run::slopes(isa, sight, s.scale, weights, delta, slopes);
                    if to_k.is_some() {
                        self.by_key(sight, slopes, queries, &mut dk[j * d..(j + len) * d]);
                    }
                    if to_q.is_some() {
                        self.by_query(sight, slopes, keys, acc);
                    }
                }
                if let Some(dq) = to_q {
                    for (r, acc) in acc.chunks_exact(d).enumerate() {
                        // SAFETY: this call alone, of all threads', is about head g of sample b, and head h reads no
                        // other; the row is not used when the next is taken.
                        unsafe { dq.row(b, i + r, h) }.copy_from_slice(acc);
                    }
                }
            }
        }
        for (to, sums) in [(to_k, dk), (to_v, dv)] {
            if let Some(to) = to {
                for (j, sum) in sums.chunks_exact(d).enumerate() {
                    // SAFETY: as above.
                    unsafe { to.row(b, j, g) }.copy_from_slice(sum);
                }
            }
        }
    }
}

/// What the vjp reads, and where it writes the gradients of q, k and v.
struct Back<'a, E> {
    x: Operands<'a, E>,
    y: &'a [E],
    lse: &'a [E],
    dy: &'a [E],
    to: [Option<Sheet<'a, E>>; 3],
}

#[cfg(test)]
mod tests;
