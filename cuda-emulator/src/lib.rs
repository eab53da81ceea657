//! Runs CUDA kernels on the CPU, so that code for a GPU can be tested without one.
//!
//! [`install`] puts stand-ins for libcuda and libnvrtc in this process, where cudarc then finds them. Everything from
//! there on is the code that runs on a GPU: source to NVRTC, module, launch, graph. The stand-in compiler is g++, and
//! each thread of a kernel is a fiber. What a GPU would leave undefined is reported on stderr and ends in the error
//! that a driver gives for it, or in NaN:
//!
//! * reads and writes outside a buffer or an array, and addresses that are not aligned for their type;
//! * shared and device memory that nobody has written (it is NaN);
//! * a missing `__syncthreads`, or a missing wait for `cp.async` (the data is not there yet);
//! * a barrier that only some threads reach, or that they reach in different places; a deadlock;
//! * a shuffle, vote or matrix product for which lanes are missing.
//!
//! A thread runs until it has to wait, so a race shows only if the order of threads brings it out: run tests once
//! more with `NN_EMU_ORDER=rev` (blocks and their threads from last to first) or `NN_EMU_ORDER=rand:SEED`. Of the
//! order of memory operations, bank conflicts and speed the emulator knows nothing, threads that wait for another by
//! reading a flag never end, and what inline PTX means is only what the header around it says. A `__device__`
//! variable without a value is taken for shared memory.
//!
//! A kernel is followed by `NN_KERNEL(name)` of `device.cuh`, or its module does not have it. Its threads that call
//! `__syncthreads` must all be there: on the emulator a thread that has left is missing at every later barrier.
//!
//! [`install_libraries`] adds stand-ins for libcublasLt and libcudnn.
//!
//! | variable | meaning |
//! |---|---|
//! | `NN_EMU_ORDER` | `fwd`, `rev` or `rand:SEED`: the order in which threads run |
//! | `NN_REQUIRE_EMULATOR` | `1`: a test without the emulator fails, where it would be skipped |
//! | `NN_EMU_CACHE` | where the compiled stand-ins and kernels are kept |
//! | `NN_EMU_CXX`, `NN_EMU_CXXFLAGS` | the compiler, and further options for kernels |
//!
//! ```no_run
//! nn_cuda_emulator::install()?;
//! // From here on `cudarc::driver::CudaContext::new(0)` gives the emulator.
//! # Ok::<(), nn_cuda_emulator::Missing>(())
//! ```

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod build;

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Why there is no emulator here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It runs on Linux on x86-64 alone.
    Platform,
    /// The C++ compiler could not be started.
    Compiler {
        /// Its name.
        name: String,
        /// What the system said.
        reason: String,
    },
    /// The C++ compiler could not compile the emulator.
    Compilation {
        /// What the compiler said.
        log: String,
    },
    /// The folder for what is compiled can't be used.
    Folder {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The compiled libraries could not be loaded, or another libcuda was loaded before them.
    Loading {
        /// What the loader said.
        reason: String,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Platform => write!(f, "the CUDA emulator runs on Linux on x86-64 alone"),
            Self::Compiler { name, reason } => write!(
                f,
                "the CUDA emulator needs a C++ compiler, but `{name}` does not start ({reason}): install g++, \
                 or name a compiler in NN_EMU_CXX"
            ),
            Self::Compilation { log } => {
                write!(f, "the CUDA emulator does not compile, g++ 10 or later is needed: {log}")
            }
            Self::Folder { path, reason } => write!(
                f,
                "the CUDA emulator can't use {} ({reason}): name another folder in NN_EMU_CACHE",
                path.display()
            ),
            Self::Loading { reason } => write!(f, "the CUDA emulator could not be loaded: {reason}"),
        }
    }
}

impl std::error::Error for Missing {}

/// Makes this process find the emulator as libcuda and libnvrtc.
///
/// Compiles it at first use, a few seconds, into a folder of this user that all processes share: `NN_EMU_CACHE`, or
/// one in the folder for temporary files. Call it before anything that loads libcuda; calls after the first one
/// repeat its answer.
///
/// # Errors
///
/// Says what is missing, and what to do about it.
pub fn install() -> Result<(), Missing> {
    static ANSWER: OnceLock<Result<(), Missing>> = OnceLock::new();
    ANSWER.get_or_init(install_once).clone()
}

/// [`install`], and stand-ins for libcublasLt and libcudnn, as programs without them are to be tested, too.
///
/// They have the products and convolutions of single precision that NVIDIA documents, but can't show which of them the
/// libraries themselves accept. Call it before anything that looks for the libraries.
///
/// # Errors
///
/// Says what is missing, and what to do about it.
pub fn install_libraries() -> Result<(), Missing> {
    static ANSWER: OnceLock<Result<(), Missing>> = OnceLock::new();
    ANSWER.get_or_init(|| install().and_then(|()| install_libraries_once())).clone()
}

/// For tests: how often this process called a function of the stand-ins for libraries that computes something or asks
/// for an algorithm, such as `cublasLtMatmul`. None if there is no emulator in it.
pub fn calls(function: &str) -> Option<u64> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return build::calls(function);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    {
        let _ = function;
        None
    }
}

/// For tests: whether [`install`] worked. If it didn't, says that the test is skipped.
///
/// # Panics
///
/// If it didn't and `NN_REQUIRE_EMULATOR=1`.
pub fn installed_or_skip() -> bool {
    or_skip(install())
}

/// The same of [`install_libraries`].
///
/// # Panics
///
/// If it didn't and `NN_REQUIRE_EMULATOR=1`.
pub fn libraries_installed_or_skip() -> bool {
    or_skip(install_libraries())
}

fn or_skip(installed: Result<(), Missing>) -> bool {
    let Err(missing) = installed else { return true };
    if std::env::var_os("NN_REQUIRE_EMULATOR").is_some_and(|value| value == "1") {
        panic!("{missing}");
    }
    eprintln!("skipped: {missing}");
    false
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn install_once() -> Result<(), Missing> {
    build::load(&build::build()?)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn install_libraries_once() -> Result<(), Missing> {
    build::load_libraries(&build::build()?)
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn install_libraries_once() -> Result<(), Missing> {
    Err(Missing::Platform)
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn install_once() -> Result<(), Missing> {
    Err(Missing::Platform)
}
