//! Sequences given piece by piece, against the same given at once.

use nn::*;

#[module]
struct Block<const S: usize, const D: usize> {
    ln1: LayerNorm<D>,
    q: Linear<D, D>,
    k: Linear<D, { D / 2 }>,
    v: Linear<D, { D / 2 }>,
    attn: GQAAttention<S, 4, 2, { D / 4 }>,
    out: Linear<D, D>,
    ln2: RMSNorm<D>,
    up: LinearGELUTanh<D, { 2 * D }>,
    down: Linear<{ 2 * D }, D>,
}

#[module]
impl<const S: usize, const D: usize> Block<S, D> {
    fn forward(&self, x: T![..S, D]) -> T![..S, D] {
        let h = self.ln1(x);
        let q = RoPE::<S, 4, { D / 4 }>(self.q(h));
        let k = RoPE::<S, 2, { D / 4 }>(self.k(h));
        let x = x + self.out(self.attn(q, k, self.v(h)));
        x + self.down(self.up(self.ln2(x)))
    }
}

#[module]
struct Decoder<const V: usize, const S: usize, const D: usize> {
    tok: Embedding<V, D>,
    blocks: Repeat<Block<S, D>, 3>,
    packed: Linear<D, { 3 * D }>,
    last: CausalAttention<S, 2, { D / 2 }>,
    norm: LayerNorm<D>,
    #[tied = "tok.weight"]
    head: TiedLinear<D, V>,
}

#[module]
impl<const V: usize, const S: usize, const D: usize> Decoder<V, S, D> {
    fn forward(&self, ids: Ids<T![..S]>) -> T![..S, V] {
        let h = self.blocks(self.tok(ids));
        self.head(self.norm(h + self.last(self.packed(h))))
    }
}

#[module]
type Small = Decoder<11, 96, 16>;

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + i * i) % 11).collect()
}

/// What the model says of two sequences, given in pieces, each sequence's together.
fn in_pieces<E: kernels::cpu::Real>(
    weights: &Weights<Small, Cpu<E>>,
    ids: [&[u32]; 2],
    pieces: &[usize],
) -> [Vec<E>; 2] {
    let mut cache = KvCache::new(weights, 2).unwrap();
    // What an earlier sequence left is not to be seen.
    cache.forward(weights, &[9; 2 * 96]).unwrap();
    cache.reset();
    let mut found = [const { Vec::new() }; 2];
    let mut at = 0;
    for n in pieces {
        let given: Vec<u32> = ids.iter().flat_map(|ids| &ids[at..at + n]).copied().collect();
        let y = cache.forward(weights, &given).unwrap();
        let (first, second) = y.split_at(y.len() / 2);
        found[0].extend_from_slice(first);
        found[1].extend_from_slice(second);
        at += n;
        assert_eq!(cache.position(), at);
    }
    found
}

fn at_once<E: kernels::cpu::Real>(weights: &Weights<Small, Cpu<E>>, ids: &[u32]) -> Vec<E> {
    Workspace::<Small, Cpu<E>>::new(weights.device(), 1).unwrap().infer(weights, ids).unwrap().to_vec()
}

const PIECES: [&[usize]; 5] = [&[70], &[1; 70], &[69, 1], &[3, 1, 33, 32, 1], &[1, 64, 5]];

#[test]
fn in_double_precision_pieces_give_the_same_bits_as_the_whole() {
    let weights = Weights::<Small, Cpu<f64>>::new(Cpu::default(), 1).unwrap();
    let (a, b) = (tokens(70), tokens(140).split_off(70));
    let expected = [at_once(&weights, &a), at_once(&weights, &b)];
    for pieces in PIECES {
        assert_eq!(in_pieces(&weights, [&a, &b], pieces), expected, "{pieces:?}");
    }
}

#[test]
fn in_single_precision_they_agree_closely() {
    let weights = Weights::<Small, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    let (a, b) = (tokens(70), tokens(140).split_off(70));
    let expected = [at_once(&weights, &a), at_once(&weights, &b)];
    for pieces in PIECES {
        let found = in_pieces(&weights, [&a, &b], pieces);
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (found - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
                "{pieces:?}: {found} {expected}"
            );
        }
    }
}

#[test]
fn too_many_tokens_are_refused_before_anything_is_written() {
    let weights = Weights::<Small, Cpu<f64>>::new(Cpu::default(), 1).unwrap();
    let mut cache = KvCache::new(&weights, 1).unwrap();
    assert_eq!((cache.context(), cache.sequences()), (96, 1));
    let ids = tokens(96);
    let whole = at_once(&weights, &ids);
    cache.forward(&weights, &ids[..90]).unwrap();
    for n in [7, 96, 200] {
        let error = cache.forward(&weights, &tokens(n)).unwrap_err();
        assert!(
            matches!(error, Error::ContextOverflow { past: 90, given, context: 96 } if given == n),
            "{error}"
        );
        assert_eq!(cache.position(), 90);
    }
    // An id that is not there is noticed later, and still nothing moves.
    assert!(matches!(cache.forward(&weights, &[0, 11]), Err(Error::IdOutOfRange { id: 11, .. })));
    assert_eq!(cache.position(), 90);
    let last = cache.forward(&weights, &ids[90..]).unwrap();
    assert_eq!(last, &whole[90 * 11..]);
    assert!(matches!(cache.forward(&weights, &[0]), Err(Error::ContextOverflow { past: 96, .. })));
}

#[test]
fn tokens_can_be_taken_back() {
    let weights = Weights::<Small, Cpu<f64>>::new(Cpu::default(), 1).unwrap();
    let mut cache = KvCache::new(&weights, 1).unwrap();
    let ids = tokens(20);
    cache.forward(&weights, &[&ids[..10], &[3, 3, 3]].concat()).unwrap();
    cache.rewind(10);
    let rest = cache.forward(&weights, &ids[10..]).unwrap().to_vec();
    assert_eq!(rest, at_once(&weights, &ids)[10 * 11..]);
    cache.rewind(50);
    assert_eq!(cache.position(), 20);
}

#[test]
fn a_cache_is_as_large_as_its_keys_and_values() {
    let weights = Weights::<Small, Cpu<f32>>::new(Cpu::default(), 1).unwrap();
    let size = <Small as Layer<Ids<T![..96]>>>::CACHE;
    // Keys and values of three blocks with two heads of four, and of one with two heads of eight.
    let exact = 4 * 96 * 2 * (3 * 8 + 16);
    assert!((exact..exact + 8 * 64 + 64).contains(&size.at(1, 4)), "{}", size.at(1, 4));
    let (one, four) =
        (KvCache::new(&weights, 1).unwrap().bytes(), KvCache::new(&weights, 4).unwrap().bytes());
    assert!(four > 3 * one);
}
