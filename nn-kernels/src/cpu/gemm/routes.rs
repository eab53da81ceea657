//! Which way a product takes. Measured by `cargo run --release -p nn-bench --bin routes -- --write`, which writes this
//! file; on an AMD EPYC (Zen 3), AVX2, one thread.

/// The rows of A that a letter stands for, at most; the last is for all above, too.
pub(super) const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Elements of B, at most (the last line is for all above, too), and for each class of rows: `D`irect, `S`treamed,
/// `P`acked.
pub(super) const TABLE: [(usize, [u8; 8]); 8] = [
    (1 << 10, *b"DDDDDDDD"),
    (1 << 12, *b"DDDDDDDD"),
    (1 << 14, *b"DDDDDDDD"),
    (1 << 16, *b"SSSDDPPP"),
    (1 << 18, *b"SSSDPPPP"),
    (1 << 20, *b"SSSDPPPP"),
    (1 << 22, *b"SSSDPPPP"),
    (1 << 24, *b"SSSDPPPP"),
];
