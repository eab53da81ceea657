//! Writes text, character by character, from a cache of what was written.

use std::time::{Duration, Instant};

use nn::{Cpu, Declared, Ids, KvCache, Module, Sampler, T, Weights};

use crate::text::VOCAB;

/// What came of writing.
pub(crate) struct Written {
    /// The prompt, and what follows it.
    pub(crate) ids: Vec<u32>,
    /// How often the context was full, so that the later half of it was read again.
    pub(crate) slides: usize,
    /// How long it took to read the prompt.
    pub(crate) reading: Duration,
    /// How long it took to write all but the first character.
    pub(crate) writing: Duration,
}

/// Goes on with a prompt for so many characters, each of which `show` is given at once.
pub(crate) fn write<M, const S: usize>(
    weights: &Weights<M, Cpu<f32>>,
    prompt: &[u32],
    length: usize,
    sampler: &mut Sampler,
    mut show: impl FnMut(u32),
) -> Result<Written, nn::Error>
where
    M: Declared<In = Ids<T![..S]>, Out = T![..S, VOCAB]> + Module<Cpu<f32>, Ids<T![..S]>>,
{
    let mut cache = KvCache::new(weights, 1)?;
    let mut ids = prompt.to_vec();
    let (mut slides, mut reading) = (0, Duration::ZERO);
    // The first character that the cache has not seen.
    let mut from = prompt.len().saturating_sub(cache.context());
    let mut start = Instant::now();
    for i in 0..length {
        if cache.position() == cache.context() {
            // Positions count from the context's start, so what is kept has to be read again.
            cache.reset();
            from = ids.len() - cache.context() / 2;
            slides += 1;
        }
        let logits = cache.forward(weights, &ids[from..])?;
        from = ids.len();
        let id = sampler.sample(&logits[logits.len() - VOCAB..])?;
        ids.push(id);
        show(id);
        if i == 0 {
            reading = start.elapsed();
            start = Instant::now();
        }
    }
    Ok(Written { ids, slides, reading, writing: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use nn::{Model, Sampling, argmax, module};

    use super::*;
    use crate::model::Gpt;

    #[module]
    type Tiny = Gpt<8, 8, 2, 1, 8, 2>;

    #[test]
    fn the_cache_writes_what_reading_all_of_the_context_would() {
        for prompt in [&[5][..], &[1, 2, 3, 4, 5, 6, 7, 8], &[9; 21]] {
            // Large weights, so that it does not write one character for ever.
            let mut model = Model::<Tiny>::init_with::<nn::Xavier>(3, 1).unwrap();
            let mut sampler = Sampler::new(Sampling::Greedy, VOCAB, 1).unwrap();
            let mut shown = Vec::new();
            let written =
                write::<Tiny, 8>(model.weights(), prompt, 30, &mut sampler, |id| shown.push(id)).unwrap();
            assert_eq!(written.ids, [prompt, shown.as_slice()].concat());

            let (mut ids, mut from, mut slides) = (prompt.to_vec(), prompt.len().saturating_sub(8), 0);
            for _ in 0..30 {
                if ids.len() - from > 8 {
                    from = ids.len() - 4;
                    slides += 1;
                }
                let logits = model.forward(&ids[from..]).unwrap();
                ids.push(argmax(&logits[logits.len() - VOCAB..]) as u32);
            }
            assert_eq!((written.ids, written.slides), (ids, slides));
        }
    }
}
