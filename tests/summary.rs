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

#[test]
fn what_is_frozen_is_counted_apart() {
    sequential! { Tuned: [8] -> [3] = base: StopGradParams<Linear<8, 4>>, tuned: LoRALinear<4, 4, 2, 1.0>, Linear<4, 3> }
    let summary = Model::<Tuned>::init(0, 8).unwrap().summary();
    assert_eq!(
        (summary.frozen, summary.params),
        (8 * 4 + 4 + 4 * 4 + 4, 8 * 4 + 4 + 4 * 4 + 4 + 2 * 4 * 2 + 4 * 3 + 3)
    );
    assert!(summary.to_string().contains("87 parameters, 56 of them frozen, "), "{summary}");
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
    assert_eq!(paths, ["tokens", "block.norm", "block.up", "block.down", "block", "head"]);
    assert_eq!(summary.rows.iter().map(|r| r.params).sum::<usize>(), summary.params);
}

/// The table as it is printed, but for what depends on the kernels: routes and memory. `NN_BLESS=1` writes it
/// anew.
#[track_caller]
fn assert_golden(mut summary: Summary, name: &str) {
    for row in &mut summary.rows {
        (row.route, row.saved, row.scratch) = ("", Size::ZERO, Size::ZERO);
    }
    let text = summary.to_string();
    let (table, workspace) = text.rsplit_once('\n').unwrap();
    assert!(workspace.starts_with("workspace for 8 samples: ") && workspace.ends_with("iB"), "{workspace}");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("NN_BLESS").is_some() {
        std::fs::write(&path, format!("{table}\n")).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(table, golden.trim_end(), "\n{table}\nis not what {name} holds; NN_BLESS=1 writes it");
}

#[test]
fn tables_look_as_they_did() {
    assert_golden(Model::<LeNet>::init(0, 8).unwrap().summary(), "lenet.txt");
    assert_golden(Model::<Language>::init(0, 8).unwrap().summary(), "language.txt");
}

#[test]
fn what_is_in_no_field_is_the_model_s() {
    let text = Model::<Block>::init(0, 8).unwrap().summary().to_string();
    assert!(text.starts_with("Block: [16, 64] → [16, 64], "), "{text}");
    let rows: Vec<_> = text.lines().filter(|line| line.contains(" + ")).collect();
    assert!(rows.len() == 1 && rows[0].starts_with(" Block "), "{text}");
}

#[test]
fn routes_are_listed_layer_by_layer() {
    let routes = routes::<Language>();
    let rows = Model::<Language>::init(0, 8).unwrap().summary().rows;
    assert_eq!(routes.len(), rows.len());
    for (route, row) in routes.iter().zip(&rows) {
        assert_eq!((&route.path, &route.layer, route.route), (&row.path, &row.layer, row.route));
    }
    let chosen: Vec<_> = routes.iter().filter(|r| !r.route.is_empty()).map(|r| r.path.as_str()).collect();
    assert_eq!(chosen, ["block.up", "block.down", "head"]);
}
