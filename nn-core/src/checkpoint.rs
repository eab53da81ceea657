//! Weights in safetensors files, under PyTorch's names and in its layouts.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use nn_kernels::ops::Stream;
use nn_kernels::{DType, Device, Pod};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};

use crate::batches::{Batches, Position};
use crate::error::{Error, nearest};
use crate::layer::Declared;
use crate::optim::{Optimizer, Restored};
use crate::partial::Partial;
use crate::weights::Weights;

/// Tensors beside the parameters in a checkpoint for resuming: `optimizer/exp_avg/fc1.weight`. No field's name
/// has a slash.
const EXTRA: &str = "optimizer/";
/// In the metadata, before the name of an optimiser's setting.
const SETTING: &str = "optimizer.";
/// What a checkpoint for resuming is; another number is another layout.
const VERSION: &str = "1";
/// A counter that PyTorch saves with batch normalisation; running statistics here need none.
pub(crate) const COUNTER: &str = "num_batches_tracked";

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
    /// Parameters that a partial loading left as they were.
    pub kept: Vec<String>,
}

impl LoadReport {
    /// Whether every parameter was found as it should be, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty()
            && self.unused.is_empty()
            && self.misshapen.is_empty()
            && self.mistyped.is_empty()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("every parameter was found as it is");
        }
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
        for path in &self.kept {
            writeln!(f, "  kept       {path}")?;
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

fn tensors<M: Declared, D: Device>(weights: &Weights<M, D>) -> Vec<(String, Host<D::Wide>)> {
    let table = weights.parameters().iter().enumerate();
    table.map(|(i, p)| (p.path.clone(), Host { shape: p.dims.to_vec(), values: weights.read(i) })).collect()
}

pub(crate) fn save<M: Declared, D: Device>(weights: &Weights<M, D>, path: &Path) -> Result<(), Error> {
    let all = tensors(weights);
    // What could not be read must not be written.
    weights.device().finish()?;
    write(path, all, None)
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
            all.push((format!("{EXTRA}{name}/{}", p.path), Host { shape: p.dims.to_vec(), values }));
        }
    }
    weights.device().finish()?;
    let at = batches.position();
    let names: Vec<_> = saved.moments.iter().map(|m| m.0).collect();
    let facts = [
        ("resume", VERSION.to_owned()),
        ("optimizer", saved.kind.to_owned()),
        ("moments", names.join(" ")),
        ("steps", saved.steps.to_string()),
        ("seed", stream.seed.to_string()),
        ("rank", stream.rank.to_string()),
        ("draws", stream.step.to_string()),
        ("samples", at.samples.to_string()),
        ("batch", at.batch.to_string()),
        ("order", at.seed.to_string()),
        ("epoch", at.epoch.to_string()),
        ("position", at.at.to_string()),
    ];
    let facts = facts.map(|(key, value)| (key.to_owned(), value));
    let settings = saved.settings.into_iter().map(|(key, value)| (format!("{SETTING}{key}"), value));
    write(path, all, Some(facts.into_iter().chain(settings).collect()))
}

/// Writes a file aside, makes sure that it is on the disk, then puts it in place: at any time there is a
/// whole file under the name, the old one or the new one.
fn write<E: Pod>(
    path: &Path,
    tensors: Vec<(String, Host<E>)>,
    facts: Option<HashMap<String, String>>,
) -> Result<(), Error> {
    let failed = |source: io::Error| Error::File { path: path.to_owned(), source };
    // Such a model does not compile if it is declared; its file could not be read.
    let mut names: Vec<_> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(failed(io::Error::other(format!("two tensors are called `{}`", pair[0]))));
    }
    let bytes = safetensors::serialize(tensors, facts).map_err(|e| failed(io::Error::other(e)))?;
    // What a link leads to is replaced, and not the link.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".");
    let mut aside = tempfile::Builder::new();
    aside.prefix(&name).suffix(".tmp");
    #[cfg(unix)]
    aside.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = aside.tempfile_in(folder).map_err(failed)?;
    file.write_all(&bytes).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&target).map_err(|e| failed(e.error))?;
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

