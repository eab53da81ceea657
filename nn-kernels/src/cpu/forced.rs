//! Routes that someone asked for, to compare them.

use super::gemm::Way;
use crate::DeviceError;

/// By operation, the way to take instead of the one that was measured to be the fastest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Forced {
    pub(crate) product: Option<Way>,
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
                _ => return Err(unknown("linear=ROUTE".to_owned())),
            }
        }
        Ok(forced)
    }
}
