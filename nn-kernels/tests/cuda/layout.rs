use nn_kernels::ops::{Block, PermuteSpec, RopeSpec, SinusoidSpec};

use crate::cases;

cases! {
    blocks_are_copied_and_rows_repeated_and_summed within 1e-6 |t| {
        for (rows, cols) in [(1, 1), (3, 5), (70, 33)] {
            let (x, mut y) = (t.random(1, rows * (cols + 4)), t.random(2, rows * (cols + 2)));
            let (from, to) = (Block { offset: 3, stride: cols + 4 }, Block { offset: 1, stride: cols + 2 });
            t.d.copy_block(rows, cols, D::view(&x), from, D::view_mut(&mut y), to);
            t.keep_elements("block", &y);
            let (row, mut all, mut sums) = (t.random(3, cols), t.room(rows * cols), t.random(4, cols));
            t.d.broadcast_rows(rows, D::view(&row), D::view_mut(&mut all));
            t.keep_elements("broadcast", &all);
            let x = t.random(5, rows * cols);
            t.d.sum_rows(rows, D::view(&x), D::view_mut(&mut sums));
            t.keep_elements("sums", &sums);
        }
    }

    axes_are_reordered within 1e-6 |t| {
        let specs = [
            PermuteSpec { rank: 1, dims: [5, 1, 1, 1, 1, 1], axes: [0, 1, 2, 3, 4, 5] },
            PermuteSpec { rank: 2, dims: [3, 4, 1, 1, 1, 1], axes: [1, 0, 2, 3, 4, 5] },
            PermuteSpec { rank: 3, dims: [3, 1, 5, 1, 1, 1], axes: [2, 0, 1, 3, 4, 5] },
            PermuteSpec { rank: 6, dims: [2, 3, 1, 4, 2, 3], axes: [3, 5, 0, 2, 4, 1] },
        ];
        for (s, rows) in specs.into_iter().flat_map(|s| [(s, 1), (s, 3)]) {
            let n = rows * s.dims[..s.rank].iter().product::<usize>();
            let (x, mut y) = (t.random(1, n), t.room(n));
            t.d.permute(rows, &s, D::view(&x), D::view_mut(&mut y));
            t.keep_elements(format!("{s:?}"), &y);
            t.d.permute(rows, &s.inverse(), D::view(&y), D::view_mut(&mut { t.room(n) }));
        }
    }

    positions_turn_pairs within 1e-6 |t| {
        for (interleaved, inverse) in [(false, false), (true, false), (false, true)] {
            let shapes = [(1, 1, 0, 1, 2, 2), (6, 3, 5, 2, 8, 8), (4, 4, 0, 3, 7, 4)];
            for (rows, seq, offset, heads, dim, rotary) in shapes {
                let s = RopeSpec { rows, seq, offset, heads, dim, rotary, theta: 1e4, interleaved };
                let n = rows * heads * dim;
                let (x, mut y) = (t.random(1, n), t.room(n));
                t.d.rope(&s, inverse, D::view(&x), D::view_mut(&mut y));
                t.keep_elements(format!("{s:?} {inverse}"), &y);
            }
        }
        let s = SinusoidSpec { rows: 5, first: 3, dim: 6, theta: 1e4 };
        let mut y = t.room(30);
        t.d.sinusoids(&s, D::view_mut(&mut y));
        t.keep_elements("sinusoids", &y);
    }
}
