//! A model that does not fit is found by `cargo check`: nothing has to be built or run.

use std::path::Path;
use std::process::Command;

const MODEL: &str = "
use nn::{Linear, ReLU, T, module, sequential};

#[module]
pub struct Block<const D: usize> {
    up: Linear<D, { 4 * D }>,
    down: Linear<{ 2 * D }, D>,
}

#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        x + self.down(ReLU(self.up(x)))
    }
}

sequential! {
    pub Net: [784] -> [10] = Linear<784, 64>, Linear<63, 32>, ReLU, Linear<31, 11>
}

sequential! {
    pub Other: [784] -> [64] = Linear<784, 64>, Block<64>
}
";

#[test]
fn check_alone_finds_every_fault() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let krate = tempfile::tempdir_in(scratch).expect("a folder for the crate");
    let manifest = format!(
        "[package]\nname = \"wrong-model\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [dependencies]\nnn = {{ path = {:?}, default-features = false }}\n[workspace]\n",
        root.display().to_string()
    );
    let write = |name: &str, text: &str| {
        std::fs::write(krate.path().join(name), text).expect("a file can be written")
    };
    std::fs::create_dir(krate.path().join("src")).expect("a folder can be made");
    write("Cargo.toml", &manifest);
    write("src/lib.rs", MODEL);
    std::fs::copy(root.join("Cargo.lock"), krate.path().join("Cargo.lock")).expect("the lock file is there");

    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet", "--message-format=short"])
        .current_dir(krate.path())
        .env("CARGO_TARGET_DIR", scratch.join("check"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it was accepted:\n{text}");
    for fault in [
        "src/lib.rs:18:47: error[E0080]: evaluation panicked: shape mismatch: `Linear<63, 32>` takes [.., 63], but it is given [64] by `Linear`",
        "src/lib.rs:18:69: error[E0080]: evaluation panicked: shape mismatch: `Linear<31, 11>` takes [.., 31], but it is given [32] by `ReLU`",
        "src/lib.rs:18:23: error[E0080]: evaluation panicked: shape mismatch: `Net` declares the output [10], but `Linear` gives [11]",
        "src/lib.rs:22:49: error[E0080]: evaluation panicked: shape mismatch: `Linear<128, 64>` takes [.., 128], but it is given [256] by `ReLU`, at `1.down`",
    ] {
        assert!(text.contains(fault), "missing: {fault}\nin:\n{text}");
    }
    assert_eq!(text.matches("error[").count(), 4, "one message a fault:\n{text}");
}
