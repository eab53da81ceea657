//! Which way a product takes: measured by `cargo run --release -p nn-bench --bin routes -- --write`, which writes the
//! table of the instruction set it runs with.

use super::ceil_log2;
use crate::Isa;

/// The column of a table for so many rows of A: up to 1, 2, 4 and so on, and the last for all above.
pub(super) const fn class(rows: usize) -> usize {
    let class = ceil_log2(rows);
    if class < 8 { class } else { 7 }
}

/// The line of a table for a B of so many elements: up to 2^10, 2^12 and so on, and the last for all above.
pub(super) const fn line(size: usize) -> usize {
    let line = ceil_log2(size).saturating_sub(9) / 2;
    if line < 8 { line } else { 7 }
}

/// By size of B and rows of A: `D`irect, `S`treamed, `P`acked.
pub(super) type Table = [[u8; 8]; 8];

/// An instruction set's.
pub(super) const fn table(isa: Isa) -> &'static Table {
    match isa {
        Isa::Avx512 => &AVX512,
        _ => &AVX2,
    }
}

/// On Intel Xeon, one thread.
const AVX512: Table = [
    *b"DDDDDDDD",
    *b"DDDDDDDD",
    *b"DDDDDDDP",
    *b"DDDDDDDD",
    *b"DDDDDDPP",
    *b"SSSDDPPP",
    *b"SSDDPPPP",
    *b"SSSPPPPP",
];

/// On AMD EPYC, one thread.
const AVX2: Table = [
    *b"DDDDDDDD",
    *b"DDDDDDDD",
    *b"DDDDDDDD",
    *b"DDDDDDPP",
    *b"DDDDDPPP",
    *b"DSSSPPPP",
    *b"SSSSPPPP",
    *b"SSSSPPPP",
];
