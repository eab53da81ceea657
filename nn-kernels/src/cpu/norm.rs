use super::par::{self, Rows, rows_per_task};
use super::reduce::{read, write};
use super::scratch::Scratch;
use super::simd::{Simd, kernels};
use super::size::size;
use super::vector::Vector;
use super::{Real, batch_norm, kernels::Kernels, reduce};
use crate::ops::BatchNormSpec;

kernels! {
    fn column_sums<E>(cols: usize, first: usize, x: &[E], y: &mut [E]);
    fn normalise<E>(norm: Norm, x: &[E], gamma: Option<&[E]>, beta: Option<&[E]>, y: &mut [E], stats: Option<&mut [E]>);
    fn normalise_vjp<E>(norm: Norm, x: &[E], gamma: Option<&[E]>, stats: &[E], dy: &[E], dx: Option<&mut [E]>, sums: &mut [E], totals: &mut [f64]);
}

/// What both normalisations share: y = (x − centre)·scale·γ + β, row by row, where the centre is the mean, or 0.
#[derive(Clone, Copy)]
struct Norm {
    cols: usize,
    eps: f64,
    /// By the mean and the variance; or by the mean square.
    centred: bool,
}

impl Norm {
    /// Values of a row in the statistics: its mean, perhaps, and the scale.
    const fn stats(self) -> usize {
        if self.centred { 2 } else { 1 }
    }
}

/// A row's mean as a sum of two elements, the second far smaller. x − mean then is (x − high) − low, in the precision of
/// the elements: where x is near the mean, the first difference is exact, and where it is not, it is rounded once; so its
/// relative error is small, however large the mean.
#[derive(Clone, Copy)]
struct Centre<E> {
    high: E,
    low: E,
}

impl<E: Real> Centre<E> {
    #[inline(always)]
    fn new(mean: f64) -> Self {
        let high = E::from_f64(mean);
        Self { high, low: E::from_f64(mean - high.to_f64()) }
    }

    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn off<S: Simd>(self, x: E::Vector<S>) -> E::Vector<S> {
        // SAFETY: as the caller promises.
        unsafe { x.sub(Vector::splat(self.high)).sub(Vector::splat(self.low)) }
    }
}

/// The mean of a row: of the differences from its first value, which are as small as the spread is, so that they can be
/// summed in their own precision.
#[inline(always)]
fn mean<S: Simd, E: Real>(x: &[E]) -> f64 {
    let origin = x[0];
    // SAFETY: a kernel of S runs on a processor that has it.
    let [sum] = unsafe { reduce::sums::<S, E, 1, 1, 8>([x], |[x]| [x.sub(Vector::splat(origin))]) };
    origin.to_f64() + sum / x.len() as f64
}

#[inline(always)]
fn normalise<S: Simd, E: Real>(
    norm: Norm,
    x: &[E],
    gamma: Option<&[E]>,
    beta: Option<&[E]>,
    y: &mut [E],
    stats: Option<&mut [E]>,
) {
    let Norm { cols, eps, centred } = norm;
    let mut stats = stats.map(|stats| stats.chunks_exact_mut(norm.stats()));
    for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
        let mean = if centred { mean::<S, E>(x) } else { 0.0 };
        let centre = Centre::<E>::new(mean);
        // SAFETY: a kernel of S runs on a processor that has it.
        let [square] = unsafe {
            if centred {
                reduce::sums::<S, E, 1, 1, 8>([x], |[x]| {
                    let d = centre.off::<S>(x);
                    [d.mul(d)]
                })
            } else {
                reduce::sums::<S, E, 1, 1, 8>([x], |[x]| [x.mul(x)])
            }
        };
        let scale = 1.0 / (square / cols as f64 + eps).sqrt();
        // SAFETY: as above.
        unsafe { affine::<S, E>(centre, E::from_f64(scale), x, gamma, beta, y) };
        if let Some(stats) = stats.as_mut().and_then(Iterator::next) {
            stats[0] = E::from_f64(mean);
            stats[norm.stats() - 1] = E::from_f64(scale);
        }
    }
}

