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
    /// 2ⁿ as two factors, for an n to which [`ROUNDER`](Self::ROUNDER) was added; and one over the second.
    fn powers_of_2(shifted: Self) -> (Self, Self, Self);
    /// 2ⁿ, if that is a normal number, for an n to which [`ROUNDER`](Self::ROUNDER) was added.
    fn power_of_2(shifted: Self) -> Self;
    /// Below this, 2ˣ is taken to be 0.
    const EXP2_LOW: f64;
    /// (2ʳ − 1) / r as a polynomial in r, from −½ to ½: minimax for the error of 2ʳ, or a Chebyshev interpolant.
    const EXP2: &'static [f64];
    /// log 2 as a sum, the first part with so few digits that its product with any exponent is exact.
    const LN_2: (Self, Self);
    /// Beyond these, eˣ is 0 and ∞.
    const EXP_RANGE: (f64, f64);
    /// (eʳ − 1 − r) / r² as a polynomial in r: minimax for the error of eʳ, or Taylor's series.
    const EXP: &'static [f64];
    /// (tanh x / x − 1) / x² as a polynomial in x², up to [`TANH_NEAR_END`](Self::TANH_NEAR_END).
    const TANH_NEAR: &'static [f64];
    /// Where tanh is computed from an exponential instead.
    const TANH_NEAR_END: f64 = 0.55;
    /// (−log₂ Φ(−z) − 1) / z as a polynomial in z ≥ 0, where Φ is the normal distribution function: minimax for the error
    /// of Φ.
    const NORMAL_TAIL: &'static [f64];
    /// From here on, Φ(−z) is taken to be 0.
    const NORMAL_END: f64;
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
            fn powers_of_2(shifted: Self) -> (Self, Self, Self) {
                let n = shifted.to_bits().wrapping_sub(Self::ROUNDER.to_bits());
                // Half of n. As n may be negative and the shift is of an unsigned number, something even is added.
                let half = (n.wrapping_add(4 * $bias) >> 1).wrapping_sub(2 * $bias);
                let power = |n: $bits| $t::from_bits(n.wrapping_add($bias) << $digits);
                (power(half), power(n.wrapping_sub(half)), power(half.wrapping_sub(n)))
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
    const EXP: &'static [f64] =
        &[0.499999934474, 0.166665206277, 0.0416683880761, 0.0083687172507, 0.00138145988594];
    const EXP2_LOW: f64 = -125.0;
    const EXP2: &'static [f64] = &[
        0.693147202859,
        0.240226479123,
        0.0555033246057,
        0.00961843748652,
        0.0013398879175,
        0.000153533362771,
    ];
    const TANH_NEAR: &'static [f64] = &[-0.333329528916, 0.133208302651, -0.0526766841124, 0.0164440467017];
    const NORMAL_TAIL: &'static [f64] = &[
        1.15110572358,
        0.459204905174,
        0.0525050377053,
        -0.0070754878147,
        0.000145884630951,
        0.000182540615297,
        -3.86190505443e-5,
        2.77188734444e-6,
    ];
    const NORMAL_END: f64 = 9.0;
});

real!(f64, F64, u64, 52, 1023, {
    const LN_2: (f64, f64) = (0.693_147_180_369_123_816_490, 1.908_214_929_270_587_700_02e-10);
    const EXP_RANGE: (f64, f64) = (-746.0, 710.0);
    const EXP: &'static [f64] = &exp_series::<12>();
    const EXP2_LOW: f64 = -1021.0;
    const EXP2: &'static [f64] = &[
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
    const TANH_NEAR: &'static [f64] = &[
        -0.33333333333333298583,
        0.13333333333326631003,
        -0.053968253963757136802,
        0.021869488385510888756,
        -0.0088632325920653278305,
        0.0035920919005631831208,
        -0.0014555417962109649974,
        0.00058843933639361997828,
        -0.00023336644628899429935,
        0.00008329201358710579308,
        -0.000019477965615431417141,
    ];
    const NORMAL_TAIL: &'static [f64] = &[
        1.1511040990721391709,
        0.45922409426439923192,
        0.052421193307892373575,
        -0.0068991287023355275274,
        -0.00005335317546058768187,
        0.00030589347789388020379,
        -0.000075265017357831633397,
        2.3615246610234933214e-6,
        4.068529423790732013e-6,
        -1.2883889361732634313e-6,
        6.0314249369654140358e-8,
        9.975036900811350522e-8,
        -4.9060167326346712171e-8,
        1.3991802771048649996e-8,
        -2.8555608855105972216e-9,
        4.3752184710013253461e-10,
        -5.0465479498080803072e-11,
        4.2824391720574195657e-12,
        -2.5422669945128488123e-13,
        9.5756968206947816527e-15,
        -1.8360306159871158064e-16,
        7.4061956393935978669e-19,
    ];
    const NORMAL_END: f64 = 8.3;
});
