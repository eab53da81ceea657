//! What `summary()` and `routes()` print. A change shows here, to be looked at.

use nn::*;

sequential! {
    /// LeNet for 28×28 digits.
    LeNet: [1, 28, 28] -> [10] =
        conv1: Conv2D<1, 16, 3, 1, 1>, ReLU, MaxPool2D<2>,
        conv2: Conv2D<16, 32, 3, 1, 1>, BatchNorm2D<32>, ReLU, MaxPool2D<2>,
        Flatten, Linear<1568, 10>
}

#[module]
struct Block {
    norm: LayerNorm<64>,
    up: LinearGELUTanh<64, 256>,
    down: Linear<256, 64>,
}
#[module]
impl Block {
    fn forward(&self, x: T![16, 64]) -> T![16, 64] {
        x + self.down(self.up(self.norm(x)))
    }
}

#[module]
struct Language {
    tokens: Embedding<1000, 64>,
    block: Block,
    #[tied = "tokens.weight"]
    head: TiedLinear<64, 1000>,
}
#[module]
impl Language {
    fn forward(&self, ids: Ids<T![16]>) -> T![16, 1000] {
        self.head(self.block(self.tokens(ids)))
    }
}

/// Columns that don't depend on the kernels: field, layer, output, parameters, multiply-adds.
fn columns(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| line.contains('┆') || line.contains("  "));
    lines.map(|line| line.split(['┆', '│']).map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn counts_are_right() {
    let summary = Model::<LeNet>::init(0, 8).unwrap().summary();
    let conv1 = 16 * 9 + 16;
    let conv2 = 32 * 16 * 9 + 32;
    let (norm, fc) = (64, 10 * 1568 + 10);
    assert_eq!(summary.params, conv1 + conv2 + norm + fc);
    let macs = 28 * 28 * 16 * 9 + 14 * 14 * 32 * 16 * 9 + 1568 * 10;
    assert_eq!(summary.macs, macs);
    let rows = &summary.rows;
    assert_eq!(rows.iter().map(|r| r.params).sum::<usize>(), summary.params);
    assert_eq!(rows.iter().map(|r| r.macs).sum::<usize>(), macs);
    assert_eq!(rows.len(), 9);

    // A shared table counts once.
    let summary = Model::<Language>::init(0, 8).unwrap().summary();
    assert_eq!(summary.params, 64_000 + 128 + 64 * 256 + 256 + 256 * 64 + 64);
    assert_eq!(summary.macs, 16 * (2 * 64 * 256 + 64 * 1000));
    let paths: Vec<_> = summary.rows.iter().map(|r| r.path.as_str()).collect();
    assert_eq!(paths[..5], ["tokens", "block.norm", "block.up", "block.down", "block.+"][..5].to_vec());
}

#[test]
fn the_table_looks_like_this() {
    let summary = Model::<LeNet>::init(0, 8).unwrap().summary();
    println!("{summary}");
    println!("{:?}", columns(&summary.to_string()));
    println!("{}", Model::<Language>::init(0, 8).unwrap().summary());
    println!("{:?}", routes::<Language>());
    panic!("to be blessed");
}
