//! From texts to vectors of length 1, whose products say how much alike the texts are.

use std::error::Error;
use std::path::Path;

use nn::{Cpu, Declared, Host, Module, Partial, Weights, Workspace, Zero, module};
use tokenizers::{Tokenizer, TruncationParams};

use crate::bert::Bert;

/// The most tokens of a text, its two marks included.
pub(crate) const LENGTH: usize = 512;
/// Values of a text's vector.
pub(crate) const WIDTH: usize = 384;

/// all-MiniLM-L6-v2 (Wang and others, 2020, arXiv:2002.10957, trained further by the authors of sentence-transformers).
#[module]
pub(crate) type MiniLm = Bert<30522, 512, 384, 12, 6>;

// Names and shapes are held against the file's when this is compiled, without the file. It also has the numbers
// from 0 to 511, as `position_ids`.
nn::checkpoint!("examples/minilm/model.header.json" as MiniLm, extra = allow, dtype = F32);

/// The model with what turns texts into tokens.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    weights: Weights<MiniLm, Cpu<f32>>,
    runner: Runner<MiniLm>,
}

impl Encoder {
    /// From a folder with `tokenizer.json` and `model.safetensors`, for so many texts at a time.
    pub(crate) fn open(folder: &Path, batch: usize) -> Result<Self, Box<dyn Error>> {
        let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|e| e.to_string())?;
        // The file asks for 128 tokens exactly, which was for training.
        tokenizer.with_padding(None);
        let truncation = TruncationParams { max_length: LENGTH, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|e| e.to_string())?;
        // All of it is loaded.
        let mut weights = Weights::init_with::<Zero>(Cpu::new()?, 0)?;
        // The file has a pooler, too, which sentences are not made with.
        weights.load_partial(folder.join("model.safetensors"), &Partial::new())?;
        let runner = Runner::new(weights.device(), batch)?;
        Ok(Self { tokenizer, weights, runner })
    }

    /// The model's parameters.
    pub(crate) fn weights(&self) -> &Weights<MiniLm, Cpu<f32>> {
        &self.weights
    }

    /// The tokens of a text, with a mark at either end, and whether there are more than can be read.
    pub(crate) fn tokens(&self, text: &str) -> Result<(Vec<u32>, bool), Box<dyn Error>> {
        let found = self.tokenizer.encode_fast(text, true).map_err(|e| e.to_string())?;
        Ok((found.get_ids().to_vec(), !found.get_overflowing().is_empty()))
    }

    /// A vector for each text.
    pub(crate) fn embed<S: AsRef<str>>(&mut self, texts: &[S]) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
        let tokens = texts.iter().map(|text| Ok(self.tokens(text.as_ref())?.0));
        let tokens = tokens.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        Ok(self.vectors(&tokens)?)
    }

    /// A vector for each text, given its tokens.
    pub(crate) fn vectors(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, nn::Error> {
        self.runner.vectors(&self.weights, texts)
    }
}

/// Memory to run a model of tokens, positions and types.
struct Runner<M: Declared> {
    workspace: Workspace<M, Cpu<f32>>,
    /// The inputs of one run.
    inputs: [Vec<u32>; 3],
}

impl<M: Declared + Module<Cpu<f32>, <M as Declared>::In>> Runner<M> {
    fn new(device: &Cpu<f32>, batch: usize) -> Result<Self, nn::Error> {
        Ok(Self { workspace: Workspace::new(device, batch)?, inputs: Default::default() })
    }

    /// Texts of one length are run together, so that none has to be filled up.
    fn vectors(
        &mut self,
        weights: &Weights<M, Cpu<f32>>,
        texts: &[Vec<u32>],
    ) -> Result<Vec<Vec<f32>>, nn::Error>
    where
        M::In: for<'a> Host<Slices<'a, f32> = (&'a [u32], &'a [u32], &'a [u32])>,
        M::Out: for<'a> Host<Slices<'a, f32> = &'a [f32]>,
    {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|i| texts[*i].len());
        let mut vectors = vec![Vec::new(); texts.len()];
        for same in order.chunk_by(|a, b| texts[*a].len() == texts[*b].len()) {
            for some in same.chunks(self.workspace.capacity()) {
                let [tokens, positions, types] = &mut self.inputs;
                tokens.clear();
                some.iter().for_each(|i| tokens.extend(&texts[*i]));
                positions.clear();
                some.iter().for_each(|i| positions.extend(0..texts[*i].len() as u32));
                types.clear();
                types.resize(tokens.len(), 0);
                self.workspace.set_sequences(some.len());
                let y = self.workspace.infer(weights, (tokens, positions, types))?;
                for (i, y) in some.iter().zip(y.chunks(y.len() / some.len())) {
                    vectors[*i] = pool(y, y.len() / texts[*i].len());
                }
            }
        }
        Ok(vectors)
    }
}

/// The mean of the tokens' vectors, of `width` values each, scaled to length 1.
fn pool(y: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    for token in y.chunks(width) {
        sum.iter_mut().zip(token).for_each(|(s, v)| *s += v);
    }
    // The mean's number of tokens cancels out.
    let length = dot(&sum, &sum).sqrt().max(f32::MIN_POSITIVE);
    sum.iter_mut().for_each(|v| *v /= length);
    sum
}

