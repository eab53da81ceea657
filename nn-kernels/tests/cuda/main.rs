//! Every operation on the GPU, or on its emulator, against the CPU.

mod attention;
mod conv;
mod decode;
mod device;
mod elementwise;
mod gemm;
mod layout;
mod libraries;
mod linear;
mod loss;
mod mlp;
mod norm;
mod optim;
mod pool;
mod random;
mod recurrent;
mod table;
mod trial;

use std::sync::OnceLock;

use nn_kernels::Cuda;
use nn_kernels::cuda::CudaReal;
pub(crate) use trial::{Case, Trial, cases, compare, random};

/// The device, if there is one: with `NN_CUDA=gpu` a real one, which must be there, or else the emulator.
pub(crate) fn cuda<E: CudaReal>() -> Option<Cuda<E>> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| {
        std::env::var("NN_CUDA").as_deref() == Ok("gpu") || nn_cuda_emulator::installed_or_skip()
    });
    // A GPU's machine may have libraries, which have tests of their own.
    there.then(|| Cuda::new(0).and_then(|d| d.forcing("linear=kernels, conv2d=kernels")).expect("a device"))
}