/// The values of γ or β from `at` on, or those that it has where it is not there.
///
/// # Safety
/// The processor has the instruction set; the parameter has `part` values from `at` on.
#[inline(always)]
unsafe fn parameter<S: Simd, E: Real>(v: Option<&[E]>, at: usize, part: usize, or: E) -> E::Vector<S> {
    // SAFETY: as the caller promises.
    unsafe {
        match v {
            Some(v) => read::<S, E>(v.as_ptr().add(at), part),
            None => Vector::splat(or),
        }
    }
}

/// y = (x − centre)·scale·γ + β.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn affine<S: Simd, E: Real>(
    centre: Centre<E>,
    scale: E,
    x: &[E],
    gamma: Option<&[E]>,
    beta: Option<&[E]>,
    y: &mut [E],
) {
    let n = y.len();
    assert!(x.len() == n && gamma.is_none_or(|v| v.len() == n) && beta.is_none_or(|v| v.len() == n));
    let lanes = <E::Vector<S> as Vector>::LANES;
    let mut at = 0;
    // SAFETY: as the caller promises; all are n long, of which so many from `at` on are read and written.
    unsafe {
        while at + lanes <= n {
            affine_part::<S, E>(centre, scale, x, gamma, beta, y, at, lanes);
            at += lanes;
        }
        if at < n {
            affine_part::<S, E>(centre, scale, x, gamma, beta, y, at, n - at);
        }
    }
}

/// # Safety
/// The processor has the instruction set; all slices have `part` values from `at` on, one vector's at most.
#[inline(always)]
unsafe fn affine_part<S: Simd, E: Real>(
    centre: Centre<E>,
    scale: E,
    x: &[E],
    gamma: Option<&[E]>,
    beta: Option<&[E]>,
    y: &mut [E],
    at: usize,
    part: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let gamma = parameter::<S, E>(gamma, at, part, E::ONE);
        let beta = parameter::<S, E>(beta, at, part, E::ZERO);
        let normal = centre.off::<S>(read::<S, E>(x.as_ptr().add(at), part)).mul(Vector::splat(scale));
        write::<S, E>(normal.mul_add(gamma, beta), y.as_mut_ptr().add(at), part);
    }
}

/// Pieces that rows are cut into at most in the vjp, each with sums of its own.
const PIECES: usize = 8;
/// Rows that are taken together in the vjp: a column's sums are read and written once for all of them.
const GROUP: usize = 4;
/// Rows whose terms of the parameters' gradients are summed in the precision of the elements.
const BLOCK: usize = 64;

/// The gradients of x, and `totals` += those of γ and of β, one after the other, if anyone wants them. `sums` has room for
/// as many.
#[inline(always)]
fn normalise_vjp<S: Simd, E: Real>(
    norm: Norm,
    x: &[E],
    gamma: Option<&[E]>,
    stats: &[E],
    dy: &[E],
    mut dx: Option<&mut [E]>,
    sums: &mut [E],
    totals: &mut [f64],
) {
    let (cols, each) = (norm.cols, norm.stats());
    let rows = x.len() / cols;
    let mut row = 0;
    while row < rows {
        let end = rows.min(row + BLOCK);
        sums.fill(E::ZERO);
        while row < end {
            let n = if row + GROUP <= end { GROUP } else { 1 };
            let (from, to) = (row * cols, (row + n) * cols);
            let dx = dx.as_mut().map(|dx| &mut dx[from..to]);
            let (x, dy, stats) = (&x[from..to], &dy[from..to], &stats[row * each..(row + n) * each]);
            // SAFETY: a kernel of S runs on a processor that has it.
            unsafe {
                if n == GROUP {
                    group::<S, E, GROUP>(norm, x, gamma, stats, dy, dx, sums);
                } else {
                    group::<S, E, 1>(norm, x, gamma, stats, dy, dx, sums);
                }
            }
            row += n;
        }
        for (total, sum) in totals.iter_mut().zip(&*sums) {
            *total += sum.to_f64();
        }
    }
}

/// What a row's gradient is made with: dx = scale·(dy·γ − shift − (x − centre)·pull).
#[derive(Clone, Copy)]
struct Slope<E> {
    centre: Centre<E>,
    scale: E,
    shift: E,
    pull: E,
}

