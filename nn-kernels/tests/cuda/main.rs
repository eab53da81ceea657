//! Every operation on the GPU, or on its emulator, against the CPU.

mod attention;
mod device;

use std::sync::OnceLock;

use nn_kernels::Cuda;
use nn_kernels::cuda::CudaReal;

/// The device, if there is one: with `NN_CUDA=gpu` a real one, which must be there, or else the emulator.
pub(crate) fn cuda<E: CudaReal>() -> Option<Cuda<E>> {
    static EMULATED: OnceLock<bool> = OnceLock::new();
    let there = *EMULATED.get_or_init(|| {
        std::env::var("NN_CUDA").as_deref() == Ok("gpu") || nn_cuda_emulator::installed_or_skip()
    });
    there.then(|| Cuda::new(0).expect("a device"))
}
