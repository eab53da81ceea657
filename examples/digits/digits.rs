//! The digits that come with the examples.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::support::data::Pictures;

/// The first `train` of the 1,797 handwritten digits, and the others.
pub(crate) fn read(train: usize) -> Result<(Pictures, Pictures), String> {
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
    let rest = Pictures {
        pixels: all.pixels.split_off(train * all.each()),
        labels: all.labels.split_off(train),
        size: all.size,
    };
    Ok((all, rest))
}
