//! Layers, losses and optimisers against the fixtures: see README.md beside this file.

mod fixture;
mod layers;
mod losses;
mod nets;
mod optimisers;

use std::collections::BTreeSet;

/// Fixtures that no test reads, and why.
const UNREAD: &[(&str, &str)] = &[
    ("clip_grad_value", "gradients are clipped by their norm alone"),
    ("conv1d", "there is no such layer"),
    ("conv1d_stride2_dilation2", "there is no such layer"),
    ("conv2d_rect", "kernels are square"),
    ("global_avg_pool2d", "there is no such layer, and windows are square"),
    ("schedule_one_cycle", "there is no such schedule"),
];

#[test]
fn every_fixture_is_read_or_it_is_said_why_not() {
    let there: BTreeSet<String> = fixture::names().collect();
    let read = [layers::READ, losses::READ, nets::READ, optimisers::READ].concat();
    let mut known = BTreeSet::new();
    for name in read.iter().copied().chain(UNREAD.iter().map(|(name, _)| *name)) {
        assert!(known.insert(name.to_owned()), "`{name}` is listed twice");
    }
    let missing: Vec<_> = known.difference(&there).collect();
    let unread: Vec<_> = there.difference(&known).collect();
    assert!(missing.is_empty(), "there is no fixture for {missing:?}");
    assert!(unread.is_empty(), "no test reads {unread:?}: add a case, or a reason to UNREAD");
}