impl<E: Real> Slope<E> {
    /// With `shift` the mean of dy·γ, or 0, and `pull` = scale²·mean(dy·γ·(x − centre)).
    ///
    /// # Safety
    /// The processor has the instruction set.
    #[inline(always)]
    unsafe fn new<S: Simd>(norm: Norm, x: &[E], gamma: Option<&[E]>, stats: &[E], dy: &[E]) -> Self {
        let n = norm.cols as f64;
        let scale = stats[norm.stats() - 1];
        let high = if norm.centred { stats[0] } else { E::ZERO };
        // SAFETY: as the caller promises.
        let [off, sum, product] = unsafe {
            let origin = Vector::splat(high);
            match gamma {
                Some(gamma) => reduce::sums::<S, E, 3, 3, 2>([x, gamma, dy], |[x, w, g]| {
                    let (d, g) = (x.sub(origin), w.mul(g));
                    [d, g, d.mul(g)]
                }),
                None => reduce::sums::<S, E, 2, 3, 2>([x, dy], |[x, g]| {
                    let d = x.sub(origin);
                    [d, g, d.mul(g)]
                }),
            }
        };
        // The statistics hold the mean rounded. What it lacks is the mean of what is left.
        let low = if norm.centred { off / n } else { 0.0 };
        let shift = if norm.centred { sum / n } else { 0.0 };
        let pull = scale.to_f64() * scale.to_f64() * (product - low * sum) / n;
        let centre = Centre { high, low: E::from_f64(low) };
        Self { centre, scale, shift: E::from_f64(shift), pull: E::from_f64(pull) }
    }
}

/// Some rows of the vjp.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn group<S: Simd, E: Real, const R: usize>(
    norm: Norm,
    x: &[E],
    gamma: Option<&[E]>,
    stats: &[E],
    dy: &[E],
    dx: Option<&mut [E]>,
    sums: &mut [E],
) {
    let (cols, each) = (norm.cols, norm.stats());
    assert!(x.len() == R * cols && dy.len() == R * cols && stats.len() == R * each);
    assert!(dx.as_ref().is_none_or(|v| v.len() == R * cols) && gamma.is_none_or(|v| v.len() == cols));
    assert!(sums.is_empty() || sums.len() == 2 * cols);
    // Loops, and no closures of the standard library's: they may stay calls, and those have no vectors.
    let none = Slope {
        centre: Centre { high: E::ZERO, low: E::ZERO },
        scale: E::ZERO,
        shift: E::ZERO,
        pull: E::ZERO,
    };
    let mut slopes = [none; R];
    for (r, slope) in slopes.iter_mut().enumerate() {
        let row = r * cols..(r + 1) * cols;
        // SAFETY: as the caller promises.
        *slope = unsafe {
            Slope::new::<S>(norm, &x[row.clone()], gamma, &stats[r * each..(r + 1) * each], &dy[row])
        };
    }
    let lanes = <E::Vector<S> as Vector>::LANES;
    let dx = dx.map_or(std::ptr::null_mut(), <[E]>::as_mut_ptr);
    let mut at = 0;
    // SAFETY: as the caller promises; x, dy and dx have R rows of cols values, γ has one, and sums none or two, as was
    // checked; of each, so many from `at` on are read and written.
    unsafe {
        while at + lanes <= cols {
            group_part::<S, E, R>(cols, &slopes, x, gamma, dy, dx, sums, at, lanes);
            at += lanes;
        }
        if at < cols {
            group_part::<S, E, R>(cols, &slopes, x, gamma, dy, dx, sums, at, cols - at);
        }
    }
}

