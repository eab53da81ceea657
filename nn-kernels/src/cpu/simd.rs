//! One body, compiled once for each instruction set.
//!
//! A kernel is an ordinary `#[inline(always)] fn name<S: Simd, E: Real>(…)` over slices. A file lists its kernels in
//! [`kernels!`](kernels), and calls them as `run::name(isa, …)`: that runs the body inside a function that has the
//! instruction set's features switched on, so that the compiler vectorises it for them, whatever the crate is
//! compiled for.
//!
//! The body must be inlined for this, and so must all it calls: a function that is not has no features. Hence
//! `#[inline(always)]`, and no closures in a body but small ones.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

use super::vector::{Lanes, Vector};

/// An instruction set as a type.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Whether a fused multiply-add is one instruction. Where it is not, it would be a library call.
    const FMA: bool;
    /// A register of single precision.
    type F32: Vector<Elem = f32>;
    /// A register of double precision.
    type F64: Vector<Elem = f64>;
    /// Rows of a matrix product's tile: with [`VECTORS`](Self::VECTORS) registers each, they leave some registers
    /// for the operands.
    const ROWS: usize;
    /// Registers in a row of a matrix product's tile.
    const VECTORS: usize;
    /// Asks for the cache line of an address, whether anything lies there or not.
    #[inline(always)]
    fn prefetch(_: *const u8) {}
    /// Runs a piece of a kernel as a function of its own: the compiler's time grows faster than a function does.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn outline<T: Outlined>(task: T);
}

/// A piece of a kernel that is a function of its own. This is a trait, and not a closure, so that the body is sure to
/// be inlined where the features are.
pub trait Outlined {
    /// The body; `#[inline(always)]`.
    fn run(self);
}

/// See [`Isa::Portable`](super::Isa::Portable).
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    const FMA: bool = false;
    type F32 = Lanes<f32, 4, false>;
    type F64 = Lanes<f64, 2, false>;
    const ROWS: usize = 4;
    const VECTORS: usize = 2;
    #[inline(never)]
    unsafe fn outline<T: Outlined>(task: T) {
        task.run();
    }
}

/// See [`Isa::Avx2`](super::Isa::Avx2).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    const FMA: bool = true;
    type F32 = __m256;
    type F64 = __m256d;
    const ROWS: usize = 6;
    const VECTORS: usize = 2;
    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a hint, which reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) };
    }
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn outline<T: Outlined>(task: T) {
        task.run();
    }
}

/// See [`Isa::Avx512`](super::Isa::Avx512).
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    const FMA: bool = true;
    type F32 = __m512;
    type F64 = __m512d;
    const ROWS: usize = 8;
    const VECTORS: usize = 3;
    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a hint, which reads nothing.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) };
    }
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512dq,avx512bw")]
    unsafe fn outline<T: Outlined>(task: T) {
        task.run();
    }
}

/// See [`Isa::Neon`](super::Isa::Neon).
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(crate) struct Neon;

#[cfg(target_arch = "aarch64")]
impl Simd for Neon {
    const FMA: bool = true;
    type F32 = Lanes<f32, 4, true>;
    type F64 = Lanes<f64, 2, true>;
    const ROWS: usize = 8;
    const VECTORS: usize = 2;
    #[inline(never)]
    unsafe fn outline<T: Outlined>(task: T) {
        task.run();
    }
}

/// Makes `run::name(isa, …)` of each kernel listed. The arguments are passed one by one, so that the compiler knows
/// that slices do not overlap.
macro_rules! kernels {
    ($(fn $name:ident<E>($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)?;)+) => {
        /// The kernels of this file, compiled for each instruction set.
        mod run {
            #[allow(unused_imports, reason = "whatever the kernels' arguments are made of")]
            use super::*;
            use $crate::cpu::{Isa, Real, isa::Available, simd};

            $(
                pub(super) fn $name<E: Real>(isa: Available, $($arg: $ty),*) $(-> $out)? {
                    #[cfg(target_arch = "x86_64")]
                    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512dq,avx512bw")]
                    fn avx512<E: Real>($($arg: $ty),*) $(-> $out)? {
                        super::$name::<simd::Avx512, E>($($arg),*)
                    }
                    #[cfg(target_arch = "x86_64")]
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn avx2<E: Real>($($arg: $ty),*) $(-> $out)? {
                        super::$name::<simd::Avx2, E>($($arg),*)
                    }
                    match isa.get() {
                        // SAFETY: an `Available` exists only for an instruction set that this machine has.
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512 => unsafe { avx512($($arg),*) },
                        // SAFETY: as above.
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 => unsafe { avx2($($arg),*) },
                        #[cfg(target_arch = "aarch64")]
                        Isa::Neon => super::$name::<simd::Neon, E>($($arg),*),
                        _ => super::$name::<simd::Portable, E>($($arg),*),
                    }
                }
            )+
        }
    };
}
pub(crate) use kernels;
