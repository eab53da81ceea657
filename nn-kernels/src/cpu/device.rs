//! [`Cpu`] as a [`Device`]: the kernels for `f32` and for `f64`.
//!
//! The traits are implemented for these two and not for every element type, so that the kernels are compiled once,
//! here, with this crate's optimisations. Were they generic, every crate that uses them would compile its own.

use super::{Cpu, conv, gemm};
use crate::Device;
use crate::ops::*;

macro_rules! methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)?;)+) => {$(
        fn $name(&self, $($arg: $ty),*) $(-> $out)? {
            self.kernels.$name($($arg),*)
        }
    )+};
}

macro_rules! device {
    ($t:ty) => {
        const _: () = {
            type In<'a> = &'a [$t];
            type Out<'a> = &'a mut [$t];

            impl Elementwise for Cpu<$t> {
                methods! {
                    fn unary(f: Unary, x: In<'_>, y: Out<'_>);
                    fn unary_vjp(f: Unary, x: In<'_>, y: In<'_>, dy: In<'_>, dx: Out<'_>);
                    fn binary(f: Binary, a: In<'_>, b: In<'_>, y: Out<'_>);
                    fn binary_vjp(
                        f: Binary, a: In<'_>, b: In<'_>, dy: In<'_>, da: Option<Out<'_>>, db: Option<Out<'_>>
                    );
                    fn add_assign(x: In<'_>, y: Out<'_>);
                    fn fill(value: f64, y: Out<'_>);
                    fn copy(x: In<'_>, y: Out<'_>);
                    fn all_finite(x: In<'_>) -> bool;
                }
            }

            impl Linear for Cpu<$t> {
                methods! {
                    fn linear(s: &LinearSpec, x: In<'_>, w: In<'_>, b: Option<In<'_>>, y: Out<'_>);
                    fn linear_vjp(
                        s: &LinearSpec, x: In<'_>, w: In<'_>, b: Option<In<'_>>, y: In<'_>, dy: In<'_>,
                        dx: Option<Out<'_>>, dw: Option<Out<'_>>, db: Option<Out<'_>>, scratch: Out<'_>
                    );
                }
                fn linear_route(s: &LinearSpec) -> &'static str {
                    gemm::Route::new(s.inputs, s.outputs, !s.transposed).name()
                }
            }

            impl Conv for Cpu<$t> {
                methods! {
                    fn conv2d(s: &Conv2dSpec, x: In<'_>, w: In<'_>, b: Option<In<'_>>, y: Out<'_>, scratch: Out<'_>);
                    fn conv2d_vjp(
                        s: &Conv2dSpec, x: In<'_>, w: In<'_>, dy: In<'_>,
                        dx: Option<Out<'_>>, dw: Option<Out<'_>>, db: Option<Out<'_>>, scratch: Out<'_>
                    );
                }
                fn conv2d_route(s: &Conv2dSpec) -> &'static str {
                    conv::Route::new(s).name()
                }
            }

            impl Pool for Cpu<$t> {
                methods! {
                    fn max_pool2d(s: &Pool2dSpec, x: In<'_>, y: Out<'_>, argmax: Option<&mut [u32]>);
                    fn max_pool2d_vjp(s: &Pool2dSpec, argmax: &[u32], dy: In<'_>, dx: Out<'_>);
                    fn avg_pool2d(s: &Pool2dSpec, x: In<'_>, y: Out<'_>);
                    fn avg_pool2d_vjp(s: &Pool2dSpec, dy: In<'_>, dx: Out<'_>);
                }
            }

            impl Norm for Cpu<$t> {
                methods! {
                    fn layer_norm(
                        cols: usize, eps: f64, x: In<'_>, gamma: Option<In<'_>>, beta: Option<In<'_>>, y: Out<'_>,
                        stats: Option<Out<'_>>
                    );
                    fn layer_norm_vjp(
                        cols: usize, x: In<'_>, gamma: Option<In<'_>>, stats: In<'_>, dy: In<'_>,
                        dx: Option<Out<'_>>, dgamma: Option<Out<'_>>, dbeta: Option<Out<'_>>
                    );
                    fn rms_norm(
                        cols: usize, eps: f64, x: In<'_>, gamma: Option<In<'_>>, y: Out<'_>, stats: Option<Out<'_>>
                    );
                    fn rms_norm_vjp(
                        cols: usize, x: In<'_>, gamma: Option<In<'_>>, stats: In<'_>, dy: In<'_>,
                        dx: Option<Out<'_>>, dgamma: Option<Out<'_>>
                    );
                    fn batch_norm_train(
                        s: &BatchNormSpec, x: In<'_>, gamma: In<'_>, beta: In<'_>, y: Out<'_>, stats: Out<'_>,
                        running: Option<Out<'_>>
                    );
                    fn batch_norm_infer(
                        s: &BatchNormSpec, x: In<'_>, gamma: In<'_>, beta: In<'_>, running: In<'_>, y: Out<'_>
                    );
                    fn batch_norm_vjp(
                        s: &BatchNormSpec, constant: bool, x: In<'_>, gamma: In<'_>, stats: In<'_>, dy: In<'_>,
                        dx: Option<Out<'_>>, dgamma: Option<Out<'_>>, dbeta: Option<Out<'_>>
                    );
                    fn batch_norm_stats(s: &BatchNormSpec, running: In<'_>, stats: Out<'_>);
                    fn softmax(cols: usize, x: In<'_>, y: Out<'_>);
                    fn softmax_vjp(cols: usize, y: In<'_>, dy: In<'_>, dx: Out<'_>);
                    fn log_softmax(cols: usize, x: In<'_>, y: Out<'_>);
                    fn log_softmax_vjp(cols: usize, y: In<'_>, dy: In<'_>, dx: Out<'_>);
                }
            }

            impl Layout for Cpu<$t> {
                methods! {
                    fn copy_block(rows: usize, cols: usize, x: In<'_>, from: Block, y: Out<'_>, to: Block);
                    fn broadcast_rows(rows: usize, x: In<'_>, y: Out<'_>);
                    fn sum_rows(rows: usize, x: In<'_>, y: Out<'_>);
                    fn permute(rows: usize, s: &PermuteSpec, x: In<'_>, y: Out<'_>);
                    fn rope(s: &RopeSpec, inverse: bool, x: In<'_>, y: Out<'_>);
                }
            }

            impl Table for Cpu<$t> {
                methods! {
                    fn gather(cols: usize, table: In<'_>, ids: &[u32], y: Out<'_>) -> Option<u32>;
                    fn scatter_add(cols: usize, ids: &[u32], dy: In<'_>, dtable: Out<'_>);
                }
            }

            impl Random for Cpu<$t> {
                methods! {
                    fn dropout(stream: Stream, rate: f64, x: In<'_>, y: Out<'_>);
                }
            }

            impl Loss for Cpu<$t> {
                methods! {
                    fn mse(reduction: Reduction, x: In<'_>, target: In<'_>, dx: Option<Out<'_>>) -> f64;
                    fn cross_entropy(
                        reduction: Reduction, classes: usize, smoothing: f64, ignore: Option<u32>, x: In<'_>,
                        target: &[u32], dx: Option<Out<'_>>
                    ) -> Result<f64, u32>;
                }
            }

            impl Optim for Cpu<$t> {
                methods! {
                    fn sgd(s: &SgdSpec, p: Out<'_>, g: In<'_>, velocity: Out<'_>);
                    fn adam(s: &AdamSpec, p: Out<'_>, g: In<'_>, m: Out<'_>, v: Out<'_>);
                    fn sum_of_squares(x: In<'_>) -> f64;
                    fn lerp(tau: f64, x: In<'_>, target: Out<'_>);
                }
            }

            impl Device for Cpu<$t> {}
        };
    };
}
device!(f32);
device!(f64);
