//! Routes that someone asked for, to compare them.

use super::conv;
use super::gemm::Way;
use crate::DeviceError;

/// By operation, the way to take instead of the one that was measured to be the fastest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forced {
    pub(crate) product: Option<Way>,
    pub(crate) conv: Option<conv::Route>,
}

impl Forced {
    /// What a text such as `linear=packed` asks for; several are separated by commas.
    pub(crate) fn parse(text: &str) -> Result<Self, DeviceError> {
        let mut forced = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let unknown = |offered: String| DeviceError::UnknownRoute { asked: part.to_owned(), offered };
            match part.split_once('=') {
                Some(("linear", name)) => {
                    forced.product =
                        Some(Way::named(name).ok_or_else(|| unknown(format!("linear={}", Way::names())))?);
                }
                Some(("conv2d", name)) => {
                    let route = conv::Route::named(name);
                    forced.conv =
                        Some(route.ok_or_else(|| unknown(format!("conv2d={}", conv::Route::names())))?);
                }
                _ => return Err(unknown("linear=ROUTE, conv2d=ROUTE".to_owned())),
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
        let forced = Forced::parse("linear=packed, conv2d=gemm").unwrap();
        assert_eq!(forced, Forced { product: Some(Way::Packed), conv: Some(conv::Route::Gemm) });
        assert_eq!(Forced::parse("").unwrap(), Forced::default());
        let error = |text| Forced::parse(text).unwrap_err().to_string();
        assert_eq!(error("linear=slow"), "route `linear=slow`: there is linear=direct, streamed, packed");
        assert_eq!(
            error("conv2d=fft"),
            "route `conv2d=fft`: there is conv2d=depthwise, pointwise, winograd, direct, gemm"
        );
        assert_eq!(error("softmax"), "route `softmax`: there is linear=ROUTE, conv2d=ROUTE");
    }
}
