/// What can go wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device could not provide the memory asked for.
    #[error("out of memory: {bytes} bytes were asked for")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
    },
    /// An index past the end of a table, found out by [`Memory::finish`](crate::Memory::finish).
    #[error("the index {id} is past the end of a table of {rows} rows")]
    IdOutOfRange {
        /// The place of the layer in the model.
        place: u32,
        /// The index.
        id: u32,
        /// How many rows the table has.
        rows: usize,
    },
    /// `NN_ISA` names an instruction set that does not exist or that this machine lacks.
    #[error("NN_ISA={asked}: this machine offers {offered}")]
    UnknownIsa {
        /// The value of the variable.
        asked: String,
        /// What may be asked for here, separated by commas.
        offered: String,
    },
    /// `NN_ROUTE`, or [`Cpu::forcing`](crate::Cpu::forcing), names a route that does not exist.
    #[error("route `{asked}`: there is {offered}")]
    UnknownRoute {
        /// The part that is not understood.
        asked: String,
        /// What may be asked for, separated by commas.
        offered: String,
    },
    /// There is no driver for NVIDIA's GPUs on this machine.
    #[error("no CUDA driver: libcuda was not found. Install NVIDIA's driver, or take the device `Cpu`")]
    NoCudaDriver,
    /// The driver refused something: there is no such GPU, or an operation failed on it.
    #[error("CUDA, {doing}: {error}")]
    Cuda {
        /// What was being done.
        doing: String,
        /// What the driver says.
        error: String,
    },
    /// NVRTC, which compiles the kernels, is not on this machine.
    #[error(
        "no NVRTC: libnvrtc.so.13 was not found. Install it with CUDA 13, or by \
         `pip install nvidia-cuda-nvrtc==13.0.*`, and name its folder in LD_LIBRARY_PATH"
    )]
    NoNvrtc,
    /// A route was forced that takes a library which is not on this machine.
    #[error(
        "route `{route}`: {library} was not found. Install it with CUDA 13, or by `pip install nvidia-cublas \
         nvidia-cudnn-cu13`, and name its folder in LD_LIBRARY_PATH"
    )]
    NoLibrary {
        /// The route.
        route: String,
        /// The library's name.
        library: &'static str,
    },
    /// A kernel that does not compile for this GPU.
    #[error("the kernels {file} do not compile for {arch}:\n{log}")]
    Kernel {
        /// The kernels' source.
        file: String,
        /// The architecture.
        arch: String,
        /// What the compiler says.
        log: String,
    },
}