/// Some columns of some rows of the vjp.
///
/// # Safety
/// The processor has the instruction set; x, dy and dx, if it is not null, have R rows of `cols` values, γ has one, and sums
/// none or two; of each, there are `part` values from `at` on, one vector's at most.
#[inline(always)]
unsafe fn group_part<S: Simd, E: Real, const R: usize>(
    cols: usize,
    slopes: &[Slope<E>; R],
    x: &[E],
    gamma: Option<&[E]>,
    dy: &[E],
    dx: *mut E,
    sums: &mut [E],
    at: usize,
    part: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let w = parameter::<S, E>(gamma, at, part, E::ONE);
        let (mut dgamma, mut dbeta) = (Vector::splat(E::ZERO), Vector::splat(E::ZERO));
        for (r, slope) in slopes.iter().enumerate() {
            let g = read::<S, E>(dy.as_ptr().add(r * cols + at), part);
            let d = slope.centre.off::<S>(read::<S, E>(x.as_ptr().add(r * cols + at), part));
            let scale = Vector::splat(slope.scale);
            dgamma = d.mul(scale).mul_add(g, dgamma);
            dbeta = g.add(dbeta);
            if !dx.is_null() {
                let rest = w.mul(g).sub(Vector::splat(slope.shift));
                let pulled = d.mul(Vector::splat(slope.pull));
                write::<S, E>(rest.sub(pulled).mul(scale), dx.add(r * cols + at), part);
            }
        }
        if !sums.is_empty() {
            let sum = sums.as_mut_ptr().add(at);
            write::<S, E>(read::<S, E>(sum, part).add(dgamma), sum, part);
            let sum = sum.add(cols);
            write::<S, E>(read::<S, E>(sum, part).add(dbeta), sum, part);
        }
    }
}

#[inline(always)]
fn column_sums<S: Simd, E: Real>(cols: usize, first: usize, x: &[E], y: &mut [E]) {
    reduce::sum_columns(cols, first, x, x, y, |_| (), |(), x, _| x);
}

/// How many rows of `cols` values `x` holds.
#[track_caller]
pub(crate) fn rows_of(name: &str, cols: usize, x: usize) -> usize {
    assert!(cols > 0, "{name}: rows of no values");
    assert_eq!(x % cols, 0, "{name}: {x} values are no whole rows of {cols}");
    x / cols
}

#[track_caller]
pub(crate) fn check(name: &str, operand: &str, found: usize, expected: usize) {
    assert_eq!(found, expected, "{name}: {operand} has {found} values, not {expected}");
}

impl<E: Real> Kernels<E> {
    /// y[j] += Σ over rows of x, each column in the order of its rows.
    pub(crate) fn add_column_sums(&self, cols: usize, x: &[E], y: &mut [E]) {
        let isa = self.isa;
        par::split(cols, rows_per_task(x.len() / cols.max(1)), y, &|first, y| {
            run::column_sums(isa, cols, first, x, y)
        });
    }
}