/// How much alike two texts are, in [−1, 1].
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use nn::parameters_of;

    use super::*;

    #[module]
    type Small = Bert<50, 12, 8, 2, 2>;

    fn tokens(len: usize, start: u32) -> Vec<u32> {
        (0..len as u32).map(|i| (start + i * 7) % 50).collect()
    }

    #[test]
    fn the_parameters_have_the_names_of_the_file() {
        let all = parameters_of::<MiniLm>();
        assert_eq!(all.iter().map(|p| p.len()).sum::<usize>(), 22_565_376);
        let shape = |path: &str| all.iter().find(|p| p.path == path).map(|p| p.dims.to_vec());
        assert_eq!(all.len(), 5 + 6 * 16);
        assert_eq!(shape("embeddings.word_embeddings.weight"), Some(vec![30522, 384]));
        assert_eq!(shape("embeddings.LayerNorm.bias"), Some(vec![384]));
        assert_eq!(shape("encoder.layer.5.attention.self.key.weight"), Some(vec![384, 384]));
        assert_eq!(shape("encoder.layer.0.attention.output.LayerNorm.weight"), Some(vec![384]));
        assert_eq!(shape("encoder.layer.0.intermediate.dense.weight"), Some(vec![1536, 384]));
        assert_eq!(shape("encoder.layer.0.output.dense.weight"), Some(vec![384, 1536]));
    }

    #[test]
    fn texts_of_any_length_have_the_vectors_they_have_alone() {
        let device = Cpu::new().unwrap();
        let weights = Weights::new(device, 3).unwrap();
        let mut many = Runner::<Small>::new(&device, 3).unwrap();
        let mut one = Runner::<Small>::new(&device, 1).unwrap();
        // Some lengths once, some more often than are run together.
        let texts: Vec<_> =
            (1..=12).chain([5, 5, 9, 5, 5, 12]).zip(0..).map(|(len, i)| tokens(len, i)).collect();
        let together = many.vectors(&weights, &texts).unwrap();
        for (text, found) in texts.iter().zip(&together) {
            let alone = &one.vectors(&weights, std::slice::from_ref(text)).unwrap()[0];
            assert_eq!(found.len(), 8);
            assert!((dot(found, found) - 1.0).abs() < 1e-5, "{found:?}");
            assert!(found.iter().zip(alone).all(|(a, b)| (a - b).abs() < 1e-5), "{} tokens", text.len());
        }
        assert!(many.vectors(&weights, &[tokens(13, 0)]).unwrap_err().to_string().contains("bound of 12"));
    }

    #[test]
    fn the_order_of_tokens_matters() {
        let device = Cpu::new().unwrap();
        let weights = Weights::new(device, 3).unwrap();
        let mut runner = Runner::<Small>::new(&device, 2).unwrap();
        let found = runner.vectors(&weights, &[vec![1, 2, 3], vec![3, 2, 1]]).unwrap();
        assert!(dot(&found[0], &found[1]) < 0.999, "positions are read");
    }

    #[test]
    fn a_text_is_the_mean_of_its_tokens_scaled_to_length_1() {
        assert_eq!(pool(&[1.0, 4.0, 5.0, 4.0], 2), [0.6, 0.8]);
    }

    /// Three values of the vectors of `1000 + 37i² mod 30522`, as computed in double precision with PyTorch.
    const KNOWN: [(usize, [f32; 3]); 7] = [
        (1, [0.000332, 0.001250, -0.014465]),
        (2, [-0.067422, 0.015082, 0.047196]),
        (17, [0.007264, 0.038071, -0.012119]),
        (128, [0.011750, 0.026642, -0.043484]),
        (300, [0.050135, 0.018230, -0.033655]),
        (511, [0.085455, 0.020700, -0.025123]),
        (512, [0.086460, 0.020393, -0.024870]),
    ];

    // Run by .ci/run, in release, wherever the weights can be fetched.
    #[test]
    #[ignore = "needs `scripts/get-data.sh minilm`, and some minutes in a debug build: `.ci/run` runs it in release"]
    fn every_length_works_with_the_real_weights() {
        let mut encoder = Encoder::open(Path::new("data/minilm"), 2).unwrap();
        let text = |len: u32| (0..len).map(|i| (1000 + i * i * 37) % 30522).collect::<Vec<_>>();
        for len in 1..=LENGTH {
            let found = &encoder.vectors(&[text(len as u32)]).unwrap()[0];
            assert!((dot(found, found) - 1.0).abs() < 1e-5, "{len} tokens");
            if let Some((_, known)) = KNOWN.iter().find(|known| known.0 == len) {
                for (i, known) in [0, 100, 383].into_iter().zip(known) {
                    assert!((found[i] - known).abs() < 2e-6, "{len} tokens: {} for {known}", found[i]);
                }
            }
        }
        assert!(encoder.vectors(&[text(513)]).is_err());
        assert!(encoder.vectors(&[vec![]]).is_err());
    }
}
