//! [`Cpu`] as a [`Device`]: the kernels for `f32` and for `f64`.
//!
//! The kernels are compiled here, once for each of the two, with this crate's optimisations, and the generic
//! implementation only calls them. Were it not for [`Compiled`], every crate that uses a kernel would compile its own.

use super::isa::Available;
use super::kernels::Kernels;
use super::{Cpu, Real, conv, gemm};
use crate::Device;
use crate::ops::*;

type In<'a, E> = &'a [E];
type Out<'a, E> = &'a mut [E];

macro_rules! families {
    ($($family:ident {
        $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)?;)+
        $(const fn $route:ident($s:ident: $spec:ty) = $value:expr;)*
    })+) => {
        /// Every kernel for the element type `E`.
        pub trait Compiled<E>: Sized {
            $($(
                #[doc(hidden)]
                #[allow(clippy::too_many_arguments, reason = "those of the operation")]
                fn $name(kernels: &Kernels<E>, $($arg: $ty),*) $(-> $out)?;
            )+)+
        }
        families!(@compiled f32 $($($name($($arg: $ty),*) $(-> $out)?;)+)+);
        families!(@compiled f64 $($($name($($arg: $ty),*) $(-> $out)?;)+)+);
        $(
            impl<E: Real> $family for Cpu<E> {
                $(
                    #[inline]
                    fn $name(&self, $($arg: $ty),*) $(-> $out)? {
                        <E as Compiled<E>>::$name(&self.kernels, $($arg),*)
                    }
                )+
                $(
                    fn $route($s: &$spec) -> &'static str {
                        $value
                    }
                )*
            }
        )+
    };
    (@compiled $real:ident $($name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)+) => {
        const _: () = {
            type E = $real;
            impl Compiled<E> for $real {
                $(
                    fn $name(kernels: &Kernels<E>, $($arg: $ty),*) $(-> $out)? {
                        kernels.$name($($arg),*)
                    }
                )+
            }
        };
    };
}

