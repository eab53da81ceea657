//! NVIDIA's libraries, cuBLASLt and cuDNN, where they are installed: large products and convolutions are theirs.
//!
//! Neither is needed. Whether one is there is asked once, and without it the kernels of this crate compute everything.
//! A call is planned the first time that its shape comes: the library's heuristic names an algorithm, which is kept as
//! long as the device, and no algorithm is taken whose sums come in an order that may change. So the same call gives
//! the same bits. A shape that a library refuses is computed by the kernels here, unless the library is forced.
//!
//! The stand-ins of the emulator follow what NVIDIA's documentation says. They show that operands, layouts and
//! descriptors are right by it, and can't show whether a library accepts a combination, or how fast it is: for this,
//! run the tests `cuda_libraries` with `NN_CUDA=gpu NN_REQUIRE_LIBRARIES=1`.

use std::sync::OnceLock;

use cudarc::driver::sys::CUstream;

use super::blas::Blas;
use super::dnn::Dnn;
use super::route::Forced;
use crate::DeviceError;

/// Bytes that an algorithm may use: what NVIDIA recommends for cuBLASLt on its largest GPUs. Calls follow one another
/// on one stream, so that one workspace does for all.
pub(super) const WORKSPACE: usize = 32 << 20;

/// Multiplications from which on a call of a library pays. Below, a kernel ends in a few microseconds whoever wrote
/// it, and those here have the activation in it. An estimate, to be measured on a GPU.
pub(super) const LEAST: usize = 1 << 20;

/// Whether a library takes a call of so many multiplications.
pub(super) fn pays(multiplications: &[usize]) -> bool {
    multiplications.iter().fold(1_usize, |all, &n| all.saturating_mul(n)) >= LEAST
}

/// Whether cuBLASLt is on this machine.
pub(super) fn has_blas() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: it looks for a library and opens it. Without it, everything else of the library's would panic.
    *PRESENT.get_or_init(|| unsafe { cudarc::cublaslt::sys::is_culib_present() })
}

/// Whether cuDNN is on this machine.
pub(super) fn has_dnn() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: as above.
    *PRESENT.get_or_init(|| unsafe { cudarc::cudnn::sys::is_culib_present() })
}

/// A call, by the plan for it. What it is called with are the addresses of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Product(usize),
    Convolution(usize),
}

/// What is there of the libraries, for one device.
#[derive(Default)]
pub(super) struct Libraries {
    pub(super) blas: Option<Blas>,
    pub(super) dnn: Option<Dnn>,
    /// `WORKSPACE` bytes, or 0 where there is no library.
    pub(super) workspace: u64,
}

impl Libraries {
    /// Those that are there, of cuBLASLt and cuDNN, where each is of use, for a device whose context is current. A library
    /// that does not start, or whose routes are not to be taken, counts as absent.
    ///
    /// # Errors
    /// A forced route takes a library that is not there.
    pub(super) fn open(forced: Forced, of_use: [bool; 2], stream: CUstream) -> Result<Self, DeviceError> {
        let missing = |route: &str, library| DeviceError::NoLibrary { route: route.to_owned(), library };
        let (blas, dnn) = (forced.blas == Some(true), forced.dnn == Some(true));
        if blas && !has_blas() {
            return Err(missing("linear=library", "cuBLASLt"));
        }
        if dnn && !has_dnn() {
            return Err(missing("conv2d=library", "cuDNN"));
        }
        let mut all = Self::default();
        if of_use[0] && forced.blas != Some(false) && has_blas() {
            match Blas::new() {
                Ok(opened) => all.blas = Some(opened),
                Err(error) if blas => return Err(failed("opening cuBLASLt", error)),
                Err(_) => {}
            }
        }
        if of_use[1] && forced.dnn != Some(false) && has_dnn() {
            all.dnn = Some(Dnn::new(stream));
        }
        Ok(all)
    }

    /// Does a planned call, on the stream that the libraries were opened for.
    pub(super) fn run(&self, call: Call, addresses: &[u64], stream: CUstream) -> Result<(), DeviceError> {
        match (call, &self.blas, &self.dnn) {
            (Call::Product(plan), Some(blas), _) => blas
                .run(plan, addresses, self.workspace, stream)
                .map_err(|error| failed("a product by cuBLASLt", error)),
            (Call::Convolution(plan), _, Some(dnn)) => dnn
                .run(plan, addresses, self.workspace)
                .map_err(|error| failed("a convolution by cuDNN", error)),
            _ => unreachable!("a call is planned by a library that is there"),
        }
    }
}

pub(super) fn failed(doing: &str, error: impl std::fmt::Display) -> DeviceError {
    DeviceError::Cuda { doing: doing.to_owned(), error: error.to_string() }
}
