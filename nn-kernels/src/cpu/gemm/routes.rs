//! Which way a product takes. Measured by `cargo run --release -p nn-bench --bin routes -- --write`, which writes this
//! file; on AMD EPYC (avx2), one thread.

use super::ceil_log2;

/// The column of the table for so many rows of A: up to 1, 2, 4 and so on, and the last for all above.
pub(super) const fn class(rows: usize) -> usize {
    let class = ceil_log2(rows);
    if class < 8 { class } else { 7 }
}

/// The line of the table for a B of so many elements: up to 2^10, 2^12 and so on, and the last for all above.
pub(super) const fn line(size: usize) -> usize {
    let line = ceil_log2(size).saturating_sub(9) / 2;
    if line < 8 { line } else { 7 }
}

/// By size of B and rows of A: `D`irect, `S`treamed, `P`acked.
pub(super) const TABLE: [[u8; 8]; 8] = [
    *b"DDDDDDDD",
    *b"DDDDDDDD",
    *b"DDDDDDDD",
    *b"DDDDDDPP",
    *b"DDDDDPPP",
    *b"DSSSPPPP",
    *b"SSSSPPPP",
    *b"SSSSPPPP",
];