/// The values of a model's parameters, by number.
type Found = Vec<(usize, Vec<f64>)>;

/// Reads every parameter, or those of a partial loading, and reports what does not fit.
fn read<M: Declared, D: Device>(
    weights: &Weights<M, D>,
    file: &Parsed<'_>,
    partial: Option<&Partial>,
) -> (Found, LoadReport) {
    let mut report = LoadReport::default();
    let mut all = Vec::new();
    let table = weights.parameters();
    // What each tensor would be in the model, and what it is called in the file.
    let names = file.names();
    let mut names: Vec<_> =
        names.map(|n| (partial.map_or_else(|| n.to_owned(), |p| p.to_model(n)), n)).collect();
    names.sort();
    let wanted = |path: &str| partial.is_none_or(|p| p.wants(path));
    for (i, p) in table.iter().enumerate() {
        let found = names.binary_search_by(|n| n.0.as_str().cmp(&p.path)).ok();
        let found = found.filter(|_| wanted(&p.path)).and_then(|k| file.tensors.tensor(names[k].1).ok());
        let Some(tensor) = found else {
            if partial.is_some_and(|partial| !partial.wants(&p.path) || partial.may_be_missing(&p.path)) {
                report.kept.push(p.path.clone());
                continue;
            }
            // A name that is some other parameter's is not this one's, misspelt.
            let free = names.iter().filter(|n| !table.iter().any(|p| p.path == n.0));
            let near = nearest(&p.path, free.clone().map(|n| n.0.as_str()));
            let near = near.and_then(|near| free.clone().find(|n| n.0 == near)).map(|n| n.1.to_owned());
            report.missing.push((p.path.clone(), near));
            continue;
        };
        let turns = partial.is_some_and(|partial| partial.turns(p));
        let mut shape = p.dims.to_vec();
        if turns {
            shape.reverse();
        }
        if tensor.shape() != shape {
            report.misshapen.push((p.path.clone(), shape, tensor.shape().to_vec()));
            continue;
        }
        let Some(mut values) = values(&tensor) else {
            report.mistyped.push((p.path.clone(), format!("{:?}", tensor.dtype())));
            continue;
        };
        if tensor.dtype() != native::<D::Wide>() {
            report.converted.push((p.path.clone(), format!("{:?}", tensor.dtype())));
        }
        if turns {
            let (rows, cols) = (p.dims.n(0), p.dims.n(1));
            values = (0..values.len()).map(|i| values[i % cols * rows + i / cols]).collect();
        }
        all.push((i, values));
    }
    for (path, name) in &names {
        let counter = name.rsplit('.').next() == Some(COUNTER);
        let used = wanted(path) && table.iter().any(|p| p.path == *path);
        if !counter && !used {
            report.unused.push((*name).to_owned());
        }
    }
    report.unused.sort();
    (all, report)
}

fn open(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// A checkpoint's tensors, and what its metadata say.
struct Parsed<'b> {
    tensors: SafeTensors<'b>,
    facts: HashMap<String, String>,
}

impl Parsed<'_> {
    /// Whether it was saved for resuming.
    fn resumes(&self) -> bool {
        self.facts.contains_key("resume")
    }

    /// The tensors' names, without those of an optimiser.
    fn names(&self) -> impl Iterator<Item = &str> + Clone {
        let resumes = self.resumes();
        self.tensors.names().into_iter().filter(move |n| !(resumes && n.starts_with(EXTRA)))
    }
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<Parsed<'b>, Error> {
    let damaged = |reason: String| Error::NotACheckpoint { path: path.to_owned(), reason };
    check_header(bytes).map_err(damaged)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| damaged(e.to_string()))?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(e.to_string()))?;
    Ok(Parsed { tensors, facts: metadata.metadata().clone().unwrap_or_default() })
}

