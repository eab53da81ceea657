use std::fmt;

use crate::DeviceError;

/// An instruction set that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// What the compiler's target guarantees, without fused multiply-add.
    Portable,
    /// AVX2, FMA and F16C, on x86-64.
    Avx2,
    /// AVX-512 (F, VL, DQ, BW), on x86-64.
    Avx512,
    /// NEON, on AArch64.
    Neon,
}

impl Isa {
    const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Neon];

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            // Miri interprets portable code only.
            _ if cfg!(miri) => false,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[allow(unreachable_patterns, reason = "which arms are left depends on the target")]
            _ => false,
        }
    }

    /// Those this machine has, the fastest last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An [`Isa`] that this machine was seen to have: holding one is the proof that its kernels may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Available(Isa);

impl Available {
    /// The fastest.
    pub(crate) fn best() -> Self {
        Self(Isa::available().last().unwrap_or(Isa::Portable))
    }

    /// The one asked for by its name, if this machine has it.
    pub(crate) fn named(name: &str) -> Result<Self, DeviceError> {
        match Isa::available().find(|isa| isa.name() == name) {
            Some(isa) => Ok(Self(isa)),
            None => Err(missing(name)),
        }
    }

    /// This one, if this machine has it.
    pub(crate) fn checked(isa: Isa) -> Result<Self, DeviceError> {
        Self::named(isa.name())
    }

    #[inline(always)]
    pub(crate) fn get(self) -> Isa {
        self.0
    }
}

fn missing(name: &str) -> DeviceError {
    let offered: Vec<_> = Isa::available().map(Isa::name).collect();
    DeviceError::UnknownIsa { asked: name.to_owned(), offered: offered.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_the_best_is_available() {
        assert!(Isa::available().any(|isa| isa == Isa::Portable));
        assert!(Available::best().get().is_available());
    }

    #[test]
    fn an_unknown_name_lists_what_is_offered() {
        let error = Available::named("sse9").unwrap_err();
        assert!(error.to_string().starts_with("NN_ISA=sse9: this machine offers portable"));
    }

    #[test]
    fn names_find_what_they_display() {
        for isa in Isa::available() {
            assert_eq!(Available::named(&isa.to_string()).unwrap().get(), isa);
        }
    }
}
