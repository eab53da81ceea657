//! Weights in safetensors files, under PyTorch's names and in its layouts.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use nn_kernels::ops::Stream;
use nn_kernels::{DType, Device, Pod};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};

use crate::batches::Batches;
use crate::error::{Error, nearest};
use crate::layer::Declared;
use crate::optim::Optimizer;
use crate::weights::Weights;

/// Tensors beside the parameters in a checkpoint for resuming.
const EXTRA: &str = "optimizer.";
/// A counter that PyTorch saves with batch normalisation; running statistics here need none.
const COUNTER: &str = "num_batches_tracked";

/// What loading found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters that the file lacks, each with the file's most similar name.
    pub missing: Vec<(String, Option<String>)>,
    /// Tensors that the model has no parameter for.
    pub unused: Vec<String>,
    /// Parameters of another shape: path, the model's shape, the file's.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors of a type that can't be a parameter: path and type.
    pub mistyped: Vec<(String, String)>,
    /// Tensors that were converted to the model's type: path and their type.
    pub converted: Vec<(String, String)>,
}

impl LoadReport {
    /// Whether every parameter was found as it should be, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unused.is_empty() && self.misshapen.is_empty() && self.mistyped.is_empty()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, near) in &self.missing {
            write!(f, "  missing    {path}")?;
            if let Some(near) = near {
                write!(f, " (the file has {near})")?;
            }
            writeln!(f)?;
        }
        for (path, expected, found) in &self.misshapen {
            writeln!(f, "  misshapen  {path}: the model has {expected:?}, the file {found:?}")?;
        }
        for (path, dtype) in &self.mistyped {
            writeln!(f, "  mistyped   {path}: {dtype} can't be a parameter")?;
        }
        for path in &self.unused {
            writeln!(f, "  unused     {path}")?;
        }
        for (path, dtype) in &self.converted {
            writeln!(f, "  converted  {path} from {dtype}")?;
        }
        Ok(())
    }
}

/// A tensor of host values, for the writer.
struct Host<E> {
    shape: Vec<usize>,
    values: Vec<E>,
}

