//! What the examples share: data, progress, pictures.

#[allow(dead_code, reason = "not every example has pictures to read")]
pub(crate) mod data;
#[allow(dead_code, reason = "not every example has pictures to show")]
pub(crate) mod plot;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar for `steps` steps of training.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} steps · {per_sec} · {eta} left · {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}
