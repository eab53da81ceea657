use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// Pictures with labels, pixels in [0, 1], one sample after the other.
pub struct Pictures {
    pub pixels: Vec<f32>,
    pub labels: Vec<u32>,
    /// Height and width.
    pub size: [usize; 2],
}

impl Pictures {
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Values of one sample.
    pub fn each(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// The first `n`, and the others.
    pub fn split(mut self, n: usize) -> (Self, Self) {
        let pixels = self.pixels.split_off(n * self.each());
        let labels = self.labels.split_off(n);
        let rest = Self { pixels, labels, size: self.size };
        (self, rest)
    }
}

/// The 1,797 handwritten digits that come with the examples.
pub fn digits() -> Result<Pictures, String> {
    const CSV: &[u8] = include_bytes!("../data/digits.csv.gz");
    let mut text = String::new();
    GzDecoder::new(CSV).read_to_string(&mut text).map_err(|e| format!("digits.csv.gz: {e}"))?;
    let mut all = Pictures { pixels: Vec::new(), labels: Vec::new(), size: [8, 8] };
    for (i, line) in text.lines().enumerate() {
        let numbers = line.split(',').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>();
        match numbers.as_deref() {
            Ok([pixels @ .., label]) if pixels.len() == 64 => {
                all.pixels.extend(pixels.iter().map(|p| f32::from(*p) / 16.0));
                all.labels.push(u32::from(*label));
            }
            _ => return Err(format!("digits.csv.gz: line {} is not 65 numbers", i + 1)),
        }
    }
    Ok(all)
}

/// A pair of files in MNIST's format.
pub fn idx(folder: &Path, pictures: &str, labels: &str) -> Result<Pictures, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        let mut bytes = Vec::new();
        let result = File::open(&path).and_then(|mut f| f.read_to_end(&mut bytes));
        result.map_err(|e| format!("{}: {e}", path.display())).map(|_| bytes)
    };
    let header = |bytes: &[u8], i: usize| {
        bytes.get(4 * i..4 * i + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    };
    let (p, l) = (read(pictures)?, read(labels)?);
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
