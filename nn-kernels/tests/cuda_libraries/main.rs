//! Products and convolutions by cuBLASLt and cuDNN, or by their stand-ins in the emulator, against the CPU. In a
//! process of its own, for others have no libraries.
//!
//! With `NN_CUDA=gpu` the libraries are NVIDIA's, and with `NN_REQUIRE_LIBRARIES=1` they must be there. Routes are
//! forced, so that a combination which a library refuses is an error.

#[path = "../cuda/conv.rs"]
mod conv;
#[path = "../cuda/device.rs"]
mod device;
#[path = "../cuda/elementwise.rs"]
mod elementwise;
#[path = "../cuda/linear.rs"]
mod linear;
mod routes;
#[path = "../cuda/trial.rs"]
mod trial;

use std::sync::OnceLock;

use nn_kernels::cuda::CudaReal;
use nn_kernels::{Cuda, DeviceError};
pub(crate) use trial::{Case, Trial, cases, compare, random};

/// The device with its libraries, if these are there.
pub(crate) fn plain<E: CudaReal>() -> Option<Cuda<E>> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| {
        if std::env::var("NN_CUDA").as_deref() != Ok("gpu") {
            return nn_cuda_emulator::libraries_installed_or_skip();
        }
        let device = Cuda::<f32>::new(0).expect("a device");
        match device.forcing("linear=library, conv2d=library") {
            Ok(_) => true,
            Err(error @ DeviceError::NoLibrary { .. }) => {
                let required = std::env::var_os("NN_REQUIRE_LIBRARIES").is_some_and(|value| value == "1");
                assert!(!required, "{error}");
                eprintln!("skipped: {error}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    });
    there.then(|| Cuda::new(0).expect("a device"))
}

/// The same, and all products and convolutions are the libraries'.
pub(crate) fn cuda<E: CudaReal>() -> Option<Cuda<E>> {
    plain().map(|d| d.forcing("linear=library, conv2d=library").expect("the libraries"))
}
