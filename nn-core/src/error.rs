use std::path::PathBuf;

use nn_kernels::DeviceError;

/// What can go wrong at run time: only what the compiler could not know. Whatever it is, the model stays as
/// it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More samples than the workspace has room for.
    #[error(
        "a batch of {batch} is more than the {capacity} samples that the workspace has room for; give `init` a larger capacity"
    )]
    BatchTooLarge {
        /// Samples given.
        batch: usize,
        /// Samples there is room for.
        capacity: usize,
    },
    /// Nothing to work on.
    #[error("the batch is empty")]
    EmptyBatch,
    /// An input that is not a whole number of samples, or not as many as another input.
    #[error("input {index} has {found} values, which is not a batch of {shape}{hint}")]
    InputLength {
        /// Which input, from 0.
        index: usize,
        /// Its length.
        found: usize,
        /// The shape of one sample.
        shape: String,
        /// How many samples the other inputs have, in words.
        hint: String,
    },
    /// A sequence longer than the model's bound.
    #[error(
        "a length of {length} is more than the model's bound of {bound}; several sequences are announced with `set_sequences`"
    )]
    TooLong {
        /// The length given.
        length: usize,
        /// The most there can be.
        bound: usize,
    },
    /// More tokens than the model's context has room for, after those that a [`KvCache`](crate::KvCache) holds.
    #[error(
        "{given} tokens after {past} are more than the model's context of {context}: reset the cache or give fewer"
    )]
    ContextOverflow {
        /// How many tokens the cache holds.
        past: usize,
        /// How many more were given.
        given: usize,
        /// The most there can be.
        context: usize,
    },
    /// A target that does not go with the output.
    #[error("{found} targets do not go with a batch of {batch}: {expected} are needed")]
    TargetLength {
        /// Targets given.
        found: usize,
        /// Samples.
        batch: usize,
        /// Targets needed.
        expected: usize,
    },
    /// A loss over more rows than there are, or over none.
    #[error("a loss over the first {first} rows of a sample is given samples of {rows} rows")]
    FirstRows {
        /// How many rows should count.
        first: usize,
        /// How many a sample has.
        rows: usize,
    },
    /// A class that is none.
    #[error("the target {target} is not below the number of classes, {classes}")]
    TargetOutOfRange {
        /// The target.
        target: u32,
        /// How many classes there are.
        classes: usize,
    },
    /// An index past the end of a table.
    #[error("`{path}` has {rows} rows, and is asked for row {id}")]
    IdOutOfRange {
        /// The layer.
        path: String,
        /// The index.
        id: u32,
        /// How many rows there are.
        rows: usize,
    },
    /// Batch normalisation can't train on one value a channel.
    #[error("`{path}` needs more than one value a channel to train: give it a larger batch")]
    OneValueAChannel {
        /// The layer.
        path: String,
    },
    /// The check for values that are not finite found some.
    #[error("`{path}` is the first layer that gives a value that is not finite")]
    NotFinite {
        /// The layer.
        path: String,
    },
    /// The check for values that are not finite found some in the gradients.
    #[error("the gradient of `{path}` has a value that is not finite")]
    GradientNotFinite {
        /// The parameter.
        path: String,
    },
    /// A parameter that the model does not have.
    #[error("the model has no parameter `{path}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownParameter {
        /// The path asked for.
        path: String,
        /// The most similar one there is.
        nearest: Option<String>,
    },
    /// A gradient is asked for where there is none: running statistics and frozen parameters are not optimised.
    #[error("`{path}` is not optimised, so it has no gradient")]
    NotOptimised {
        /// The parameter.
        path: String,
    },
    /// An optimiser that has moments for another model.
    #[error(
        "the optimiser holds moments for {expected} parameters, and is given {found}: make one for each model"
    )]
    OtherModel {
        /// How many elements of parameters it was used with.
        expected: usize,
        /// How many it is given.
        found: usize,
    },
    /// A sample that the data does not have.
    #[error("there is no sample {index}: the data has {samples}")]
    SampleOutOfRange {
        /// The sample.
        index: usize,
        /// How many there are.
        samples: usize,
    },
    /// A way to sample that is none, or logits that can't be sampled from.
    #[error("can't sample: {reason}")]
    Sampling {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Values for a parameter that has another number of them.
    #[error("`{path}` has {expected} values, {found} were given")]
    ParameterLength {
        /// The parameter.
        path: String,
        /// How many it has.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A checkpoint could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A checkpoint that is damaged or no checkpoint.
    #[error("{} is not a whole safetensors file: {reason}", path.display())]
    NotACheckpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint of another model.
    #[error("{} does not fit the model:\n{report}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Every tensor that does not fit.
        report: Box<crate::checkpoint::LoadReport>,
    },
    /// A checkpoint of which nothing, or not clearly what, can be loaded in part.
    #[error("{} can't be loaded in part: {reason}", path.display())]
    NotPartial {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint that does not hold what resuming needs.
    #[error("{} can't be resumed from: {reason}", path.display())]
    NotResumable {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
}

/// The name most like `name`, if any is similar at all.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<String> {
    let best = names.map(|n| (distance(name, n), n)).min()?;
    (best.0 <= name.len().max(best.1.len()) / 2).then(|| best.1.to_owned())
}

/// Edits (insertions, deletions, replacements) from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_name_is_found_and_nonsense_is_not() {
        let names = ["fc1.weight", "fc1.bias", "fc2.weight"];
        assert_eq!(nearest("fc1.wieght", names.into_iter()).as_deref(), Some("fc1.weight"));
        assert_eq!(nearest("zzzzzzzzzzzz", names.into_iter()), None);
    }
}
