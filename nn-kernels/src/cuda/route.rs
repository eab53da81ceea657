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
    pub(super) tiles: Option<Tiles>,
    pub(super) conv: Option<ConvRoute>,
}

impl Forced {
    /// What a text such as `linear=small` asks for; several are separated by commas.
    pub(super) fn parse(text: &str) -> Result<Self, DeviceError> {
        let mut forced = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "linear=large" => forced.tiles = Some(Tiles::Large),
                "linear=small" => forced.tiles = Some(Tiles::Small),
                "conv2d=gemm" => forced.conv = Some(ConvRoute::Gemm),
                "conv2d=direct" => forced.conv = Some(ConvRoute::Direct),
                _ => {
                    let offered = "linear=large, linear=small, conv2d=gemm, conv2d=direct".to_owned();
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
        assert_eq!(forced, Forced { tiles: Some(Tiles::Small), conv: Some(ConvRoute::Gemm) });
        assert_eq!(Forced::parse("").unwrap(), Forced::default());
        let error = Forced::parse("linear=slow").unwrap_err().to_string();
        assert!(error.starts_with("route `linear=slow`: there is linear=large"), "{error}");
    }
}
