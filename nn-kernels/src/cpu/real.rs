use super::device::Compiled;
use super::simd::Simd;
use super::vector::Vector;
use crate::Float;

/// The element types of [`Cpu`](super::Cpu): `f32` and `f64`. No others can be added from outside.
pub trait Real: Float + Compiled<Self> {
    /// A register of an instruction set.
    type Vector<S: Simd>: Vector<Elem = Self>;
    /// A number written in double precision.
    fn lit(x: f64) -> Self {
        Self::from_f64(x)
    }
    /// a·b + c, rounded once where the instruction set can.
    fn mul_add<S: Simd>(self, b: Self, c: Self) -> Self;
    /// |x|.
    fn abs(self) -> Self;
    /// |self| with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;

    // What the functions of `math` are made from.

    /// A number so large that adding it rounds to a whole number, and that leaves room for a sign.
    const ROUNDER: Self;
    /// 2ⁿ as two factors, for an n to which [`ROUNDER`](Self::ROUNDER) was added.
    fn powers_of_2(shifted: Self) -> (Self, Self);
    /// 2ⁿ, if that is a normal number, for an n to which [`ROUNDER`](Self::ROUNDER) was added.
    fn power_of_2(shifted: Self) -> Self;
    /// Below this, 2ˣ is taken to be 0.
    const EXP2_LOW: f64;
    /// 2ʳ as a polynomial in r, from −½ to ½: Chebyshev interpolants, made with 60 digits.
    const EXP2: &'static [f64];
    /// log 2 as a sum, the first part with so few digits that its product with any exponent is exact.
    const LN_2: (Self, Self);
    /// Beyond these, eˣ is 0 and ∞.
    const EXP_RANGE: (f64, f64);
    /// (eʳ − 1 − r) / r² as a polynomial in r.
    const EXP: &'static [f64];
    /// erf(x) / x as a polynomial in x², up to 1.
    const ERF_NEAR: &'static [f64];
    /// erfc(x)·e^(x²) as a polynomial in p·t + q, from 1 on, where t = 2 / (2 + x).
    const ERF_FAR: &'static [f64];
    /// p and q.
    const ERF_MAP: (f64, f64);
    /// From here on, erf is 1.
    const ERF_END: f64;
}

/// Taylor's series of (eʳ − 1 − r) / r².
const fn exp_series<const N: usize>() -> [f64; N] {
    let mut series = [0.0; N];
    let (mut i, mut factorial) = (0, 1.0);
    while i < N {
        factorial *= (i + 2) as f64;
        series[i] = 1.0 / factorial;
        i += 1;
    }
    series
}

macro_rules! real {
    ($t:ident, $vector:ident, $bits:ident, $digits:literal, $bias:literal, { $($constants:tt)+ }) => {
        impl Real for $t {
            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn mul_add<S: Simd>(self, b: Self, c: Self) -> Self {
                if S::FMA { $t::mul_add(self, b, c) } else { self * b + c }
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $t::abs(self)
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                $t::copysign(self, sign)
            }
            const ROUNDER: Self = (3_u64 << ($digits - 1)) as Self;
            #[inline(always)]
            fn powers_of_2(shifted: Self) -> (Self, Self) {
                let n = shifted.to_bits().wrapping_sub(Self::ROUNDER.to_bits());
                // Half of n. As n may be negative and the shift is of an unsigned number, something even is added.
                let half = (n.wrapping_add(4 * $bias) >> 1).wrapping_sub(2 * $bias);
                let power = |n: $bits| $t::from_bits(n.wrapping_add($bias) << $digits);
                (power(half), power(n.wrapping_sub(half)))
            }
            #[inline(always)]
            fn power_of_2(shifted: Self) -> Self {
                // The shift leaves nothing of what was added.
                $t::from_bits(shifted.to_bits().wrapping_add($bias) << $digits)
            }
            $($constants)+
        }
    };
}

real!(f32, F32, u32, 23, 127, {
    const LN_2: (f32, f32) = (0.693_359_375, -2.121_944_4e-4);
    const EXP_RANGE: (f64, f64) = (-104.0, 89.0);
    const EXP: &'static [f64] = &exp_series::<6>();
    const EXP2_LOW: f64 = -125.0;
    const EXP2: &'static [f64] = &[
        1.0,
        0.693147206703,
        0.240226509223,
        0.0555032722667,
        0.00961805667852,
        0.00134004281776,
        0.000154614446986,
    ];
    const ERF_NEAR: &'static [f64] = &[
        1.128379166,
        -0.3761262667,
        0.1128359472,
        -0.02685421201,
        0.005189087423,
        -0.0008016864287,
        7.875875063e-5,
    ];
    const ERF_FAR: &'static [f64] =
        &[0.2553956403, 0.1423952961, 0.02685155834, 0.002924887122, 4.435395927e-5, -2.813731188e-5];
    const ERF_MAP: (f64, f64) = (6.0, -3.0);
    const ERF_END: f64 = 4.0;
});

real!(f64, F64, u64, 52, 1023, {
    const LN_2: (f64, f64) = (0.693_147_180_369_123_816_490, 1.908_214_929_270_587_700_02e-10);
    const EXP_RANGE: (f64, f64) = (-746.0, 710.0);
    const EXP: &'static [f64] = &exp_series::<12>();
    const EXP2_LOW: f64 = -1021.0;
    const EXP2: &'static [f64] = &[
        1.0,
        std::f64::consts::LN_2,
        0.24022650695910071228,
        0.055504108664821698992,
        0.0096181291076284830543,
        0.0013333558146390352775,
        0.00015403530393362755291,
        0.000015252733856293466416,
        1.3215486815999976975e-6,
        1.017805119296064896e-7,
        7.0548943863483480445e-9,
        4.4566753410492058782e-10,
        2.5733568308756891235e-11,
    ];
    const ERF_NEAR: &'static [f64] = &[
        std::f64::consts::FRAC_2_SQRT_PI,
        -0.376126389031835404,
        0.112837916709450063,
        -0.0268661706432377704,
        0.00522397760711642273,
        -0.000854832597538969208,
        0.000120552949048397079,
        -0.0000149247369074196603,
        1.64474247033173624e-6,
        -1.62084838018717059e-7,
        1.37200645467776856e-8,
        -7.79589882700214224e-10,
    ];
    const ERF_FAR: &'static [f64] = &[
        0.221429540229931806,
        0.161893568041025353,
        0.0385605704251815636,
        0.00558881628182587813,
        0.000197139177760088895,
        -0.0000807922041180412827,
        -7.34051828499986927e-6,
        1.97956115820926427e-6,
        1.63501023720879839e-7,
        -7.00517020547537375e-8,
        -5.92636131528183211e-10,
        2.6223500325142788e-9,
        -2.63424302100066881e-10,
        -7.29050853516539748e-11,
        1.86209898068151617e-11,
    ];
    const ERF_MAP: (f64, f64) = (4.8, -2.2);
    const ERF_END: f64 = 6.0;
});
