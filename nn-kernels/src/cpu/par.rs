//! Work on several threads: a call's views are cut into pieces, each piece is a call of the same kernel.
//!
//! Pieces never share an output and never split a sum, so results do not depend on the number of threads.

/// Elements that a task of an elementwise kernel should have at least. Waking a thread costs some
/// microseconds, and so does passing over this many elements.
pub(crate) const GRAIN: usize = 32 * 1024;

/// Rows of `cols` elements that make up a task of about [`GRAIN`] elements.
pub(crate) const fn rows_per_task(cols: usize) -> usize {
    if cols >= GRAIN { 1 } else { GRAIN / if cols == 0 { 1 } else { cols } }
}

/// Views that can be cut in two at a row.
pub(crate) trait Piece: Sized + Send {
    /// The first `rows` rows, and the rest.
    fn cut(self, rows: usize) -> (Self, Self);
}

impl<T: Sync> Piece for &[T] {
    fn cut(self, rows: usize) -> (Self, Self) {
        self.split_at(rows)
    }
}

impl<T: Send> Piece for &mut [T] {
    fn cut(self, rows: usize) -> (Self, Self) {
        self.split_at_mut(rows)
    }
}

/// A view of rows of so many elements.
pub(crate) struct Rows<V>(pub(crate) V, pub(crate) usize);

impl<V: Piece> Piece for Rows<V> {
    fn cut(self, rows: usize) -> (Self, Self) {
        let (head, tail) = self.0.cut(rows * self.1);
        (Self(head, self.1), Self(tail, self.1))
    }
}

impl<P: Piece> Piece for Option<P> {
    fn cut(self, rows: usize) -> (Self, Self) {
        match self.map(|piece| piece.cut(rows)) {
            Some((head, tail)) => (Some(head), Some(tail)),
            None => (None, None),
        }
    }
}

macro_rules! tuples {
    ($($($name:ident)+;)+) => {$(
        impl<$($name: Piece),+> Piece for ($($name,)+) {
            fn cut(self, rows: usize) -> (Self, Self) {
                #[allow(non_snake_case, reason = "a variable for each type")]
                let ($($name,)+) = self;
                $(
                    #[allow(non_snake_case, reason = "a variable for each type")]
                    let $name = $name.cut(rows);
                )+
                (($($name.0,)+), ($($name.1,)+))
            }
        }
    )+};
}
tuples! {
    A B;
    A B C;
    A B C D;
    A B C D E;
}

/// Calls `f` with the number of its first row and a piece, for pieces of about `grain` rows that together
/// make up `piece` with its `rows` rows.
pub(crate) fn split<P: Piece>(rows: usize, grain: usize, piece: P, f: &(impl Fn(usize, P) + Sync)) {
    if rows > grain && threads() > 1 {
        halve(0, rows, grain.max(1), piece, f);
    } else {
        f(0, piece);
    }
}

fn halve<P: Piece>(first: usize, rows: usize, grain: usize, piece: P, f: &(impl Fn(usize, P) + Sync)) {
    if rows <= grain {
        return f(first, piece);
    }
    let half = rows / 2;
    let (head, tail) = piece.cut(half);
    join(|| halve(first, half, grain, head, f), || halve(first + half, rows - half, grain, tail, f));
}

/// The sum of `f` over pieces of about `grain` rows. Where `rows` is cut and in which order the sums are added
/// depends on `rows` and `grain` alone.
pub(crate) fn sum<P: Piece>(rows: usize, grain: usize, piece: P, f: &(impl Fn(P) -> f64 + Sync)) -> f64 {
    if rows <= grain.max(1) {
        return f(piece);
    }
    let half = rows / 2;
    let (head, tail) = piece.cut(half);
    let (a, b) = join(|| sum(half, grain, head, f), || sum(rows - half, grain, tail, f));
    a + b
}

#[cfg(feature = "threads")]
pub(crate) fn threads() -> usize {
    rayon::current_num_threads()
}

#[cfg(not(feature = "threads"))]
pub(crate) const fn threads() -> usize {
    1
}

/// Runs `f` on every thread of the pool that this thread belongs to, or here.
pub(crate) fn on_every_thread(f: impl Fn() + Sync) {
    #[cfg(feature = "threads")]
    if rayon::current_thread_index().is_some() {
        rayon::broadcast(|_| f());
        return;
    }
    f();
}

/// Runs both, on two threads if there is one to spare.
pub(crate) fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    let (mut a, mut b) = (Err(Some(a)), Err(Some(b)));
    join_dyn(&mut || run(&mut a), &mut || run(&mut b));
    match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        _ => unreachable!("both have run"),
    }
}

/// Puts a function's result in its place.
fn run<R, F: FnOnce() -> R>(slot: &mut Result<R, Option<F>>) {
    if let Err(f) = slot
        && let Some(f) = f.take()
    {
        *slot = Ok(f());
    }
}

/// The one place that the thread pool is compiled for: it is too much code to have it for each kernel.
fn join_dyn(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    #[cfg(feature = "threads")]
    rayon::join(a, b);
    #[cfg(not(feature = "threads"))]
    {
        a();
        b();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_with_its_number() {
        for rows in [0, 1, 7, 64, 1000] {
            let mut seen = vec![0; rows * 3];
            split(rows, 10, Rows(&mut seen[..], 3), &|first, Rows(piece, cols)| {
                for (r, row) in piece.chunks_mut(cols).enumerate() {
                    row.iter_mut().for_each(|v| *v += first + r + 1);
                }
            });
            let expected: Vec<_> = (0..rows * 3).map(|i| i / 3 + 1).collect();
            assert_eq!(seen, expected);
        }
    }
}
