//! Saving and loading: exact, strict, and whole whatever happens.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nn::*;
use safetensors::tensor::{Dtype, TensorView};

sequential! {
    Mlp: [3] -> [2] = fc1: LinearTanh<3, 8>, fc2: Linear<8, 2>
}

sequential! {
    /// All that changes from step to step: running statistics, random masks.
    Net: [1, 4, 4] -> [3] =
        conv: Conv2D<1, 4, 3, 1, 1>, norm: BatchNorm2D<4>, ReLU, MaxPool2D<2>, Flatten,
        Dropout<0.3>, fc: Linear<16, 3>
}

/// A model whose field is called as the optimiser's tensors might be.
#[module]
struct Tricky {
    optimizer: Linear<2, 2>,
}
#[module]
impl Tricky {
    fn forward(&self, x: T![2]) -> T![2] {
        self.optimizer(x)
    }
}

fn bits<M: Declared, D: Device<Wide = f32>>(model: &Model<M, D>) -> Vec<u32> {
    let weights = model.weights();
    let all = weights.parameters().iter().flat_map(|p| weights.get(&p.path).unwrap());
    all.map(f32::to_bits).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const SAMPLES: usize = 23;

/// A data set, a model, an optimiser and a place in the data.
struct Training<O> {
    x: Vec<f32>,
    labels: Vec<u32>,
    model: Model<Net>,
    optimizer: O,
    batches: Batches,
}

impl<O: Optimizer<Cpu<f32>>> Training<O> {
    fn new(seed: u64, optimizer: O, batches: Batches) -> Self {
        let x = (0..SAMPLES * 16).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
        let labels = (0..SAMPLES as u32).map(|i| i % 3).collect();
        Self { x, labels, model: Model::init(seed, 5).unwrap(), optimizer, batches }
    }

    /// Goes on for so many steps, over the ends of epochs. Gives the losses.
    fn steps(&mut self, n: usize) -> Vec<f64> {
        let (mut x, mut labels, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        while losses.len() < n {
            let Some(batch) = self.batches.next_batch() else { continue };
            gather(&self.x, 16, batch, &mut x).unwrap();
            gather(&self.labels, 1, batch, &mut labels).unwrap();
            let loss = CrossEntropy::default();
            losses.push(self.model.train_step(&x, &labels, &loss, &mut self.optimizer).unwrap());
        }
        losses
    }
}

/// A run that was interrupted gives the same bits as one that was not.
fn resumes<O: Optimizer<Cpu<f32>>>(make: impl Fn() -> O, other: impl Fn() -> O, change: impl Fn(&mut O)) {
    let folder = folder();
    let path = folder.path().join("run.safetensors");
    let mut whole = Training::new(1, make(), Batches::new(SAMPLES, 5, 2));
    whole.steps(7);
    change(&mut whole.optimizer);
    whole.steps(5);
    whole.model.save_training(&path, &whole.optimizer, &whole.batches).unwrap();
    let expected = whole.steps(10);

    // Another seed, other settings, another order, another place: everything comes from the file.
    let mut resumed = Training::new(99, other(), Batches::new(SAMPLES, 4, 77));
    resumed.steps(3);
    resumed.model.load_training(&path, &mut resumed.optimizer, &mut resumed.batches).unwrap();
    assert_eq!(resumed.optimizer.steps(), 12);
    assert_eq!(resumed.steps(10), expected);
    assert_eq!(bits(&resumed.model), bits(&whole.model));
    assert_eq!(resumed.optimizer.rate(), whole.optimizer.rate());

    // Not because nothing matters: without the file it is another run.
    let mut fresh = Training::new(99, other(), Batches::new(SAMPLES, 4, 77));
    assert_ne!(fresh.steps(10), expected);
    // The weights alone can be had, too.
    let mut weights = Model::<Net>::init(5, 1).unwrap();
    weights.load(&path).unwrap();
}

#[test]
fn resuming_is_exact_with_adam() {
    let schedule = Schedule::WarmupCosine { warmup: 3, steps: 40, start: 0.1, floor: 0.01 };
    resumes(
        || Adam::new(0.01).schedule(schedule).clip_norm(0.5),
        || Adam::new(0.5),
        |adam| adam.set_rate(0.1 / 3.0),
    );
}

#[test]
fn resuming_is_exact_with_adamw() {
    resumes(|| AdamW::new(0.01).betas(0.8, 0.9).eps(1e-6), || AdamW::new(0.5).weight_decay(0.0), |_| {});
}

#[test]
fn resuming_is_exact_with_momentum() {
    let schedule = Schedule::Cosine { steps: 30, floor: 0.1 };
    resumes(
        || Sgd::new(0.01).momentum(0.9).nesterov().weight_decay(1e-3).schedule(schedule),
        || Sgd::new(0.5),
        |_| {},
    );
    resumes(|| Sgd::new(0.01), || Sgd::new(0.5).momentum(0.9), |sgd| sgd.set_rate(0.02));
}

#[test]
fn resuming_needs_what_was_saved() {
    let folder = folder();
    let path = folder.path().join("run.safetensors");
    let mut run = Training::new(1, Adam::new(0.01), Batches::new(SAMPLES, 5, 2));
    run.steps(3);
    run.model.save_training(&path, &run.optimizer, &run.batches).unwrap();
    let refused = |optimizer: &mut dyn FnMut(&mut Training<Adam>) -> Result<(), Error>| {
        let mut other = Training::new(4, Adam::new(0.3), Batches::new(SAMPLES, 5, 6));
        other.steps(1);
        let (before, rate) = (bits(&other.model), other.optimizer.rate());
        let place = format!("{:?}", other.batches);
        let error = optimizer(&mut other).unwrap_err();
        assert_eq!(bits(&other.model), before);
        assert_eq!((other.optimizer.rate(), other.optimizer.steps()), (rate, 1));
        assert_eq!(format!("{:?}", other.batches), place);
        error.to_string()
    };
    let wrong = refused(&mut |t| t.model.load_training(&path, &mut AdamW::new(0.1), &mut t.batches));
    assert!(wrong.ends_with("it was saved with the optimiser adam, and this is adamw"), "{wrong}");
    let wrong = refused(&mut |t| t.model.load_training(&path, &mut Sgd::new(0.1), &mut t.batches));
    assert!(wrong.ends_with("it was saved with the optimiser adam, and this is sgd"), "{wrong}");
    let wrong = refused(&mut |t| t.model.load_training(&path, &mut t.optimizer, &mut Batches::new(24, 5, 2)));
    assert!(wrong.ends_with("it was saved with 23 samples of data, and this has 24"), "{wrong}");
    let weights = folder.path().join("weights.safetensors");
    run.model.save(&weights).unwrap();
    let wrong = refused(&mut |t| t.model.load_training(&weights, &mut t.optimizer, &mut t.batches));
    assert!(wrong.ends_with("can't be resumed from: it holds weights alone"), "{wrong}");

    // Every fact in turn, missing or nonsense.
    let bytes = std::fs::read(&path).unwrap();
    let (tensors, facts) = taken_apart(&bytes);
    for key in facts.keys() {
        let damaged = folder.path().join("damaged.safetensors");
        let mut less = facts.clone();
        less.remove(key);
        std::fs::write(&damaged, put_together(&tensors, Some(less))).unwrap();
        let wrong = refused(&mut |t| t.model.load_training(&damaged, &mut t.optimizer, &mut t.batches));
        let name =
            if key == "resume" { "weights alone" } else { key.strip_prefix("optimizer.").unwrap_or(key) };
        assert!(wrong.contains(name), "{key}: {wrong}");
        for nonsense in ["", "-1", "nonsense", "18446744073709551616"] {
            // A setting may be any number.
            let setting = key.starts_with("optimizer.") && key != "optimizer.schedule";
            if setting && nonsense.parse::<f64>().is_ok() {
                continue;
            }
            let mut changed = facts.clone();
            changed.insert(key.clone(), nonsense.to_owned());
            std::fs::write(&damaged, put_together(&tensors, Some(changed))).unwrap();
            refused(&mut |t| t.model.load_training(&damaged, &mut t.optimizer, &mut t.batches));
        }
    }
    for (key, value) in
        [("steps", u64::MAX), ("draws", u64::MAX), ("epoch", u64::MAX), ("position", 24), ("batch", 0)]
    {
        let damaged = folder.path().join("damaged.safetensors");
        let mut changed = facts.clone();
        changed.insert(key.to_owned(), value.to_string());
        std::fs::write(&damaged, put_together(&tensors, Some(changed))).unwrap();
        refused(&mut |t| t.model.load_training(&damaged, &mut t.optimizer, &mut t.batches));
    }
    for name in tensors.iter().map(|t| &t.0).filter(|name| name.starts_with("optimizer/")) {
        let damaged = folder.path().join("damaged.safetensors");
        let less: Vec<_> = tensors.iter().filter(|t| t.0 != *name).cloned().collect();
        std::fs::write(&damaged, put_together(&less, Some(facts.clone()))).unwrap();
        let wrong = refused(&mut |t| t.model.load_training(&damaged, &mut t.optimizer, &mut t.batches));
        assert!(wrong.ends_with(&format!("`{name}` is missing")), "{wrong}");
    }
    assert!(
        refused(&mut |t| t.model.load_training("/nowhere/at/all", &mut t.optimizer, &mut t.batches))
            .starts_with("/nowhere")
    );
}

#[test]
fn resuming_takes_no_other_precision() {
    let folder = folder();
    let path = folder.path().join("run.safetensors");
    let mut run = Training::new(1, Adam::new(0.01), Batches::new(SAMPLES, 5, 2));
    run.steps(2);
    run.model.save_training(&path, &run.optimizer, &run.batches).unwrap();
    let (tensors, facts) = taken_apart(&std::fs::read(&path).unwrap());
    for i in 0..tensors.len() {
        let mut wider = tensors.clone();
        let (name, dtype, _, data) = &mut wider[i];
        *dtype = Dtype::F64;
        let values = data.as_chunks::<4>().0.iter();
        *data = values.flat_map(|b| f64::from(f32::from_le_bytes(*b)).to_le_bytes()).collect();
        let says = format!("`{name}` is F64, and the model is trained in F32");
        std::fs::write(&path, put_together(&wider, Some(facts.clone()))).unwrap();
        let mut other = Training::new(4, Adam::new(0.3), Batches::new(SAMPLES, 5, 6));
        let before = bits(&other.model);
        let error = other.model.load_training(&path, &mut other.optimizer, &mut other.batches).unwrap_err();
        assert!(error.to_string().ends_with(&says), "{error}");
        assert_eq!((bits(&other.model), other.optimizer.steps()), (before, 0));
    }
}

#[test]
fn momentum_is_not_resumed_without_its_velocity() {
    let folder = folder();
    let path = folder.path().join("run.safetensors");
    let mut run = Training::new(1, Sgd::new(0.01).momentum(0.9), Batches::new(SAMPLES, 5, 2));
    run.steps(2);
    run.model.save_training(&path, &run.optimizer, &run.batches).unwrap();
    let (tensors, mut facts) = taken_apart(&std::fs::read(&path).unwrap());
    facts.insert("moments".to_owned(), String::new());
    std::fs::write(&path, put_together(&tensors, Some(facts))).unwrap();
    let mut other = Training::new(4, Sgd::new(0.3), Batches::new(SAMPLES, 5, 6));
    let error = other.model.load_training(&path, &mut other.optimizer, &mut other.batches).unwrap_err();
    assert!(error.to_string().contains("`velocity` is missing"), "{error}");
    assert_eq!((other.optimizer.steps(), other.optimizer.rate()), (0, 0.3));

    // Momentum that was set after the last step has none yet.
    let mut late = Training::new(1, Sgd::new(0.01), Batches::new(SAMPLES, 5, 2));
    late.steps(2);
    late.optimizer = std::mem::replace(&mut late.optimizer, Sgd::new(0.0)).momentum(0.9);
    late.model.save_training(&path, &late.optimizer, &late.batches).unwrap();
    other.model.load_training(&path, &mut other.optimizer, &mut other.batches).unwrap();
    assert_eq!(other.steps(4), late.steps(4));
}

/// Name, type, shape and bytes of a tensor.
type Raw = (String, Dtype, Vec<usize>, Vec<u8>);

fn taken_apart(bytes: &[u8]) -> (Vec<Raw>, HashMap<String, String>) {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    let tensors = file.tensors().into_iter();
    let tensors = tensors.map(|(name, t)| (name, t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(bytes).unwrap();
    (tensors, metadata.metadata().clone().unwrap_or_default())
}

fn put_together(tensors: &[Raw], facts: Option<HashMap<String, String>>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, facts).unwrap()
}

/// A file by hand, whatever its header says.
fn by_hand(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn what_is_saved_is_loaded_bit_by_bit() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    let mut run = Training::new(1, Adam::new(0.01), Batches::new(SAMPLES, 5, 2));
    run.steps(4);
    run.model.weights_mut().set("fc.bias", &[-0.0, 1e-45, f32::MAX]).unwrap();
    run.model.save(&path).unwrap();
    assert_eq!(files(folder.path()), ["net.safetensors"], "nothing is left beside it");
    let mut other = Model::<Net>::init(7, 5).unwrap();
    let report = other.load(&path).unwrap();
    assert!(report.is_exact() && report.converted.is_empty());
    assert_eq!(bits(&other), bits(&run.model));
    // Names and shapes are PyTorch's.
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(
        names,
        [
            "conv.bias",
            "conv.weight",
            "fc.bias",
            "fc.weight",
            "norm.bias",
            "norm.running_mean",
            "norm.running_var",
            "norm.weight"
        ]
    );
    assert_eq!(file.tensor("conv.weight").unwrap().shape(), [4, 1, 3, 3]);
    let weight = file.tensor("fc.weight").unwrap();
    assert_eq!((weight.shape(), weight.dtype()), (&[3, 16][..], Dtype::F32));
    let row: Vec<u8> =
        run.model.weights().get("fc.weight").unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(weight.data(), row);
    // And over a file that is there.
    other.weights_mut().set("fc.bias", &[0.0; 3]).unwrap();
    other.save(&path).unwrap();
    run.model.load(&path).unwrap();
    assert_eq!(bits(&other), bits(&run.model));
}

#[test]
fn a_field_may_be_called_optimizer() {
    let folder = folder();
    let path = folder.path().join("tricky.safetensors");
    let mut a = Model::<Tricky>::init(1, 1).unwrap();
    let (mut adam, mut batches) = (Adam::new(0.1), Batches::new(3, 1, 0));
    a.train_step(&[1.0, 2.0], &[0], &CrossEntropy::default(), &mut adam).unwrap();
    a.save_training(&path, &adam, &batches).unwrap();
    let mut b = Model::<Tricky>::init(2, 1).unwrap();
    b.load(&path).unwrap();
    assert_eq!(bits(&a), bits(&b));
    let mut b = Model::<Tricky>::init(2, 1).unwrap();
    b.load_training(&path, &mut adam, &mut batches).unwrap();
    assert_eq!(bits(&a), bits(&b));
}

#[test]
fn other_precisions_are_converted_and_the_report_says_so() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    let source = Model::<Mlp>::init(1, 1).unwrap();
    source.save(&path).unwrap();
    let (tensors, _) = taken_apart(&std::fs::read(&path).unwrap());
    let values = |data: &[u8]| -> Vec<f32> {
        data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let convert = |dtype: Dtype, one: &dyn Fn(f32) -> Vec<u8>| {
        let all: Vec<Raw> = tensors
            .iter()
            .map(|(name, _, shape, data)| {
                (name.clone(), dtype, shape.clone(), values(data).into_iter().flat_map(one).collect())
            })
            .collect();
        std::fs::write(&path, put_together(&all, None)).unwrap();
        let mut model = Model::<Mlp>::init(2, 1).unwrap();
        let report = model.load(&path).unwrap();
        assert_eq!(report.converted.len(), 4, "{report}");
        assert!(report.to_string().contains(&format!("converted  fc1.weight from {dtype:?}")), "{report}");
        model
    };
    let close = |model: &Model<Mlp>, round: &dyn Fn(f32) -> f32| {
        for p in source.weights().parameters() {
            let expected: Vec<f32> = source.weights().get(&p.path).unwrap().into_iter().map(round).collect();
            assert_eq!(model.weights().get(&p.path).unwrap(), expected);
        }
    };
    let model = convert(Dtype::F64, &|v| f64::from(v).to_le_bytes().to_vec());
    assert_eq!(bits(&model), bits(&source));
    let model = convert(Dtype::F16, &|v| half::f16::from_f32(v).to_le_bytes().to_vec());
    close(&model, &|v| half::f16::from_f32(v).to_f32());
    let model = convert(Dtype::BF16, &|v| half::bf16::from_f32(v).to_le_bytes().to_vec());
    close(&model, &|v| half::bf16::from_f32(v).to_f32());

    // A model in double precision reads one in single, and back.
    source.save(&path).unwrap();
    let mut double = Model::<Mlp, Cpu<f64>>::init(2, 1).unwrap();
    assert_eq!(double.load(&path).unwrap().converted.len(), 4);
    double.save(&path).unwrap();
    let mut single = Model::<Mlp>::init(3, 1).unwrap();
    assert_eq!(single.load(&path).unwrap().converted.len(), 4);
    assert_eq!(bits(&single), bits(&source));
}

/// Loading these bytes fails, says what is expected, and leaves the model as it was.
#[track_caller]
fn refused(bytes: &[u8], says: &str) {
    let folder = folder();
    let path = folder.path().join("bad.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let mut model = Model::<Mlp>::init(1, 1).unwrap();
    let before = bits(&model);
    let error = model.load(&path).unwrap_err().to_string();
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    assert!(error.contains("bad.safetensors"), "{error:?} does not name the file");
    assert_eq!(bits(&model), before);
    let (mut adam, mut batches) = (Adam::new(0.1), Batches::new(2, 1, 0));
    assert!(model.load_training(&path, &mut adam, &mut batches).is_err());
    assert_eq!(bits(&model), before);
}

fn good() -> Vec<u8> {
    let folder = folder();
    let path = folder.path().join("good.safetensors");
    Model::<Mlp>::init(5, 1).unwrap().save(&path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn files_that_are_cut_short_or_go_on_are_refused() {
    let good = good();
    for len in 0..good.len() {
        refused(&good[..len], "is not a whole safetensors file");
    }
    refused(&[], "it has 0 bytes, not even a header's length");
    refused(&good[..good.len() - 1], "the file is cut short or damaged");
    refused(&[&good[..], &[0]].concat(), "not fully covered");
    refused(&[&good[..], &good[..]].concat(), "not fully covered");
}

#[test]
fn headers_that_lie_are_refused() {
    let good = good();
    let header = u64::from_le_bytes(good[..8].try_into().unwrap());
    for len in [0, 1, header - 1, header + 1, good.len() as u64, u64::MAX, u64::MAX - 7, 1 << 40] {
        refused(&[&len.to_le_bytes(), &good[8..]].concat(), "is not a whole safetensors file");
    }
    let f32s = |n: usize| vec![0; 4 * n];
    let tensor = |name: &str, dtype: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let file = |tensors: &[String], data: Vec<u8>| by_hand(&format!("{{{}}}", tensors.join(",")), &data);
    let (a, b) = (tensor("fc1.weight", "F32", "[8,3]", 0, 96), tensor("fc1.bias", "F32", "[8]", 96, 128));
    // Overlapping, with a gap, backwards, beyond the end, twice.
    refused(&file(&[a.clone(), tensor("fc1.bias", "F32", "[8]", 64, 96)], f32s(24)), "not a whole");
    refused(&file(&[a.clone(), tensor("fc1.bias", "F32", "[8]", 100, 132)], f32s(33)), "not a whole");
    refused(&file(&[tensor("fc1.weight", "F32", "[8,3]", 96, 0)], f32s(24)), "not a whole");
    refused(&file(&[a.clone(), b.clone()], f32s(24)), "`fc1.bias` ends at byte 128 of 96");
    refused(&file(&[a.clone(), b.clone(), a.clone()], f32s(32)), "`fc1.weight` comes twice");
    refused(&file(&[tensor("x", "F32", "[8,4]", 0, 96)], f32s(24)), "not a whole");
    refused(&file(&[tensor("x", "F32", "[4294967296,4294967296,4]", 0, 96)], f32s(24)), "not a whole");
    let most = (u64::MAX / 2) as usize;
    refused(&file(&[tensor("x", "U8", &format!("[{most}]"), 0, most)], f32s(24)), "not a whole");
    refused(&file(&[tensor("x", "F99", "[24]", 0, 96)], f32s(24)), "not a whole");
    refused(
        &file(&[r#""x":{"dtype":"F32","shape":[24],"data_offsets":[-1,96]}"#.to_owned()], f32s(24)),
        "not a whole",
    );
    refused(
        &file(&[r#""x":{"dtype":"F32","shape":[24],"data_offsets":[0.5,96]}"#.to_owned()], f32s(24)),
        "not a whole",
    );
    refused(
        &file(&[r#""x":{"dtype":"F32","shape":[24],"data_offsets":[0]}"#.to_owned()], f32s(24)),
        "not a whole",
    );
    refused(&file(&[r#""x":7"#.to_owned()], f32s(24)), "not a whole");
    refused(&by_hand("[]", &[]), "its header is not JSON");
    refused(&by_hand(&"[".repeat(100_000), &[]), "its header is not JSON");
    refused(&by_hand(&format!(r#"{{"a":{}"#, r#"{"a":"#.repeat(100_000)), &[]), "its header is not JSON");
    refused(&by_hand("\u{feff}{}", &[]), "its header is not JSON");
    refused(&by_hand("{}", &[]), "does not fit the model");
}

#[test]
fn garbage_is_refused() {
    let mut state = 12345_u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    for len in [1, 7, 8, 9, 64, 1000] {
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..len).map(|_| random()).collect();
            refused(&bytes, "bad.safetensors");
        }
    }
    refused(b"PK\x03\x04 this is a zip file, as PyTorch writes them", "is not a whole safetensors file");
    // Any one byte of the header changed: refused, or it is still a good file of this model.
    let good = good();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let folder = folder();
    let path = folder.path().join("bad.safetensors");
    for at in 0..header {
        for flip in [1, 0x80] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            std::fs::write(&path, &bytes).unwrap();
            let mut model = Model::<Mlp>::init(1, 1).unwrap();
            let before = bits(&model);
            if model.load(&path).is_err() {
                assert_eq!(bits(&model), before);
            }
        }
    }
}

#[test]
fn other_models_are_refused_with_a_report() {
    let (tensors, _) = taken_apart(&good());
    let edit = |name: &str, change: &dyn Fn(&mut Raw)| {
        let mut all = tensors.clone();
        change(all.iter_mut().find(|t| t.0 == name).unwrap());
        put_together(&all, None)
    };
    refused(
        &edit("fc1.weight", &|t| t.0 = "fc1.wieght".to_owned()),
        "missing    fc1.weight (the file has fc1.wieght)",
    );
    refused(&edit("fc1.weight", &|t| t.0 = "fc1.wieght".to_owned()), "unused     fc1.wieght");
    refused(
        &edit("fc1.weight", &|t| t.2 = vec![3, 8]),
        "misshapen  fc1.weight: the model has [8, 3], the file [3, 8]",
    );
    refused(&edit("fc1.weight", &|t| t.2 = vec![24]), "misshapen  fc1.weight");
    refused(&edit("fc1.weight", &|t| t.2 = vec![8, 3, 1]), "misshapen  fc1.weight");
    refused(&edit("fc1.weight", &|t| t.1 = Dtype::I32), "mistyped   fc1.weight: I32 can't be a parameter");
    refused(&edit("fc2.bias", &|t| (t.1, t.3) = (Dtype::U8, vec![1, 2])), "mistyped   fc2.bias: U8");
    let less: Vec<Raw> = tensors.iter().filter(|t| t.0 != "fc2.bias").cloned().collect();
    refused(&put_together(&less, None), "missing    fc2.bias");
    let more = [&tensors[..], &[("extra".to_owned(), Dtype::F32, vec![1], vec![0; 4])]].concat();
    refused(&put_together(&more, None), "unused     extra");
    // Not an optimiser's tensor unless the file says so.
    let more = [&tensors[..], &[("optimizer/x".to_owned(), Dtype::F32, vec![1], vec![0; 4])]].concat();
    refused(&put_together(&more, None), "unused     optimizer/x");
}

#[test]
fn what_pytorch_counts_is_passed_over() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    let mut model = Model::<Net>::init(1, 1).unwrap();
    model.save(&path).unwrap();
    let (mut tensors, _) = taken_apart(&std::fs::read(&path).unwrap());
    tensors.push(("norm.num_batches_tracked".to_owned(), Dtype::I64, vec![], vec![0; 8]));
    std::fs::write(&path, put_together(&tensors, None)).unwrap();
    model.load(&path).unwrap();
}

#[test]
fn what_is_no_file_is_an_error_that_names_it() {
    let folder = folder();
    let mut model = Model::<Mlp>::init(1, 1).unwrap();
    let before = bits(&model);
    let file = folder.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let missing = folder.path().join("missing.safetensors");
    for path in [folder.path(), &missing, &file.join("below"), Path::new("")] {
        let error = model.load(path).unwrap_err();
        assert!(matches!(&error, Error::File { path: named, .. } if named == path), "{error:?}");
    }
    let nowhere = folder.path().join("no/such/folder.safetensors");
    for path in [folder.path(), &nowhere, &file.join("below"), Path::new(""), Path::new("/")] {
        let error = model.save(path).unwrap_err();
        assert!(matches!(&error, Error::File { path: named, .. } if named == path), "{error:?}");
    }
    assert_eq!(files(folder.path()), ["a-file"]);
    assert_eq!(bits(&model), before);
}

#[cfg(unix)]
#[test]
fn permissions_and_links_are_kept_to() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let model = Model::<Mlp>::init(1, 1).unwrap();
    let (real, link) = (folder.path().join("real.safetensors"), folder.path().join("link.safetensors"));
    model.save(&real).unwrap();
    // Readable by whom any new file is.
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&real), mode(&plain));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    Model::<Mlp>::init(2, 1).unwrap().save(&link).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link is still one");
    let mut loaded = Model::<Mlp>::init(3, 1).unwrap();
    loaded.load(&real).unwrap();
    assert_eq!(bits(&loaded), bits(&Model::<Mlp>::init(2, 1).unwrap()));

    let closed = folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o555)).unwrap();
    let root = std::fs::write(closed.join("x"), "").is_ok();
    let saved = model.save(closed.join("net.safetensors"));
    // Who may write anywhere is not kept out.
    assert_eq!(saved.is_ok(), root, "{saved:?}");
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&real, PermissionsExt::from_mode(0o000)).unwrap();
    assert_eq!(loaded.load(&real).is_ok(), std::fs::read(&real).is_ok());
}

/// In a child process, this test saves over and over, or once, as `NN_TEST_SAVE` says.
const CHILD: &str = "NN_TEST_SAVE";

sequential! {
    /// Large enough to be killed in the middle of.
    Large: [256] -> [256] = a: Linear<256, 1024>, b: Linear<1024, 256>
}

#[test]
fn child_that_saves() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let path = PathBuf::from(path);
    let forever = std::env::var_os("NN_TEST_FOREVER").is_some();
    let models = [0, 1].map(|seed| Model::<Large>::init(seed, 1).unwrap());
    for model in models.iter().cycle() {
        let result = model.save(&path);
        println!("saved: {}", result.as_ref().map_or_else(ToString::to_string, |()| "yes".to_owned()));
        if !forever {
            break;
        }
    }
}

fn child(shell: &str, path: &Path) -> Command {
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{shell} exec \"$0\" --exact child_that_saves --nocapture"))
        .arg(test)
        .env(CHILD, path)
        .stdout(Stdio::piped());
    command
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_file() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    Model::<Large>::init(1, 1).unwrap().save(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    // No file may grow beyond 100 blocks; the write fails instead of ending the process.
    let output = child("trap '' XFSZ; ulimit -f 100;", &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("saved: ") && said.contains("net.safetensors: File too large"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(files(folder.path()), ["net.safetensors"], "what was begun is cleared away");
}

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_leaves_a_whole_file() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    // What the child saves, by turns.
    let saved = [0, 1].map(|seed| Model::<Large>::init(seed, 1).unwrap());
    let whole = saved.each_ref().map(bits);
    saved[1].save(&path).unwrap();
    let mut loaded = Model::<Large>::init(9, 1).unwrap();
    let mut interrupted = 0;
    for round in 0..12_u64 {
        let mut child = child("", &path).env("NN_TEST_FOREVER", "1").spawn().unwrap();
        // While it writes, at another moment each time.
        let begun = std::time::Instant::now();
        while files(folder.path()).len() == 1 {
            assert!(begun.elapsed().as_secs() < 60, "nothing is ever written aside");
            assert!(child.try_wait().unwrap().is_none(), "it saves until it is killed");
        }
        std::thread::sleep(std::time::Duration::from_micros(round * 100));
        child.kill().unwrap();
        child.wait().unwrap();
        loaded.load(&path).unwrap();
        assert!(whole.contains(&bits(&loaded)), "neither the old nor the new");
        interrupted += files(folder.path()).len() - 1;
        for left in files(folder.path()).iter().filter(|name| name.ends_with(".tmp")) {
            assert!(left.starts_with("net.safetensors."), "{left} tells whose it is");
            std::fs::remove_file(folder.path().join(left)).unwrap();
        }
    }
    assert!(interrupted > 0, "not once in the middle of it: this shows nothing");
}

sequential! {
    Inner: [6] -> [6] = up: LinearTanh<6, 6>
}

#[module]
struct Shared {
    tokens: Embedding<9, 6>,
    blocks: Repeat<Residual<Inner>, 2>,
    #[tied = "tokens.weight"]
    head: TiedLinear<6, 9>,
}
#[module]
impl Shared {
    fn forward(&self, ids: Ids<T![]>) -> T![9] {
        self.head(self.blocks(self.tokens(ids)))
    }
}

#[test]
fn what_is_shared_is_saved_once_and_copies_are_numbered() {
    let folder = folder();
    let path = folder.path().join("net.safetensors");
    let mut net = Model::<Shared>::init(1, 2).unwrap();
    net.train_step(&[3, 8], &[1, 2], &CrossEntropy::default(), &mut Adam::new(0.1)).unwrap();
    net.save(&path).unwrap();
    let (tensors, _) = taken_apart(&std::fs::read(&path).unwrap());
    let mut names: Vec<_> = tensors.iter().map(|t| t.0.as_str()).collect();
    names.sort();
    let expected =
        ["blocks.0.up.bias", "blocks.0.up.weight", "blocks.1.up.bias", "blocks.1.up.weight", "tokens.weight"];
    assert_eq!(names, expected);
    let mut other = Model::<Shared>::init(2, 2).unwrap();
    other.load(&path).unwrap();
    assert_eq!(bits(&other), bits(&net));
    assert_eq!(other.forward(&[0, 1]).unwrap(), net.forward(&[0, 1]).unwrap());
}
