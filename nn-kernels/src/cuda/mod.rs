//! NVIDIA's GPUs.
//!
//! Each file holds the operations of one family, and its kernels are in `kernels/`, in CUDA C++. NVRTC compiles a
//! file for the GPU at hand when one of its kernels is first asked for; what it made is kept in memory and on disk.
//! Shapes are arguments of kernels and not constants, so that a model compiles each file once.
//!
//! Large products of `f32` and `bf16`, and convolutions of `f32`, go to NVIDIA's cuBLASLt and cuDNN where they are
//! installed (`libraries`).
//!
//! Operations are recorded (`launch`) and submitted one by one, or as a whole by
//! [`Memory::together`](crate::Memory::together): a list of launches that comes a second time is made a CUDA graph,
//! and from then on replayed. Numbers that change from step to step, such as a learning rate or a token's position, are
//! no part of it: kernels read them from the device's memory.
//!
//! Small dense layers that follow one another are one launch (`mlp`), however the operations came to be recorded.
//!
//! All sums are in an order that depends on sizes alone, and there are no atomic additions: the same call gives the
//! same bits. In a library's product the order may also depend on how operands are aligned.
//!
//! A new kernel is a function in a `.cu` file, followed by `NN_KERNEL(name)`; the file is named in `compile`'s list,
//! with the sets of constants that it is compiled with. An operation checks sizes as the CPU does, and then records:
//! `self.record().launch(Kernel::new(File::Norm, "softmax"), grid).arg(x).arg(&y).done()`, with the kernel's
//! parameters in their order. What one launch hands to the next lies in `Record::scratch`; what changes from step to
//! step is a `Live` argument.
//!
//! Variables: `NN_CUDA_DEVICE`, the GPU that [`Open::open`] takes; `NN_CUDA_GRAPH=0`, no graphs; `NN_CUDA_CACHE`, the
//! folder that compiled kernels are kept in; `NN_CUDA_TF32=0`, products of `f32` as [`Cuda::full_precision`] has them;
//! `NN_CUDA_ROUTE`, routes to take, as [`Cuda::forcing`] has them.

#![allow(clippy::too_many_arguments, reason = "one for each operand, as in the traits")]

mod blas;
mod compile;
mod dnn;
mod launch;
mod libraries;
mod memory;
mod route;

mod attention;
mod batch_norm;
mod conv;
mod elementwise;
mod layout;
mod linear;
mod loss;
mod mlp;
mod norm;
mod optim;
mod packed;
mod pool;
mod random;
mod recurrent;
mod sums;
mod table;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::{CudaContext, result, sys};

use crate::{Device, DeviceError, Float, Open};
use compile::Compiler;
#[doc(hidden)]
pub use compile::{Compiled, compile_all};
use launch::{Core, Record, driver};
pub use memory::{Buffer, View, ViewMut};
use route::{Forced, Form};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::bf16 {}
}

/// The element types of [`Cuda`]: `f32`, `bf16`, and `f64` for arithmetic that is to be held against another device's. No
/// others can be added from outside.
pub trait CudaReal: Float + sealed::Sealed {
    /// What is computed with, and what must not be rounded to `Self`.
    type Wide: CudaReal;
    /// Its name in kernels.
    #[doc(hidden)]
    const NAME: &'static str;
    /// Whether it is single precision.
    #[doc(hidden)]
    const SINGLE: bool = false;
    /// Whether it is bfloat16.
    #[doc(hidden)]
    const BF16: bool = false;
}

impl CudaReal for f32 {
    type Wide = Self;
    const NAME: &'static str = "float";
    const SINGLE: bool = true;
}

impl CudaReal for f64 {
    type Wide = Self;
    const NAME: &'static str = "double";
}

impl CudaReal for half::bf16 {
    type Wide = f32;
    const NAME: &'static str = "bf16";
    const BF16: bool = true;
}

