use nn::{LayerNorm, Linear, LinearGELUTanh, T, module};

use crate::layers::{Options, check};

/// The fixtures read here.
pub(crate) const READ: &[&str] = &["net_residual_mlp"];

#[module]
struct ResidualMlp {
    ln: LayerNorm<6>,
    up: LinearGELUTanh<6, 16>,
    down: Linear<16, 6>,
}
#[module]
impl ResidualMlp {
    fn forward(&self, x: T![4, 6]) -> T![4, 6] {
        x + self.down(self.up(self.ln(x)))
    }
}

#[test]
fn net_residual_mlp() {
    let options = Options { terms: 16, ..Options::default() };
    check::<f64, ResidualMlp, T![4, 6]>("net_residual_mlp", &options);
    check::<f32, ResidualMlp, T![4, 6]>("net_residual_mlp", &options);
}