/// What the reader takes without a word: a name that comes twice, of which it would keep one, and offsets so far
/// out that adding to them overflows.
fn check_header(bytes: &[u8]) -> Result<(), String> {
    /// The entries of a JSON object, in order, all of them.
    struct Entries(Vec<(String, serde_json::Value)>);
    impl<'de> serde::Deserialize<'de> for Entries {
        fn deserialize<R: serde::Deserializer<'de>>(from: R) -> Result<Self, R::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Entries;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                    let mut all = Vec::new();
                    while let Some(entry) = map.next_entry()? {
                        all.push(entry);
                    }
                    Ok(Entries(all))
                }
            }
            from.deserialize_map(Visitor)
        }
    }
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("it has {} bytes, not even a header's length", bytes.len()));
    };
    let len = u64::from_le_bytes(*len);
    let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
    let Some(header) = header else {
        return Err(format!("its header should have {len} bytes, and {} follow", rest.len()));
    };
    let Entries(entries) =
        serde_json::from_slice(header).map_err(|e| format!("its header is not JSON: {e}"))?;
    let data = (rest.len() - header.len()) as u64;
    let mut names = HashSet::new();
    for (name, value) in &entries {
        if !names.insert(name) {
            return Err(format!("`{name}` comes twice"));
        }
        let offsets = value.get("data_offsets").and_then(|o| o.as_array());
        for offset in offsets.into_iter().flatten() {
            if offset.as_u64().is_none_or(|offset| offset > data) {
                return Err(format!(
                    "`{name}` ends at byte {offset} of {data}: the file is cut short or damaged"
                ));
            }
        }
    }
    Ok(())
}