/// An NVIDIA GPU, computing with elements `E`: `f32`, `f64`, or [`bf16`](half::bf16) with master weights in `f32`. Clones
/// are handles of the same one.
///
/// In `bf16`, activations, their gradients, and parameters as layers read them take half the memory. What an operation gives
/// is computed in single precision, and rounded. Master weights, sums of gradients over batches, moments and statistics are
/// kept in single precision, as are checkpoints; what the host gives and is given is `f32`. Convolutions take neither tensor
/// cores nor cuDNN.
///
/// Memory belongs to the handle that allocated it and to its clones: others work beside it, and do not wait for what
/// is still being written.
pub struct Cuda<E> {
    core: Arc<Core>,
    /// Whether products of `f32` may be of numbers rounded to TF32.
    tf32: bool,
    /// Whether products of bfloat16 may be computed on tensor cores.
    tensor_cores: bool,
    /// Bytes of shared memory that a block may have.
    shared: usize,
    element: PhantomData<fn() -> E>,
}

impl<E> Clone for Cuda<E> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), element: PhantomData, ..*self }
    }
}

impl<E> std::fmt::Debug for Cuda<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.core.context.name().unwrap_or_default();
        write!(f, "Cuda<{}>({}: {name})", std::any::type_name::<E>(), self.core.context.ordinal())
    }
}

impl<E: CudaReal> Cuda<E> {
    /// The GPU of this number, from 0.
    ///
    /// # Errors
    /// There is no driver, no such GPU or no NVRTC on this machine, `NN_CUDA_ROUTE` names a route that does not exist
    /// or takes a library that is not there, or the driver refuses.
    pub fn new(ordinal: usize) -> Result<Self, DeviceError> {
        let forced = match std::env::var_os("NN_CUDA_ROUTE") {
            Some(routes) => Forced::parse(&routes.to_string_lossy())?,
            None => Forced::default(),
        };
        let graphs = std::env::var_os("NN_CUDA_GRAPH").is_none_or(|value| value != "0");
        Self::with(ordinal, forced, graphs)
    }

