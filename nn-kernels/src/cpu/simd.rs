//! One body, compiled once for each instruction set.
//!
//! A kernel is an ordinary `#[inline(always)] fn body<S: Simd, E: Real>(…)` over slices. The call
//! `dispatch!(isa, body::<E>(x, y))` runs it inside a function that has the instruction set's features
//! switched on, so that the compiler vectorises the body for it, whatever the crate is compiled for.

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
    /// Calls a function compiled for the instruction set, never inlined: the compiler's time grows faster than a
    /// function does.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn call<A, R>(f: impl Fn(A) -> R, a: A) -> R;
}

/// An outlined call, for `Simd::call`.
#[inline(never)]
fn outlined<A, R>(f: impl Fn(A) -> R, a: A) -> R {
    f(a)
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
    #[inline(always)]
    unsafe fn call<A, R>(f: impl Fn(A) -> R, a: A) -> R {
        outlined(f, a)
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
    unsafe fn call<A, R>(f: impl Fn(A) -> R, a: A) -> R {
        // SAFETY: the caller has the instruction set.
        unsafe { avx2::outlined(f, a) }
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
    unsafe fn call<A, R>(f: impl Fn(A) -> R, a: A) -> R {
        // SAFETY: the caller has the instruction set.
        unsafe { avx512::outlined(f, a) }
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
    #[inline(always)]
    unsafe fn call<A, R>(f: impl Fn(A) -> R, a: A) -> R {
        outlined(f, a)
    }
}

/// Functions that call their first argument with the rest, with features switched on. The arguments are
/// passed one by one, and not in a closure, so that the compiler knows that slices do not overlap.
macro_rules! callers {
    ($($name:ident: $($arg:ident $ty:ident),+;)+) => {
        /// Avx2 and FMA.
        #[cfg(target_arch = "x86_64")]
        pub(crate) mod avx2 {
            #[inline(never)]
            #[target_feature(enable = "avx2,fma")]
            pub(super) fn outlined<A, R>(f: impl Fn(A) -> R, a: A) -> R {
                f(a)
            }
            $(
                #[target_feature(enable = "avx2,fma")]
                pub(crate) fn $name<R, $($ty),+>(f: impl Fn($($ty),+) -> R, $($arg: $ty),+) -> R {
                    f($($arg),+)
                }
            )+
        }
        /// AVX-512.
        #[cfg(target_arch = "x86_64")]
        pub(crate) mod avx512 {
            #[inline(never)]
            #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")]
            pub(super) fn outlined<A, R>(f: impl Fn(A) -> R, a: A) -> R {
                f(a)
            }
            $(
                #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")]
                pub(crate) fn $name<R, $($ty),+>(f: impl Fn($($ty),+) -> R, $($arg: $ty),+) -> R {
                    f($($arg),+)
                }
            )+
        }
    };
}
callers! {
    call1: a A;
    call2: a A, b B;
    call3: a A, b B, c C;
    call4: a A, b B, c C, d D;
    call5: a A, b B, c C, d D, e E;
    call6: a A, b B, c C, d D, e E, f0 F;
    call7: a A, b B, c C, d D, e E, f0 F, g G;
}

/// Runs `body::<S, …>(arguments)` with the instruction set that an [`Available`](super::isa::Available) stands for.
macro_rules! dispatch {
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr $(,)?)) => { dispatch!(@ $isa, call1, $f, [$($g),+], $a) };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr $(,)?)) => { dispatch!(@ $isa, call2, $f, [$($g),+], $a, $b) };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr, $c:expr $(,)?)) => {
        dispatch!(@ $isa, call3, $f, [$($g),+], $a, $b, $c)
    };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr, $c:expr, $d:expr $(,)?)) => {
        dispatch!(@ $isa, call4, $f, [$($g),+], $a, $b, $c, $d)
    };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr, $c:expr, $d:expr, $e:expr $(,)?)) => {
        dispatch!(@ $isa, call5, $f, [$($g),+], $a, $b, $c, $d, $e)
    };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $h:expr $(,)?)) => {
        dispatch!(@ $isa, call6, $f, [$($g),+], $a, $b, $c, $d, $e, $h)
    };
    ($isa:expr, $f:ident::<$($g:ty),+>($a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $h:expr, $i:expr $(,)?)) => {
        dispatch!(@ $isa, call7, $f, [$($g),+], $a, $b, $c, $d, $e, $h, $i)
    };
    (@ $isa:expr, $call:ident, $f:ident, [$($g:ty),+], $($arg:expr),+) => {{
        let isa: $crate::cpu::isa::Available = $isa;
        match isa.get() {
            // SAFETY: an `Available` exists only for an instruction set that this machine has.
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::Isa::Avx512 => unsafe {
                $crate::cpu::simd::avx512::$call($f::<$crate::cpu::simd::Avx512, $($g),+>, $($arg),+)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::Isa::Avx2 => unsafe {
                $crate::cpu::simd::avx2::$call($f::<$crate::cpu::simd::Avx2, $($g),+>, $($arg),+)
            },
            #[cfg(target_arch = "aarch64")]
            $crate::cpu::Isa::Neon => $f::<$crate::cpu::simd::Neon, $($g),+>($($arg),+),
            _ => $f::<$crate::cpu::simd::Portable, $($g),+>($($arg),+),
        }
    }};
}
pub(crate) use dispatch;
