//! What the compiler says of models that don't fit: one file a mistake, one message a mistake.
//!
//! To accept new messages: `TRYBUILD=overwrite cargo test --test ui`, then read each.

#[test]
fn a_wrong_model_is_explained() {
    // No passing case here: with one, trybuild would build where a check is claimed to be enough.
    trybuild::TestCases::new().compile_fail("tests/ui/fail/*.rs");
}