    fn with(ordinal: usize, forced: Forced, graphs: bool) -> Result<Self, DeviceError> {
        // SAFETY: it looks for a library and opens it. Without it, everything else of the driver's would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoCudaDriver);
        }
        let failed = driver("opening the device");
        let context = CudaContext::new(ordinal).map_err(&failed)?;
        // SAFETY: nothing was allocated yet, and there is one stream, which needs no events to wait for another.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(&failed)?;
        let (major, minor) = context.compute_capability().map_err(&failed)?;
        let limit = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let shared = context.attribute(limit).map_err(&failed)?.try_into().unwrap_or(0);
        let name = context.name().map_err(&failed)?;
        let compiler = Compiler::new(format!("sm_{major}{minor}"), E::NAME, &name)?;
        let core = Core::new(context, stream, compiler, forced, graphs, [Self::knows_blas(), E::SINGLE])?;
        let allowed = std::env::var_os("NN_CUDA_TF32").is_none_or(|value| value != "0");
        // Those of earlier GPUs know neither TF32 nor bfloat16.
        let tensor_cores = major >= 8;
        let tf32 = allowed && tensor_cores;
        Ok(Self { core: Arc::new(core), tf32, tensor_cores, shared, element: PhantomData })
    }

    /// The same GPU, opened anew, with other routes than those thought to be the fastest, to compare them. For
    /// `linear` there are `large` and `small` tiles, which give the same bits; for `conv2d`, `gemm` and `direct`,
    /// which agree within rounding. A chain of `linear` layers, each of which takes what the last one gave, is one launch
    /// where its products are small: with `fused` it is so however many rows there are, as long as a block has room for
    /// it, and with `separate` never, nor with forced tiles; the bits are the same. Products on tensor cores, of numbers
    /// rounded to TF32 or of bfloat16, are `tensor` for `linear` and `attention`, and `plain` attention is in full
    /// precision. With `library`, `linear` takes cuBLASLt, for `f32` and bfloat16, and `conv2d` takes cuDNN, for `f32`, of
    /// all sizes that these know; with `kernels` neither does. Several are separated by commas.
    ///
    /// # Errors
    /// There is no such route or no such library, or the driver refuses.
    pub fn forcing(&self, routes: &str) -> Result<Self, DeviceError> {
        let graphs = self.core.graphs.load(Ordering::Relaxed);
        let forced = Self::with(self.core.context.ordinal(), Forced::parse(routes)?, graphs)?;
        Ok(Self { tf32: self.tf32, tensor_cores: self.tensor_cores, ..forced })
    }

    /// The same GPU, with all products in full precision.
    ///
    /// Otherwise tensor cores compute large products of `f32`, those of more than 2²⁴ multiplications: factors are
    /// rounded to the 11 significant bits of TF32, and sums are of `f32`. Then the bits of an output also depend on
    /// whether the call that computes it counts as large, and so on how many rows or queries are in it. So it is, in
    /// any precision, with what cuBLASLt computes, whose algorithm is that for all sizes of a call: forcing
    /// `linear=kernels` leaves it out.
    ///
    /// Products of bfloat16 are exact on tensor cores, which compute those of more than 2²⁰ multiplications, and sums are
    /// of `f32`; but attention rounds its weights, and the slopes of its scores, to bfloat16 there.
    #[must_use]
    pub fn full_precision(self) -> Self {
        Self { tf32: false, tensor_cores: false, ..self }
    }

    /// Whether lists of launches that come again are replayed as graphs. The results are the same bits.
    pub fn use_graphs(&self, graphs: bool) {
        self.core.graphs.store(graphs, Ordering::Relaxed);
    }

    /// How many lists of launches were replayed as graphs.
    pub fn replays(&self) -> u64 {
        self.core.replays()
    }

    /// How many launches of kernels and calls of libraries were submitted, those of graphs among them.
    #[doc(hidden)]
    pub fn launches(&self) -> u64 {
        self.core.launches()
    }

    /// How to compute products of so many multiplications in all.
    fn form(&self, forced: Option<Form>, multiplications: &[usize]) -> Form {
        let large = match (E::SINGLE, E::BF16) {
            (true, _) if self.tf32 => 1 << 24,
            // Factors are rounded already, so it is a matter of time. Only attention's weights are rounded more often.
            (_, true) if self.tensor_cores => libraries::LEAST,
            _ => return Form::Plain,
        };
        let all = multiplications.iter().fold(1_usize, |all, &n| all.saturating_mul(n));
        forced.unwrap_or(if all > large { Form::Tensor } else { Form::Plain })
    }

    fn record(&self) -> Record<'_> {
        self.core.record()
    }

    /// Waits until all is done, and asks for the first index out of range since it was last asked.
    fn take_fault(&self) -> Option<DeviceError> {
        let mut fault = [Fault::default()];
        let at = self.core.fault;
        self.core.on_stream("waiting", |stream| {
            // SAFETY: a `Fault` is at the address, and what is copied is waited for.
            unsafe {
                result::memcpy_dtoh_async(&mut fault, at, stream)?;
                result::stream::synchronize(stream)?;
                if fault[0].found != 0 {
                    result::memset_d8_async(at, 0, Fault::BYTES, stream)?;
                }
            }
            Ok(())
        });
        let [Fault { found, place, id, rows, .. }] = fault;
        (found != 0).then_some(DeviceError::IdOutOfRange { place, id, rows: rows as usize })
    }
}

/// What a kernel found wrong, as it lies in the device's memory.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Fault {
    /// Not 0 once there is one; the first stays.
    found: u32,
    place: u32,
    id: u32,
    unused: u32,
    rows: u64,
}

impl Fault {
    const BYTES: usize = size_of::<Self>();
}

impl<E: CudaReal> Open for Cuda<E> {
    fn open() -> Result<Self, DeviceError> {
        match std::env::var_os("NN_CUDA_DEVICE") {
            Some(number) => {
                let number = number.to_string_lossy();
                let unknown = || DeviceError::Cuda {
                    doing: format!("NN_CUDA_DEVICE={number}"),
                    error: "the number of a GPU is expected, from 0".to_owned(),
                };
                Self::new(number.trim().parse().map_err(|_| unknown())?)
            }
            None => Self::new(0),
        }
    }
}

impl<E: CudaReal> Device for Cuda<E> {}