impl<E: Real> Kernels<E> {
    pub(crate) fn layer_norm(
        &self,
        cols: usize,
        eps: f64,
        x: &[E],
        gamma: Option<&[E]>,
        beta: Option<&[E]>,
        y: &mut [E],
        stats: Option<&mut [E]>,
    ) {
        let rows = rows_of("layer_norm", cols, x.len());
        check("layer_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("layer_norm", "gamma", v.len(), cols));
        beta.inspect(|v| check("layer_norm", "beta", v.len(), cols));
        if let Some(stats) = &stats {
            check("layer_norm", "stats", stats.len(), 2 * rows);
        }
        self.normalise(Norm { cols, eps, centred: true }, x, gamma, beta, y, stats);
    }

    pub(crate) fn layer_norm_vjp(
        &self,
        cols: usize,
        x: &[E],
        gamma: Option<&[E]>,
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
        dbeta: Option<&mut [E]>,
    ) {
        let rows = rows_of("layer_norm_vjp", cols, x.len());
        gamma.inspect(|v| check("layer_norm_vjp", "gamma", v.len(), cols));
        check("layer_norm_vjp", "stats", stats.len(), 2 * rows);
        check("layer_norm_vjp", "dy", dy.len(), x.len());
        if let Some(dx) = &dx {
            check("layer_norm_vjp", "dx", dx.len(), x.len());
        }
        for (name, v) in [("dgamma", &dgamma), ("dbeta", &dbeta)] {
            v.as_ref().inspect(|v| check("layer_norm_vjp", name, v.len(), cols));
        }
        self.normalise_vjp(Norm { cols, eps: 0.0, centred: true }, x, gamma, stats, dy, dx, [dgamma, dbeta]);
    }

    pub(crate) fn rms_norm(
        &self,
        cols: usize,
        eps: f64,
        x: &[E],
        gamma: Option<&[E]>,
        y: &mut [E],
        stats: Option<&mut [E]>,
    ) {
        let rows = rows_of("rms_norm", cols, x.len());
        check("rms_norm", "y", y.len(), x.len());
        gamma.inspect(|v| check("rms_norm", "gamma", v.len(), cols));
        if let Some(stats) = &stats {
            check("rms_norm", "stats", stats.len(), rows);
        }
        self.normalise(Norm { cols, eps, centred: false }, x, gamma, None, y, stats);
    }

    pub(crate) fn rms_norm_vjp(
        &self,
        cols: usize,
        x: &[E],
        gamma: Option<&[E]>,
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
    ) {
        let rows = rows_of("rms_norm_vjp", cols, x.len());
        gamma.inspect(|v| check("rms_norm_vjp", "gamma", v.len(), cols));
        check("rms_norm_vjp", "stats", stats.len(), rows);
        check("rms_norm_vjp", "dy", dy.len(), x.len());
        dx.as_ref().inspect(|dx| check("rms_norm_vjp", "dx", dx.len(), x.len()));
        dgamma.as_ref().inspect(|v| check("rms_norm_vjp", "dgamma", v.len(), cols));
        self.normalise_vjp(Norm { cols, eps: 0.0, centred: false }, x, gamma, stats, dy, dx, [dgamma, None]);
    }

    fn normalise(
        &self,
        norm: Norm,
        x: &[E],
        gamma: Option<&[E]>,
        beta: Option<&[E]>,
        y: &mut [E],
        stats: Option<&mut [E]>,
    ) {
        let (isa, cols) = (self.isa, norm.cols);
        let views = (Rows(x, cols), Rows(y, cols), stats.map(|stats| Rows(stats, norm.stats())));
        par::split(x.len() / cols, rows_per_task(cols), views, &|_, (x, y, stats)| {
            run::normalise(isa, norm, x.0, gamma, beta, y.0, stats.map(|stats| stats.0))
        });
    }

    /// In pieces of rows that depend on how many there are alone, and not on threads: the parameters' gradients are summed
    /// in each of them, and then over them in their order.
    fn normalise_vjp(
        &self,
        norm: Norm,
        x: &[E],
        gamma: Option<&[E]>,
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        parameters: [Option<&mut [E]>; 2],
    ) {
        let (isa, cols, rows) = (self.isa, norm.cols, x.len() / norm.cols);
        let wanted = if parameters.iter().any(Option::is_some) { 2 * cols } else { 0 };
        if rows == 0 || wanted == 0 && dx.is_none() {
            return;
        }
        let most = rows_per_task(cols).max(rows.div_ceil(PIECES)).next_multiple_of(GROUP);
        let pieces = rows.div_ceil(most);
        let mut totals = Scratch::<f64>::new(pieces * wanted);
        totals.fill(0.0);
        let views = (
            Rows(x, most * cols),
            Rows(stats, most * norm.stats()),
            Rows(dy, most * cols),
            dx.map(|dx| Rows(dx, most * cols)),
            Rows(&mut totals[..], wanted),
        );
        par::split(pieces, 1, views, &|_, (x, stats, dy, mut dx, totals)| {
            let mut sums = Scratch::<E>::new(wanted);
            let size = most * cols;
            for i in 0..x.0.len().div_ceil(size) {
                let values = i * size..x.0.len().min((i + 1) * size);
                let stats = &stats.0[values.start / cols * norm.stats()..values.end / cols * norm.stats()];
                let dx = dx.as_mut().map(|dx| &mut dx.0[values.clone()]);
                let totals = &mut totals.0[i * wanted..(i + 1) * wanted];
                run::normalise_vjp(
                    isa,
                    norm,
                    &x.0[values.clone()],
                    gamma,
                    stats,
                    &dy.0[values],
                    dx,
                    &mut sums,
                    totals,
                );
            }
        });
        if wanted == 0 {
            return;
        }
        let (sum, others) = totals.split_at_mut(wanted);
        for totals in others.chunks_exact(wanted) {
            sum.iter_mut().zip(totals).for_each(|(sum, total)| *sum += total);
        }
        for (gradient, sum) in parameters.into_iter().zip(sum.chunks_exact(cols)) {
            for (gradient, sum) in gradient.into_iter().flatten().zip(sum) {
                *gradient += E::from_f64(*sum);
            }
        }
    }

    pub(crate) fn batch_norm_train(
        &self,
        s: &BatchNormSpec,
        x: &[E],
        gamma: &[E],
        beta: &[E],
        y: &mut [E],
        stats: &mut [E],
        running: Option<[&mut [E]; 2]>,
    ) {
        batch_norm::train(self.isa, s, x, gamma, beta, y, stats, running);
    }

    pub(crate) fn batch_norm_infer(
        &self,
        s: &BatchNormSpec,
        x: &[E],
        gamma: &[E],
        beta: &[E],
        running: [&[E]; 2],
        y: &mut [E],
    ) {
        batch_norm::infer(self.isa, s, x, gamma, beta, running, y);
    }

    pub(crate) fn batch_norm_vjp(
        &self,
        s: &BatchNormSpec,
        constant: bool,
        x: &[E],
        gamma: &[E],
        stats: &[E],
        dy: &[E],
        dx: Option<&mut [E]>,
        dgamma: Option<&mut [E]>,
        dbeta: Option<&mut [E]>,
    ) {
        batch_norm::vjp(self.isa, s, constant, x, gamma, stats, dy, dx, dgamma, dbeta);
    }

    pub(crate) fn batch_norm_stats(&self, s: &BatchNormSpec, [means, variances]: [&[E]; 2], stats: &mut [E]) {
        check("batch_norm_stats", "means", means.len(), s.channels);
        check("batch_norm_stats", "variances", variances.len(), s.channels);
        check("batch_norm_stats", "stats", stats.len(), size("batch_norm_stats", &[2, s.channels]));
        for (stat, (&mean, variance)) in stats.chunks_exact_mut(2).zip(means.iter().zip(variances)) {
            stat[0] = mean;
            stat[1] = E::from_f64(1.0 / (variance.to_f64() + s.eps).sqrt());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{assert_close, devices, gradient, on_threads, random, reals};

    const COLS: [usize; 5] = [1, 3, 16, 33, 100];

    /// Rows whose mean is a thousand times their spread, so that a one-pass variance would be noise.
    fn far_from_zero(rows: usize, cols: usize) -> Vec<f64> {
        random(1, rows * cols).iter().map(|x| f64::from((x + 1000.0) as f32)).collect()
    }

    /// γ·(x − centre)/√(spread + eps) + β, row by row, with the formulas of the definition.
    fn normalised(cols: usize, centred: bool, x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
        let row = |x: &[f64]| {
            let n = cols as f64;
            let mean = if centred { x.iter().sum::<f64>() / n } else { 0.0 };
            let spread = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let normal = x.iter().map(|x| (x - mean) / (spread + 1e-5).sqrt()).collect::<Vec<_>>();
            normal.iter().zip(gamma).zip(beta).map(|((x, g), b)| x * g + b).collect::<Vec<_>>()
        };
        x.chunks(cols).flat_map(row).collect()
    }

    fn forward<E: Real>(tolerance: f64) {
        for (device, cols) in devices::<E>().into_iter().flat_map(|d| COLS.map(|c| (d, c))) {
            let (gamma, beta, rows) = (random(2, cols), random(3, cols), 5);
            for x in [random(1, rows * cols), far_from_zero(rows, cols)] {
                let expected = normalised(cols, true, &x, &gamma, &beta);
                let (mut y, mut stats) = (vec![E::ZERO; x.len()], vec![E::ZERO; 2 * rows]);
                let (g, b) = (reals(&gamma), reals(&beta));
                device.layer_norm(cols, 1e-5, &reals(&x), Some(&g), Some(&b), &mut y, Some(&mut stats));
                assert_close(&y, &expected, tolerance, &format!("layer_norm {device:?} {cols}"));
                let means: Vec<E> = stats.iter().copied().step_by(2).collect();
                let expected: Vec<f64> =
                    x.chunks(cols).map(|x| x.iter().sum::<f64>() / cols as f64).collect();
                assert_close(&means, &expected, tolerance, "the statistics' means");
                let expected = normalised(cols, false, &x, &gamma, &vec![0.0; cols]);
                device.rms_norm(cols, 1e-5, &reals(&x), Some(&g), &mut y, Some(&mut stats[..rows]));
                assert_close(&y, &expected, tolerance, &format!("rms_norm {device:?} {cols}"));
            }
            let (x, ones, zeros) = (random(1, 2 * cols), vec![1.0; cols], vec![0.0; cols]);
            let mut y = vec![E::ZERO; 2 * cols];
            device.layer_norm(cols, 1e-5, &reals(&x), None, None, &mut y, None);
            assert_close(&y, &normalised(cols, true, &x, &ones, &zeros), tolerance, "without gamma and beta");
            device.layer_norm(cols, 1e-5, &reals(&x), None, Some(&reals(&beta)), &mut y, None);
            assert_close(&y, &normalised(cols, true, &x, &ones, &beta), tolerance, "without gamma");
        }
    }

    #[test]
    fn rows_are_normalised_even_far_from_zero() {
        forward::<f32>(1e-6);
        forward::<f64>(1e-12);
    }

    #[test]
    fn gradients_of_norms_match_finite_differences_and_parameters_add() {
        for (device, cols) in devices::<f64>().into_iter().flat_map(|d| [1, 3, 17].map(|c| (d, c))) {
            let rows = 4;
            let (x, dy) = (random(1, rows * cols), random(4, rows * cols));
            let (gamma, beta) = (random(2, cols), random(3, cols));
            let dot = |y: &[f64]| y.iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * rows]);
            let (mut dx, mut dg, mut db) = (vec![0.0; x.len()], vec![1.0; cols], vec![1.0; cols]);
            for centred in [true, false] {
                let loss =
                    |x: &[f64], gamma: &[f64], beta: &[f64]| dot(&normalised(cols, centred, x, gamma, beta));
                let zeros = vec![0.0; cols];
                let beta = if centred { &beta } else { &zeros };
                if centred {
                    device.layer_norm(cols, 1e-5, &x, Some(&gamma), Some(beta), &mut y, Some(&mut stats));
                    let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                    device.layer_norm_vjp(cols, &x, Some(&gamma), &stats, &dy, gx, gg, gb);
                    let expected: Vec<f64> =
                        gradient(beta, |beta| loss(&x, &gamma, beta)).iter().map(|g| g + 1.0).collect();
                    assert_close(&db, &expected, 1e-8, "dbeta");
                } else {
                    dg.fill(1.0);
                    device.rms_norm(cols, 1e-5, &x, Some(&gamma), &mut y, Some(&mut stats[..rows]));
                    let (gx, gg) = (Some(&mut dx[..]), Some(&mut dg[..]));
                    device.rms_norm_vjp(cols, &x, Some(&gamma), &stats[..rows], &dy, gx, gg);
                }
                let expected = gradient(&x, |x| loss(x, &gamma, beta));
                let absolute = 1e-6 * expected.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-8;
                let error: f64 = dx.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                assert!(error < absolute, "dx {cols} {centred}: {error}");
                let expected: Vec<f64> =
                    gradient(&gamma, |gamma| loss(&x, gamma, beta)).iter().map(|g| g + 1.0).collect();
                assert_close(&dg, &expected, 1e-7, "dgamma");
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (rows, cols) = (300, 200);
        let x: Vec<f32> = reals(&random(1, rows * cols));
        let gamma: Vec<f32> = reals(&random(2, cols));
        let run = |threads| {
            on_threads(threads, || {
                let device = devices::<f32>().pop().unwrap();
                let (mut y, mut stats, mut dx) = (x.clone(), vec![0.0; 2 * rows], x.clone());
                let (mut dg, mut db) = (gamma.clone(), gamma.clone());
                device.layer_norm(cols, 1e-5, &x, Some(&gamma), None, &mut y, Some(&mut stats));
                let (gx, gg, gb) = (Some(&mut dx[..]), Some(&mut dg[..]), Some(&mut db[..]));
                device.layer_norm_vjp(cols, &x, Some(&gamma), &stats, &y, gx, gg, gb);
                let mut p = x.clone();
                device.softmax(cols, &x, &mut p);
                [y, stats, dx, dg, db, p]
            })
        };
        assert!(run(1) == run(4));
    }

    #[test]
    #[should_panic(expected = "gamma has 3 values, not 4")]
    fn a_gamma_of_the_wrong_length_is_refused() {
        devices::<f32>()[0].rms_norm(4, 1e-5, &[0.0; 8], Some(&[1.0; 3]), &mut [0.0; 8], None);
    }
}