impl<E: Pod> View for Host<E> {
    fn dtype(&self) -> Dtype {
        match E::DTYPE {
            DType::F64 => Dtype::F64,
            DType::U32 => Dtype::U32,
            DType::U8 => Dtype::U8,
            _ => Dtype::F32,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(nn_kernels::bytes_of(&self.values))
    }
    fn data_len(&self) -> usize {
        size_of_val(self.values.as_slice())
    }
}

fn tensors<M: Declared, D: Device>(weights: &Weights<M, D>) -> Vec<(String, Host<D::Elem>)> {
    let table = weights.parameters().iter().enumerate();
    table.map(|(i, p)| (p.path.clone(), Host { shape: p.dims.to_vec(), values: weights.read(i) })).collect()
}

pub(crate) fn save<M: Declared, D: Device>(weights: &Weights<M, D>, path: &Path) -> Result<(), Error> {
    write(path, tensors(weights), None)
}

pub(crate) fn save_training<M: Declared, D: Device, O: Optimizer<D>>(
    weights: &Weights<M, D>,
    stream: &Stream,
    optimizer: &O,
    batches: &Batches,
    path: &Path,
) -> Result<(), Error> {
    let saved = optimizer.save();
    let mut all = tensors(weights);
    for (name, arena) in &saved.moments {
        for (i, p) in weights.parameters().iter().enumerate().filter(|(_, p)| !p.in_state) {
            let values = weights.read_from(i, *arena);
            all.push((format!("{EXTRA}{name}.{}", p.path), Host { shape: p.dims.to_vec(), values }));
        }
    }
    let [order, epoch, at] = batches.position();
    let names: Vec<_> = saved.moments.iter().map(|m| m.0).collect();
    let facts = [
        ("optimizer", saved.kind.to_owned()),
        ("moments", names.join(" ")),
        ("steps", saved.steps.to_string()),
        ("seed", stream.seed.to_string()),
        ("rank", stream.rank.to_string()),
        ("draws", stream.step.to_string()),
        ("order", order.to_string()),
        ("epoch", epoch.to_string()),
        ("position", at.to_string()),
    ];
    write(path, all, Some(facts.map(|(k, v)| (k.to_owned(), v)).into()))
}

/// Writes a file aside, makes sure that it is on the disk, then puts it in place: at any time there is a
/// whole file under the name, the old one or the new one.
fn write<E: Pod>(
    path: &Path,
    tensors: Vec<(String, Host<E>)>,
    facts: Option<HashMap<String, String>>,
) -> Result<(), Error> {
    let failed = |source: io::Error| Error::File { path: path.to_owned(), source };
    let bytes = safetensors::serialize(tensors, facts).map_err(|e| failed(io::Error::other(e)))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(&bytes).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    // The renaming itself is on the disk only once the folder is; not every system can sync a folder.
    if let Ok(folder) = std::fs::File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// A tensor's values in double precision; `None` if it can't be a parameter.
fn values(tensor: &TensorView<'_>) -> Option<Vec<f64>> {
    fn all<const N: usize>(data: &[u8], one: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        data.as_chunks::<N>().0.iter().map(|b| one(*b)).collect()
    }
    let data = tensor.data();
    Some(match tensor.dtype() {
        Dtype::F64 => all(data, f64::from_le_bytes),
        Dtype::F32 => all(data, |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => all(data, |b| half::f16::from_le_bytes(b).into()),
        Dtype::BF16 => all(data, |b| half::bf16::from_le_bytes(b).into()),
        _ => return None,
    })
}

fn native<E: Pod>() -> Dtype {
    Host::<E> { shape: Vec::new(), values: Vec::new() }.dtype()
}

/// Reads every parameter, in the arena's order, and reports what does not fit.
fn read<M: Declared, D: Device>(
    weights: &Weights<M, D>,
    file: &SafeTensors<'_>,
) -> (Vec<Vec<f64>>, LoadReport) {
    let mut report = LoadReport::default();
    let mut all = Vec::new();
    let names: Vec<_> = file.names().into_iter().filter(|n| !n.starts_with(EXTRA)).collect();
    for p in weights.parameters() {
        let Ok(tensor) = file.tensor(&p.path) else {
            report.missing.push((p.path.clone(), nearest(&p.path, names.iter().copied())));
            continue;
        };
        if tensor.shape() != p.dims.to_vec() {
            report.misshapen.push((p.path.clone(), p.dims.to_vec(), tensor.shape().to_vec()));
            continue;
        }
        let Some(values) = values(&tensor) else {
            report.mistyped.push((p.path.clone(), format!("{:?}", tensor.dtype())));
            continue;
        };
        if tensor.dtype() != native::<D::Elem>() {
            report.converted.push((p.path.clone(), format!("{:?}", tensor.dtype())));
        }
        all.push(p.reorder(&values, true));
    }
    for name in names {
        let counter = name.rsplit('.').next() == Some(COUNTER);
        if !counter && !weights.parameters().iter().any(|p| p.path == *name) {
            report.unused.push(name.to_owned());
        }
    }
    report.unused.sort();
    (all, report)
}

fn open(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<SafeTensors<'b>, Error> {
    SafeTensors::deserialize(bytes)
        .map_err(|e| Error::NotACheckpoint { path: path.to_owned(), reason: e.to_string() })
}

pub(crate) fn load<M: Declared, D: Device>(weights: &mut Weights<M, D>, path: &Path) -> Result<LoadReport, Error> {
    let bytes = open(path)?;
    let file = parse(path, &bytes)?;
    let (all, report) = read(weights, &file);
    if !report.is_exact() {
        return Err(Error::Mismatch { path: path.to_owned(), report: Box::new(report) });
    }
    for (i, values) in all.iter().enumerate() {
        weights.write(i, values);
    }
    Ok(report)
}

pub(crate) fn load_training<M: Declared, D: Device, O: Optimizer<D>>(
    weights: &mut Weights<M, D>,
    stream: &mut Stream,
    optimizer: &mut O,
    batches: &mut Batches,
    path: &Path,
) -> Result<(), Error> {
    let bytes = open(path)?;
    let file = parse(path, &bytes)?;
    let refuse = |reason: String| Error::NotResumable { path: path.to_owned(), reason };
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| refuse(e.to_string()))?;
    let facts = metadata.metadata().clone().unwrap_or_default();
    let fact = |key: &str| {
        facts.get(key).cloned().ok_or_else(|| refuse(format!("it holds weights alone: `{key}` is missing")))
    };
    let number = |key: &str| {
        let text = fact(key)?;
        text.parse::<u64>().map_err(|_| refuse(format!("`{key}` is {text:?}, which is no number")))
    };
    let (all, report) = read(weights, &file);
    if !report.is_exact() {
        return Err(Error::Mismatch { path: path.to_owned(), report: Box::new(report) });
    }
    let kind = fact("optimizer")?;
    let steps = number("steps")?;
    let new_stream = Stream {
        seed: number("seed")?,
        step: number("draws")?,
        rank: u32::try_from(number("rank")?).map_err(|_| refuse("`rank` is too large".to_owned()))?,
        place: 0,
    };
    let position = [number("order")?, number("epoch")?, number("position")?];
    let mut moments = Vec::new();
    for name in fact("moments")?.split_whitespace() {
        let mut arena = vec![0.0; M::TREE.params()];
        for p in weights.parameters().iter().filter(|p| !p.in_state) {
            let key = format!("{EXTRA}{name}.{}", p.path);
            let tensor = file.tensor(&key).map_err(|_| refuse(format!("`{key}` is missing")))?;
            let values = values(&tensor).filter(|v| v.len() == p.len());
            let values = values.ok_or_else(|| refuse(format!("`{key}` is not like its parameter")))?;
            arena[p.offset..p.offset + p.len()].copy_from_slice(&p.reorder(&values, true));
        }
        moments.push(arena);
    }
    let device = weights.device().clone();
    optimizer.restore(&device, M::TREE.params(), &kind, steps, &moments).map_err(refuse)?;
    for (i, values) in all.iter().enumerate() {
        weights.write(i, values);
    }
    *stream = new_stream;
    batches.seek(position);
    Ok(())
}
