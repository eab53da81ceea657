use super::device::Compiled;
use super::simd::Simd;
use super::vector::Vector;
use crate::Float;

/// The element types of [`Cpu`](super::Cpu): `f32` and `f64`. No others can be added from outside.
pub trait Real: Float + Compiled<Self> {
    /// A register of an instruction set.
    #[doc(hidden)]
    type Vector<S: Simd>: Vector<Elem = Self>;
    /// A number written in double precision, in constants.
    #[doc(hidden)]
    fn lit(x: f64) -> Self {
        Self::from_f64(x)
    }
    /// a·b + c, rounded once where the instruction set can.
    #[doc(hidden)]
    fn mul_add<S: Simd>(self, b: Self, c: Self) -> Self;
    /// |x|.
    #[doc(hidden)]
    fn abs(self) -> Self;
    /// eˣ.
    #[doc(hidden)]
    fn exp<S: Simd>(self) -> Self;
    /// eˣ − 1, for x below 80.
    #[doc(hidden)]
    fn exp_m1<S: Simd>(self) -> Self;
    /// tanh x.
    #[doc(hidden)]
    fn tanh<S: Simd>(self) -> Self;
    /// The error function.
    #[doc(hidden)]
    fn erf<S: Simd>(self) -> Self;
}

macro_rules! real {
    ($t:ty, $vector:ident) => {
        impl Real for $t {
            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn mul_add<S: Simd>(self, b: Self, c: Self) -> Self {
                if S::FMA { <$t>::mul_add(self, b, c) } else { self * b + c }
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn exp<S: Simd>(self) -> Self {
                <$t>::exp(self)
            }
            #[inline(always)]
            fn exp_m1<S: Simd>(self) -> Self {
                <$t>::exp_m1(self)
            }
            #[inline(always)]
            fn tanh<S: Simd>(self) -> Self {
                <$t>::tanh(self)
            }
            #[inline(always)]
            fn erf<S: Simd>(self) -> Self {
                super::math::erf(self.to_f64()) as $t
            }
        }
    };
}
real!(f32, F32);
real!(f64, F64);