families! {
    Elementwise {
        fn unary(f: Unary, x: In<'_, E>, y: Out<'_, E>);
        fn unary_vjp(f: Unary, x: In<'_, E>, y: In<'_, E>, dy: In<'_, E>, dx: Out<'_, E>);
        fn binary(f: Binary, a: In<'_, E>, b: In<'_, E>, y: Out<'_, E>);
        fn binary_vjp(
            f: Binary, a: In<'_, E>, b: In<'_, E>, dy: In<'_, E>, da: Option<Out<'_, E>>, db: Option<Out<'_, E>>
        );
        fn gated(s: &GatedSpec, x: In<'_, E>, y: Out<'_, E>);
        fn gated_vjp(s: &GatedSpec, x: In<'_, E>, dy: In<'_, E>, dx: Out<'_, E>);
        fn copy_unless(switch: In<'_, E>, x: In<'_, E>, y: Out<'_, E>);
        fn add_assign(x: In<'_, E>, y: Out<'_, E>);
        fn fill(value: f64, y: Out<'_, E>);
        fn copy(x: In<'_, E>, y: Out<'_, E>);
        fn all_finite(x: In<'_, E>) -> bool;
    }
    Linear {
        fn linear(s: &LinearSpec, x: In<'_, E>, w: In<'_, E>, b: Option<In<'_, E>>, y: Out<'_, E>);
        fn linear_vjp(
            s: &LinearSpec, x: In<'_, E>, w: In<'_, E>, b: Option<In<'_, E>>, y: In<'_, E>, dy: In<'_, E>,
            dx: Option<Out<'_, E>>, dw: Option<Out<'_, E>>, db: Option<Out<'_, E>>, scratch: Out<'_, E>
        );
        fn linear_add(s: &LinearSpec, x: In<'_, E>, w: In<'_, E>, y: Out<'_, E>);
        fn packed_linear(s: &PackedSpec, x: In<'_, E>, w: In<'_, E>, b: Option<In<'_, E>>, y: Out<'_, E>);
        fn packed_linear_vjp(s: &PackedSpec, w: In<'_, E>, dy: In<'_, E>, dx: Out<'_, E>);
        const fn linear_route(s: LinearSpec) = gemm::route(Available::best().get(), s.inputs, s.outputs, s.transposed);
    }
    Conv {
        fn conv2d(s: &Conv2dSpec, x: In<'_, E>, w: In<'_, E>, b: Option<In<'_, E>>, y: Out<'_, E>, scratch: Out<'_, E>);
        fn conv2d_vjp(
            s: &Conv2dSpec, x: In<'_, E>, w: In<'_, E>, b: Option<In<'_, E>>, y: In<'_, E>, dy: In<'_, E>,
            dx: Option<Out<'_, E>>, dw: Option<Out<'_, E>>, db: Option<Out<'_, E>>, scratch: Out<'_, E>
        );
        const fn conv2d_route(s: Conv2dSpec) = conv::Route::new(Available::best().get(), s).name();
    }
    Pool {
        fn max_pool2d(s: &Pool2dSpec, x: In<'_, E>, y: Out<'_, E>, argmax: Option<&mut [u32]>);
        fn max_pool2d_vjp(s: &Pool2dSpec, argmax: &[u32], dy: In<'_, E>, dx: Out<'_, E>);
        fn avg_pool2d(s: &Pool2dSpec, x: In<'_, E>, y: Out<'_, E>);
        fn avg_pool2d_vjp(s: &Pool2dSpec, dy: In<'_, E>, dx: Out<'_, E>);
    }
    Norm {
        fn layer_norm(
            cols: usize, eps: f64, x: In<'_, E>, gamma: Option<In<'_, E>>, beta: Option<In<'_, E>>, y: Out<'_, E>,
            stats: Option<Out<'_, E>>
        );
        fn layer_norm_vjp(
            cols: usize, x: In<'_, E>, gamma: Option<In<'_, E>>, stats: In<'_, E>, dy: In<'_, E>,
            dx: Option<Out<'_, E>>, dgamma: Option<Out<'_, E>>, dbeta: Option<Out<'_, E>>
        );
        fn rms_norm(
            cols: usize, eps: f64, x: In<'_, E>, gamma: Option<In<'_, E>>, y: Out<'_, E>, stats: Option<Out<'_, E>>
        );
        fn rms_norm_vjp(
            cols: usize, x: In<'_, E>, gamma: Option<In<'_, E>>, stats: In<'_, E>, dy: In<'_, E>,
            dx: Option<Out<'_, E>>, dgamma: Option<Out<'_, E>>
        );
        fn batch_norm_train(
            s: &BatchNormSpec, x: In<'_, E>, gamma: In<'_, E>, beta: In<'_, E>, y: Out<'_, E>, stats: Out<'_, E>,
            running: Option<[Out<'_, E>; 2]>
        );
        fn batch_norm_infer(
            s: &BatchNormSpec, x: In<'_, E>, gamma: In<'_, E>, beta: In<'_, E>, running: [In<'_, E>; 2], y: Out<'_, E>
        );
        fn batch_norm_vjp(
            s: &BatchNormSpec, constant: bool, x: In<'_, E>, gamma: In<'_, E>, stats: In<'_, E>, dy: In<'_, E>,
            dx: Option<Out<'_, E>>, dgamma: Option<Out<'_, E>>, dbeta: Option<Out<'_, E>>
        );
        fn batch_norm_stats(s: &BatchNormSpec, running: [In<'_, E>; 2], stats: Out<'_, E>);
        fn softmax(cols: usize, x: In<'_, E>, y: Out<'_, E>);
        fn softmax_vjp(cols: usize, y: In<'_, E>, dy: In<'_, E>, dx: Out<'_, E>);
        fn log_softmax(cols: usize, x: In<'_, E>, y: Out<'_, E>);
        fn log_softmax_vjp(cols: usize, y: In<'_, E>, dy: In<'_, E>, dx: Out<'_, E>);
    }
    Attention {
        fn attention(
            s: &AttentionSpec, q: In<'_, E>, k: In<'_, E>, v: In<'_, E>, mask: Option<In<'_, E>>, y: Out<'_, E>,
            lse: Option<Out<'_, E>>
        );
        fn attention_vjp(
            s: &AttentionSpec, q: In<'_, E>, k: In<'_, E>, v: In<'_, E>, mask: Option<In<'_, E>>, y: In<'_, E>,
            lse: In<'_, E>, dy: In<'_, E>, gradients: AttentionGradients<Out<'_, E>>, scratch: Out<'_, E>
        );
    }
    Layout {
        fn copy_block(rows: usize, cols: usize, x: In<'_, E>, from: Block, y: Out<'_, E>, to: Block);
        fn broadcast_rows(rows: usize, x: In<'_, E>, y: Out<'_, E>);
        fn sum_rows(rows: usize, x: In<'_, E>, y: Out<'_, E>);
        fn permute(rows: usize, s: &PermuteSpec, x: In<'_, E>, y: Out<'_, E>);
        fn sinusoids(s: &SinusoidSpec, y: Out<'_, E>);
        fn rope(s: &RopeSpec, inverse: bool, x: In<'_, E>, y: Out<'_, E>);
    }
    Table {
        fn gather(place: u32, cols: usize, table: In<'_, E>, ids: &[u32], y: Out<'_, E>) -> Option<u32>;
        fn scatter_add(cols: usize, ids: &[u32], dy: In<'_, E>, dtable: Out<'_, E>);
    }
    Random {
        fn dropout(stream: Stream, rate: f64, x: In<'_, E>, y: Out<'_, E>);
        fn hash_dropout(stream: Stream, rate: f64, x: In<'_, E>, y: Out<'_, E>);
        fn normal(stream: Stream, y: Out<'_, E>);
        fn gaussian(
            s: &GaussianSpec, mean: In<'_, E>, log_std: In<'_, E>, noise: Option<In<'_, E>>, sample: Out<'_, E>,
            log_prob: Option<Out<'_, E>>
        );
        fn gaussian_vjp(
            s: &GaussianSpec, mean: In<'_, E>, log_std: In<'_, E>, noise: Option<In<'_, E>>, dsample: In<'_, E>,
            dlog_prob: In<'_, E>, dmean: Option<Out<'_, E>>, dlog_std: Option<Out<'_, E>>
        );
    }
    Recurrent {
        fn lstm(hidden: usize, gates: Out<'_, E>, c: In<'_, E>, c_next: Out<'_, E>, h_next: Out<'_, E>);
        fn lstm_vjp(
            hidden: usize, gates: In<'_, E>, c: In<'_, E>, c_next: In<'_, E>, dh_next: In<'_, E>, dc: Out<'_, E>,
            dgates: Out<'_, E>
        );
        fn gru(hidden: usize, gates: Out<'_, E>, recurrent: In<'_, E>, h: In<'_, E>, h_next: Out<'_, E>);
        fn gru_vjp(
            hidden: usize, gates: In<'_, E>, recurrent: In<'_, E>, h: In<'_, E>, dh: Out<'_, E>, dgates: Out<'_, E>,
            drecurrent: Out<'_, E>
        );
    }
    Loss {
        fn mse(
            reduction: Reduction, x: In<'_, E>, target: In<'_, E>, dx: Option<Out<'_, E>>, value: &mut [f64]
        );
        fn cross_entropy(
            s: &CrossEntropySpec, x: In<'_, E>, target: &[u32], dx: Option<Out<'_, E>>, value: &mut [f64]
        );
    }
    Optim {
        fn sgd(s: &SgdSpec, squares: &[f64], p: Out<'_, E>, g: In<'_, E>, velocity: Out<'_, E>);
        fn adam(s: &AdamSpec, squares: &[f64], p: Out<'_, E>, g: In<'_, E>, m: Out<'_, E>, v: Out<'_, E>);
        fn sum_of_squares(x: In<'_, E>, sum: &mut [f64]);
        fn copy_wide(x: In<'_, E>, y: Out<'_, E>);
        fn clear(y: Out<'_, E>);
        fn narrow(x: In<'_, E>, y: Out<'_, E>);
        fn collect(g: Out<'_, E>, sum: Out<'_, E>);
        fn lerp(tau: f64, x: In<'_, E>, target: Out<'_, E>);
    }
}

impl<E: Real> Device for Cpu<E> {}
