//! Routes that someone asked for, to compare them.

use crate::DeviceError;

/// The form of a matrix product's tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiles {
    /// 64×64.
    Large,
    /// 16×64, for few rows.
    Small,
}

/// How products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In full precision.
    Plain,
    /// On tensor cores, of numbers rounded to TF32, or of bfloat16.
    Tensor,
}

/// The way a convolution takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConvRoute {
    /// A matrix product whose right factor is read from the image.
    Gemm,
    /// One thread an output, for groups of few channels.
    Direct,
}

/// By operation, the way to take instead of the one that is thought to be the fastest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Forced {
    pub(super) attention: Option<Form>,
    pub(super) linear: Option<Form>,
    pub(super) tiles: Option<Tiles>,
    /// Products of `linear` by cuBLASLt, however small, or by kernels here, however large.
    pub(super) blas: Option<bool>,
    /// Chains of `linear` as one launch, however large, or never.
    pub(super) fused: Option<bool>,
    pub(super) conv: Option<ConvRoute>,
    /// Convolutions by cuDNN, however small, or by kernels here, however large.
    pub(super) dnn: Option<bool>,
}

impl Forced {
    fn linear(&mut self, form: Form, tiles: Option<Tiles>) {
        (self.linear, self.tiles, self.blas, self.fused) = (Some(form), tiles, Some(false), Some(false));
    }

    fn conv2d(&mut self, route: ConvRoute) {
        (self.conv, self.dnn) = (Some(route), Some(false));
    }

    /// What a text such as `linear=small` asks for; several are separated by commas.
    pub(super) fn parse(text: &str) -> Result<Self, DeviceError> {
        let mut forced = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "attention=plain" => forced.attention = Some(Form::Plain),
                "attention=tensor" => forced.attention = Some(Form::Tensor),
                "linear=large" => forced.linear(Form::Plain, Some(Tiles::Large)),
                "linear=small" => forced.linear(Form::Plain, Some(Tiles::Small)),
                "linear=tensor" => forced.linear(Form::Tensor, None),
                "linear=fused" => {
                    forced.linear(Form::Plain, None);
                    forced.fused = Some(true);
                }
                "linear=separate" => forced.fused = Some(false),
                "linear=kernels" => forced.blas = Some(false),
                "linear=library" => forced.blas = Some(true),
                "conv2d=gemm" => forced.conv2d(ConvRoute::Gemm),
                "conv2d=direct" => forced.conv2d(ConvRoute::Direct),
                "conv2d=kernels" => forced.dnn = Some(false),
                "conv2d=library" => forced.dnn = Some(true),
                _ => {
                    let offered = "attention=plain, attention=tensor, linear=large, linear=small, linear=tensor, \
                                   linear=fused, linear=separate, linear=kernels, linear=library, conv2d=gemm, \
                                   conv2d=direct, conv2d=kernels, conv2d=library"
                        .to_owned();
                    return Err(DeviceError::UnknownRoute { asked: part.to_owned(), offered });
                }
            }
        }
        Ok(forced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood_or_an_error_says_what_there_is() {
        let forced = Forced::parse("linear=small, conv2d=gemm").unwrap();
        let expected = Forced {
            linear: Some(Form::Plain),
            tiles: Some(Tiles::Small),
            blas: Some(false),
            fused: Some(false),
            conv: Some(ConvRoute::Gemm),
            dnn: Some(false),
            ..Forced::default()
        };
        assert_eq!(forced, expected);
        let fused = Forced::parse("linear=fused").unwrap();
        assert_eq!((fused.fused, fused.blas, fused.tiles), (Some(true), Some(false), None));
        let separate = Forced { fused: Some(false), ..Forced::default() };
        assert_eq!(Forced::parse("linear=separate").unwrap(), separate);
        assert_eq!(Forced::parse("").unwrap(), Forced::default());
        let error = Forced::parse("linear=slow").unwrap_err().to_string();
        assert!(error.starts_with("route `linear=slow`: there is attention=plain"), "{error}");
    }
}
