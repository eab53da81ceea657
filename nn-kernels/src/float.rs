use std::fmt::{Debug, Display};

use half::bf16;

/// Plain data a device can hold: every bit pattern is a value, and there is no padding.
pub trait Pod: bytemuck::Pod + Default + PartialEq + Debug + Send + Sync {
    /// Its name in a checkpoint.
    const DTYPE: DType;
}

/// The element types a buffer can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// A byte.
    U8,
    /// An index.
    U32,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// The upper half of single precision.
    BF16,
}

impl Pod for u8 {
    const DTYPE: DType = DType::U8;
}
impl Pod for u32 {
    const DTYPE: DType = DType::U32;
}
impl Pod for f32 {
    const DTYPE: DType = DType::F32;
}
impl Pod for f64 {
    const DTYPE: DType = DType::F64;
}

impl Pod for bf16 {
    const DTYPE: DType = DType::BF16;
}

/// A floating-point element type.
pub trait Float:
    Pod
    + Display
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::iter::Sum
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The nearest value.
    fn from_f64(x: f64) -> Self;
    /// The same value in double precision.
    fn to_f64(self) -> f64;
    /// √x.
    fn sqrt(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! float {
    ($t:ty) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
        }
    };
}
float!(f32);
float!(f64);

impl Float for bf16 {
    const ZERO: Self = Self::ZERO;
    const ONE: Self = Self::ONE;
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Self::from_f64(x)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.to_f64()
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::from_f32(self.to_f32().sqrt())
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}
