//! The host's processor.
//!
//! Each file holds the kernels of one family. `simd` compiles them for every instruction set, and
//! [`Cpu::new`] picks the one to run; `par` spreads large ones over threads.

#![allow(clippy::too_many_arguments, reason = "one for each operand, as in the traits")]

mod device;
mod forced;
mod isa;
mod kernels;
mod memory;

mod par;
#[allow(clippy::excessive_precision, reason = "coefficients have the digits they were made with")]
mod real;
mod reduce;
mod scratch;
mod simd;
pub(crate) mod size;
mod vector;

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod conv;
mod depthwise;
mod direct;
mod elementwise;
mod gated;
mod gemm;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod loss;
mod math;
pub(crate) mod norm;
mod optim;
pub(crate) mod packed;
mod patches;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod recurrent;
mod routes;
mod softmax;
mod sweep;
pub(crate) mod table;
mod winograd;

#[cfg(test)]
mod testing;

use crate::{DeviceError, Open};
use isa::Available;
pub use isa::Isa;
use kernels::Kernels;
pub use memory::Buffer;
pub use real::Real;

/// The host's processor, computing with elements `E`: `f32` or `f64`.
pub struct Cpu<E> {
    kernels: Kernels<E>,
}

impl<E> Clone for Cpu<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Cpu<E> {}

impl<E> std::fmt::Debug for Cpu<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu<{}>({})", std::any::type_name::<E>(), self.isa())
    }
}

impl<E> Cpu<E> {
    /// With the instruction set that the variable `NN_ISA` names (`portable`, `avx2`, `avx512` or `neon`),
    /// or else the fastest this machine has. A name this machine does not offer is an error.
    ///
    /// The variable `NN_ROUTE` forces routes, as [`forcing`](Self::forcing) does.
    pub fn new() -> Result<Self, DeviceError> {
        let isa = match std::env::var_os("NN_ISA") {
            Some(name) => Available::named(&name.to_string_lossy())?,
            None => Available::best(),
        };
        let device = Self { kernels: Kernels::new(isa) };
        match std::env::var_os("NN_ROUTE") {
            Some(routes) => device.forcing(&routes.to_string_lossy()),
            None => Ok(device),
        }
    }

    /// The same device with other kernels than those measured to be the fastest, to compare them. For `linear` there
    /// are `direct`, `streamed` and `packed`, which give the same bits; for `conv2d`, `depthwise`, `pointwise`, `winograd`, `direct` and
    /// `gemm`, which agree within rounding. Several are separated by commas. A route is taken wherever it can be.
    ///
    /// ```
    /// use nn_kernels::Cpu;
    /// let packed = Cpu::<f32>::new()?.forcing("linear=packed")?;
    /// let error = packed.forcing("linear=slow").unwrap_err();
    /// assert_eq!(error.to_string(), "route `linear=slow`: there is linear=direct, streamed, packed");
    /// # Ok::<(), nn_kernels::DeviceError>(())
    /// ```
    pub fn forcing(mut self, routes: &str) -> Result<Self, DeviceError> {
        self.kernels.forced = forced::Forced::parse(routes)?;
        Ok(self)
    }

    /// With this instruction set, if this machine has it.
    pub fn with_isa(isa: Isa) -> Result<Self, DeviceError> {
        Ok(Self { kernels: Kernels::new(Available::checked(isa)?) })
    }

    /// The instruction set that its kernels use.
    pub fn isa(&self) -> Isa {
        self.kernels.isa.get()
    }
}

impl<E> Open for Cpu<E> {
    fn open() -> Result<Self, DeviceError> {
        Self::new()
    }
}

impl<E> Default for Cpu<E> {
    /// As [`new`](Self::new), but it can't fail: where `NN_ISA` asks for an instruction set that is missing, or
    /// `NN_ROUTE` for a route that does not exist, it takes the fastest there is and says nothing. Where that is to be an error, take `new`.
    fn default() -> Self {
        Self::new().unwrap_or(Self { kernels: Kernels::new(Available::best()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_send_sync_and_says_what_it_is() {
        fn check<T: Send + Sync + Clone>(_: &T) {}
        let device = Cpu::<f32>::with_isa(Isa::Portable).unwrap();
        check(&device);
        assert_eq!(device.isa(), Isa::Portable);
        assert_eq!(format!("{device:?}"), "Cpu<f32>(portable)");
    }

    #[test]
    fn a_missing_instruction_set_is_an_error() {
        for isa in [Isa::Avx512, Isa::Neon] {
            assert_eq!(Cpu::<f32>::with_isa(isa).is_ok(), isa.is_available());
        }
    }
}