/// The header of a safetensors file as JSON, names, types and shapes alone, sorted: what `checkpoint!` reads, and
/// small enough to be committed.
///
/// ```no_run
/// std::fs::write("model.header.json", nn::header_json("model.safetensors")?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The file can't be read, or is not safetensors.
pub fn header_json(path: impl AsRef<Path>) -> Result<String, Error> {
    let path = path.as_ref();
    let bytes = open(path)?;
    let file = parse(path, &bytes)?;
    let mut names = file.tensors.names();
    names.sort_unstable();
    let mut lines = Vec::new();
    for name in names {
        let tensor = file.tensors.tensor(name);
        let tensor =
            tensor.map_err(|e| Error::NotACheckpoint { path: path.to_owned(), reason: e.to_string() })?;
        let (name, shape) = (serde_json::Value::from(name), tensor.shape());
        lines.push(format!("  {name}: {{\"dtype\": \"{:?}\", \"shape\": {shape:?}}}", tensor.dtype()));
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

pub(crate) fn load<M: Declared, D: Device>(
    weights: &mut Weights<M, D>,
    path: &Path,
) -> Result<LoadReport, Error> {
    let bytes = open(path)?;
    let file = parse(path, &bytes)?;
    let (all, report) = read(weights, &file, None);
    if !report.is_exact() {
        return Err(Error::Mismatch { path: path.to_owned(), report: Box::new(report) });
    }
    for (i, values) in &all {
        weights.write(*i, values);
    }
    Ok(report)
}

pub(crate) fn load_partial<M: Declared, D: Device>(
    weights: &mut Weights<M, D>,
    path: &Path,
    partial: &Partial,
) -> Result<LoadReport, Error> {
    partial.check(weights.parameters())?;
    let bytes = open(path)?;
    let file = parse(path, &bytes)?;
    let refuse = |reason: String| Error::NotPartial { path: path.to_owned(), reason };
    if let Some(reason) = partial.idle(file.names()) {
        return Err(refuse(reason));
    }
    let mut names = HashMap::new();
    for name in file.names() {
        let path = partial.to_model(name);
        // What nobody asks for may be called anything.
        if !(partial.wants(&path) && weights.parameters().iter().any(|p| p.path == path)) {
            continue;
        }
        if let Some(other) = names.insert(path, name) {
            let (a, b) = if other < name { (other, name) } else { (name, other) };
            return Err(refuse(format!("`{a}` and `{b}` would both be `{}`", partial.to_model(name))));
        }
    }
    let (all, report) = read(weights, &file, Some(partial));
    if !(report.missing.is_empty() && report.misshapen.is_empty() && report.mistyped.is_empty()) {
        return Err(Error::Mismatch { path: path.to_owned(), report: Box::new(report) });
    }
    if all.is_empty() {
        let (theirs, ours) = (report.unused.first(), report.kept.first());
        let shown = |name: Option<&String>| name.map_or_else(|| "none".to_owned(), |n| format!("`{n}`"));
        let reason = format!(
            "none of its tensors is a parameter that is asked for: its first is {}, the model's {}",
            shown(theirs),
            shown(ours)
        );
        return Err(refuse(reason));
    }
    for (i, values) in &all {
        weights.write(*i, values);
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
    let facts = &file.facts;
    if !file.resumes() {
        return Err(refuse("it holds weights alone".to_owned()));
    }
    let fact = |key: &str| facts.get(key).ok_or_else(|| refuse(format!("`{key}` is missing")));
    let number = |key: &str| {
        let text = fact(key)?;
        text.parse::<u64>().map_err(|_| refuse(format!("`{key}` is {text:?}, which is no number")))
    };
    // Counted on from here, for longer than anything will run.
    let count = |key: &str| match number(key)? {
        n if n < 1 << 53 => Ok(n),
        n => Err(refuse(format!("`{key}` is {n}, which is more than there can be"))),
    };
    let version = fact("resume")?;
    if version != VERSION {
        return Err(refuse(format!("its layout has the version {version:?}, and this reads {VERSION}")));
    }
    let (all, report) = read(weights, &file, None);
    if !report.is_exact() {
        return Err(Error::Mismatch { path: path.to_owned(), report: Box::new(report) });
    }
    // Converted values are not those that were saved, and what follows would not be what would have followed.
    let other = |name: &str, dtype: &dyn fmt::Debug| {
        refuse(format!("`{name}` is {dtype:?}, and the model is trained in {:?}", native::<D::Wide>()))
    };
    if let Some((name, dtype)) = report.converted.first() {
        return Err(other(name, &format_args!("{dtype}")));
    }
    let new_stream = Stream {
        seed: number("seed")?,
        step: count("draws")?,
        rank: u32::try_from(number("rank")?).map_err(|_| refuse("`rank` is too large".to_owned()))?,
        place: 0,
    };
    let position = Position {
        samples: count("samples")?,
        batch: number("batch")?,
        seed: number("order")?,
        epoch: count("epoch")?,
        at: count("position")?,
    };
    let place = batches.resolve(position).map_err(refuse)?;
    let mut moments = Vec::new();
    for name in fact("moments")?.split_whitespace() {
        let mut arena = vec![0.0; M::TREE.params()];
        for p in weights.parameters().iter().filter(|p| !p.in_state) {
            let key = format!("{EXTRA}{name}/{}", p.path);
            let tensor = file.tensors.tensor(&key).map_err(|_| refuse(format!("`{key}` is missing")))?;
            let fits = tensor.shape() == p.dims.to_vec();
            let values = values(&tensor).filter(|_| fits);
            let values = values.ok_or_else(|| refuse(format!("`{key}` is not like its parameter")))?;
            if tensor.dtype() != native::<D::Wide>() {
                return Err(other(&key, &tensor.dtype()));
            }
            p.scatter(&values, &mut arena[p.span()]);
        }
        moments.push((name.to_owned(), arena));
    }
    let settings =
        facts.iter().filter_map(|(key, value)| Some((key.strip_prefix(SETTING)?.to_owned(), value.clone())));
    let saved = Restored {
        kind: fact("optimizer")?.clone(),
        steps: count("steps")?,
        settings: settings.collect::<BTreeMap<_, _>>(),
        moments,
    };
    let device = weights.device().clone();
    optimizer.restore(&device, M::TREE.params(), &saved).map_err(refuse)?;
    // From here on nothing can fail.
    for (i, values) in &all {
        weights.write(*i, values);
    }
    *stream = new_stream;
    batches.seek(place);
    Ok(())
}
