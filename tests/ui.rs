//! What the compiler says of models that don't fit: one file a mistake, one message a mistake.
//!
//! To accept new messages: `TRYBUILD=overwrite cargo test --test ui`, then read each.

use std::path::Path;

/// Where trybuild's crate is, whose macros look for files beside its Cargo.toml.
fn give_headers() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is within the target folder");
    let to = target.join("tests/trybuild/nn/headers");
    std::fs::create_dir_all(&to).expect("the folder can be made");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/headers");
    for file in std::fs::read_dir(from).expect("the headers are there") {
        let file = file.expect("a file can be listed").path();
        let to = to.join(file.file_name().expect("a file has a name"));
        std::fs::copy(&file, to).expect("a file can be copied");
    }
}

#[test]
fn a_wrong_model_is_explained() {
    give_headers();
    // No passing case here: with one, trybuild would build where a check is claimed to be enough.
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
