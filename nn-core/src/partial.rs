use crate::error::{Error, nearest};
use crate::table::Parameter;

/// What [`Model::load_partial`](crate::Model::load_partial) takes from a file: for transfer learning, and for files
/// that hold more than the model, or under other names.
///
/// As it is made, every parameter of the model must be in the file, and the file may have more. Names are those of
/// the model, but for the first argument of [`prefix`](Self::prefix).
///
/// ```no_run
/// # use nn_core as nn;
/// use nn::{Linear, LinearReLU, Model, Partial, sequential};
///
/// sequential! { Encoder: [64] -> [32] = up: LinearReLU<64, 128>, pooler: Linear<128, 32> }
/// sequential! { Classifier: [64] -> [3] = encoder: Encoder, head: Linear<32, 3> }
///
/// let mut model = Model::<Classifier>::init(1, 8)?;
/// // The file has `bert.up.weight` and so on, with a head of its own, and perhaps no pooler.
/// let partial = Partial::new().prefix("bert.", "encoder.").only("encoder").may_lack("encoder.pooler");
/// let report = model.load_partial("bert.safetensors", &partial)?;
/// println!("{report}");
/// # Ok::<(), nn::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    prefixes: Vec<(String, String)>,
    renamed: Vec<(String, String)>,
    only: Vec<String>,
    may_lack: Vec<String>,
    transposed: Vec<String>,
}

impl Partial {
    /// Every parameter of the model, under its own name.
    pub fn new() -> Self {
        Self::default()
    }

    /// What begins with `file` in the file begins with `model` in the model; either may be empty. Of several, the
    /// first that fits a name is taken; a name that none fits stays as it is.
    pub fn prefix(mut self, file: &str, model: &str) -> Self {
        self.prefixes.push((file.to_owned(), model.to_owned()));
        self
    }

    /// What is called `file` in the file, wherever it stands between dots, is called `model` in the model: the parts of
    /// blocks that come many times, `rename("input_layernorm", "norm1")`. After the prefixes, in the order given. An
    /// empty `model` leaves it out.
    pub fn rename(mut self, file: &str, model: &str) -> Self {
        self.renamed.push((file.to_owned(), model.to_owned()));
        self
    }

    /// Only the parameters at or below this path; called again, of that path as well. The others stay as they are.
    pub fn only(mut self, path: &str) -> Self {
        self.only.push(path.trim_end_matches('.').to_owned());
        self
    }

    /// Parameters at or below this path may be missing in the file; so may those that have its words anywhere in theirs,
    /// whole ones between dots: `lora_A`. Then they stay as they are.
    pub fn may_lack(mut self, path: &str) -> Self {
        self.may_lack.push(path.trim_end_matches('.').to_owned());
        self
    }

    /// The file has the matrices at or below this path the other way round, `[IN, OUT]`, as GPT-2's `Conv1D` and other
    /// libraries than PyTorch have them. What has not two axes is as ever.
    pub fn transposed(mut self, path: &str) -> Self {
        self.transposed.push(path.trim_end_matches('.').to_owned());
        self
    }

    /// Whether the file has this parameter the other way round.
    pub(crate) fn turns(&self, p: &Parameter) -> bool {
        p.dims.rank() == 2 && self.transposed.iter().any(|above| is_below(&p.path, above))
    }

    /// Whether a parameter is to be loaded.
    pub(crate) fn wants(&self, path: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|above| is_below(path, above))
    }

    /// Whether a parameter may be missing.
    pub(crate) fn may_be_missing(&self, path: &str) -> bool {
        self.may_lack.iter().any(|words| has_words(path, words))
    }

    /// What a name of the file is in the model.
    pub(crate) fn to_model(&self, name: &str) -> String {
        self.renamed.iter().fold(self.prefixed(name), |name, (file, model)| renamed(&name, file, model))
    }

    fn prefixed(&self, name: &str) -> String {
        let fits =
            self.prefixes.iter().find_map(|(file, model)| Some((name.strip_prefix(file.as_str())?, model)));
        match fits {
            Some((rest, model)) => format!("{model}{rest}"),
            None => name.to_owned(),
        }
    }

    /// What fits none of these names, in words: it is misspelt.
    pub(crate) fn idle<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Option<String> {
        let near = |text: &str| {
            let near = nearest(text, names.clone());
            near.map(|n| format!("; it has `{n}`")).unwrap_or_default()
        };
        let fits = |file: &str| names.clone().any(|name| name.starts_with(file));
        let prefix = self.prefixes.iter().map(|(file, _)| file).find(|file| !fits(file));
        if let Some(prefix) = prefix {
            return Some(format!("no name in it begins with `{prefix}`{}", near(prefix)));
        }
        let mut names: Vec<_> = names.clone().map(|name| self.prefixed(name)).collect();
        for (file, model) in &self.renamed {
            let mut fits = false;
            for name in &mut names {
                let new = renamed(name, file, model);
                fits |= new != *name;
                *name = new;
            }
            if !fits && file != model {
                return Some(format!("no name in it has the part `{file}`"));
            }
        }
        None
    }

    /// Whether the paths are the model's.
    pub(crate) fn check(&self, parameters: &[Parameter]) -> Result<(), Error> {
        let words = self.may_lack.iter().map(|words| (words, true));
        let paths = self.only.iter().chain(&self.transposed).map(|path| (path, false));
        for (path, anywhere) in words.chain(paths) {
            let fits =
                |p: &Parameter| if anywhere { has_words(&p.path, path) } else { is_below(&p.path, path) };
            if !parameters.iter().any(fits) {
                let paths = parameters.iter().flat_map(|p| {
                    let ends = p.path.match_indices('.').map(|(end, _)| end).chain([p.path.len()]);
                    ends.map(|end| &p.path[..end])
                });
                return Err(Error::UnknownParameter { path: path.clone(), nearest: nearest(path, paths) });
            }
        }
        Ok(())
    }
}

/// A path in which these words, whole ones between dots, are replaced.
fn renamed(path: &str, file: &str, model: &str) -> String {
    let (words, file): (Vec<_>, Vec<_>) = (path.split('.').collect(), file.split('.').collect());
    let (mut all, mut rest) = (Vec::new(), &words[..]);
    while let Some((word, after)) = rest.split_first() {
        if rest.starts_with(&file) {
            all.extend((!model.is_empty()).then_some(model));
            rest = &rest[file.len()..];
        } else {
            all.push(word);
            rest = after;
        }
    }
    all.join(".")
}

/// Whether a path has these words next to each other, whole ones between dots.
fn has_words(path: &str, words: &str) -> bool {
    let (path, words): (Vec<_>, Vec<_>) = (path.split('.').collect(), words.split('.').collect());
    words == [""] || path.windows(words.len()).any(|window| window == words)
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| above.is_empty() || rest.is_empty() || rest.starts_with('.'))
}
