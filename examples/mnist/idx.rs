//! MNIST's file format: big-endian numbers, then bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::support::data::Pictures;

/// A pair of files.
pub(crate) fn read(folder: &Path, pictures: &str, labels: &str) -> Result<Pictures, String> {
    let bytes = |name: &str| {
        let path = folder.join(name);
        let mut bytes = Vec::new();
        let result = File::open(&path).and_then(|mut f| f.read_to_end(&mut bytes));
        result.map_err(|e| format!("{}: {e}", path.display())).map(|_| bytes)
    };
    let header = |bytes: &[u8], i: usize| {
        bytes.get(4 * i..4 * i + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    let (p, l) = (bytes(pictures)?, bytes(labels)?);
    let wrong = |name: &str| format!("{}: not a file in MNIST's format", folder.join(name).display());
    let (n, h, w) = match (header(&p, 0), header(&p, 1), header(&p, 2), header(&p, 3)) {
        (Some(0x0803), Some(n), Some(h), Some(w)) if p.len() == 16 + n * h * w => (n, h, w),
        _ => return Err(wrong(pictures)),
    };
    if header(&l, 0) != Some(0x0801) || header(&l, 1) != Some(n) || l.len() != 8 + n {
        return Err(wrong(labels));
    }
    Ok(Pictures {
        pixels: p[16..].iter().map(|v| f32::from(*v) / 255.0).collect(),
        labels: l[8..].iter().map(|v| u32::from(*v)).collect(),
        size: [h, w],
    })
}
