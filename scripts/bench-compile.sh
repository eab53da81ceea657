#!/usr/bin/env bash
# How long a model takes to compile, on top of built dependencies: `cargo check` and `cargo build --release` of a
# crate that holds one model and one training step: the fastest and the median of RUNS runs (5 unless set). Prints a
# Markdown table. ONLY, if set, is a pattern that the titles of the rows must match.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# Nothing is reused from one run to the next but the dependencies.
export CARGO_INCREMENTAL=0
runs=${RUNS:-5}
work="$root/target/bench-compile"
mkdir -p "$work/src"
cp "$root/rust-toolchain.toml" "$work/"

cat > "$work/Cargo.toml" <<EOF
[package]
name = "bench-compile"
version = "0.0.0"
edition = "2024"
[workspace]
[dependencies]
nn = { path = "$root" }
EOF
cp "$root/Cargo.lock" "$work/Cargo.lock"

main() { # NAME IN OUT: a program that trains NAME for one step
  cat <<EOF
fn main() -> Result<(), nn::Error> {
    let mut model = nn::Model::<$1>::init(1, 8)?;
    let (x, t) = (vec![0.5; 8 * $2], vec![0.0; 8 * $3]);
    let loss = model.train_step(&x, &t, &nn::MSE::default(), &mut nn::Adam::new(1e-3))?;
    println!("{loss} {:?}", model.forward(&x)?.len());
    Ok(())
}
EOF
}

nothing() { echo 'fn main() { println!("{:?}", nn::Cpu::<f32>::default()); }'; }

chain() { # LAYERS: alternating Linear and ReLU of width 64
  echo "nn::sequential! { Net: [64] -> [64] ="
  for ((i = 1; i <= $1; i++)); do
    if ((i % 2)); then echo "    nn::Linear<64, 64>,"; else echo "    nn::ReLU,"; fi
  done
  echo "}"
  main Net 64 64
}

# Differing widths: no layer's code can be shared with another's.
widths() {
  echo "nn::sequential! { Net: [64] -> [$((64 + $1))] ="
  for ((i = 0; i < $1; i++)); do echo "    nn::LinearReLU<$((64 + i)), $((65 + i))>,"; done
  echo "}"
  main Net 64 $((64 + $1))
}

residual() { # BLOCKS
  cat <<EOF
use nn::{LayerNorm, Linear, LinearGELU, T, module};
#[module]
struct Block<const D: usize> {
    norm: LayerNorm<D>,
    up: LinearGELU<D, { 4 * D }>,
    down: Linear<{ 4 * D }, D>,
}
#[module]
impl<const D: usize> Block<D> {
    fn forward(&self, x: T![D]) -> T![D] {
        x + self.down(self.up(self.norm(x)))
    }
}
#[module]
struct Net {
$(for ((i = 0; i < $1; i++)); do echo "    b$i: Block<128>,"; done)
}
#[module]
impl Net {
    fn forward(&self, x: T![128]) -> T![128] {
$(for ((i = 0; i < $1; i++)); do echo "        let x = self.b$i(x);"; done)
        x
    }
}
EOF
  main Net 128 128
}

# A transformer that is trained for one step and then asked for the next tokens, one by one.
decode() { # NAME
  cat <<EOF
fn main() -> Result<(), nn::Error> {
    let mut model = nn::Model::<$1>::init(1, 8)?;
    let ids: Vec<u32> = (0..64).map(|i| i * 7 % 65).collect();
    let mut adam = nn::AdamW::new(1e-3);
    let loss = model.train_step(&ids[..63], &ids[1..], &nn::CrossEntropy::default(), &mut adam)?;
    let mut cache = nn::KvCache::new(model.weights(), 1)?;
    let mut next = 3;
    for _ in 0..8 {
        next = nn::argmax(cache.forward(model.weights(), &[next])?) as u32;
    }
    println!("{loss} {next}");
    Ok(())
}
EOF
}

gpt() { # BLOCKS
  cat <<EOF
use nn::{DecoderBlock, Embedding, Ids, LayerNorm, PosEmbed, Repeat, T, TiedLinear, module};
#[module]
struct Gpt {
    tokens: Embedding<65, 128>,
    places: PosEmbed<64, 128>,
    blocks: Repeat<DecoderBlock<64, 128, 4, 512>, $1>,
    norm: LayerNorm<128>,
    #[tied = "tokens.weight"]
    head: TiedLinear<128, 65>,
}
#[module]
impl Gpt {
    fn forward(&self, ids: Ids<T![..64]>) -> T![..64, 65] {
        self.head(self.norm(self.blocks(self.places(self.tokens(ids)))))
    }
}
EOF
  decode Gpt
}

# Nothing of the crate's own blocks, and each block a field.
by_hand() { # BLOCKS
  cat <<EOF
use nn::{Embedding, GQAAttention, Ids, LayerNorm, Linear, LinearGELUTanh, RoPE, T, TiedLinear, module};
#[module]
struct Block<const S: usize, const D: usize, const H: usize, const KV: usize> {
    norm1: LayerNorm<D>,
    q: Linear<D, D>,
    k: Linear<D, { D / H * KV }>,
    v: Linear<D, { D / H * KV }>,
    attn: GQAAttention<S, H, KV, { D / H }>,
    o: Linear<D, D>,
    norm2: LayerNorm<D>,
    up: LinearGELUTanh<D, { 4 * D }>,
    down: Linear<{ 4 * D }, D>,
}
#[module]
impl<const S: usize, const D: usize, const H: usize, const KV: usize> Block<S, D, H, KV> {
    fn forward(&self, x: T![..S, D]) -> T![..S, D] {
        let n = self.norm1(x);
        let q = RoPE::<S, H, { D / H }>(self.q(n));
        let k = RoPE::<S, KV, { D / H }>(self.k(n));
        let h = x + self.o(self.attn(q, k, self.v(n)));
        h + self.down(self.up(self.norm2(h)))
    }
}
#[module]
struct Gpt {
    tokens: Embedding<65, 128>,
$(for ((i = 0; i < $1; i++)); do echo "    b$i: Block<64, 128, 4, 2>,"; done)
    norm: LayerNorm<128>,
    #[tied = "tokens.weight"]
    head: TiedLinear<128, 65>,
}
#[module]
impl Gpt {
    fn forward(&self, ids: Ids<T![..64]>) -> T![..64, 65] {
        let x = self.tokens(ids);
$(for ((i = 0; i < $1; i++)); do echo "        let x = self.b$i(x);"; done)
        self.head(self.norm(x))
    }
}
EOF
  decode Gpt
}

# Seconds: the least and the median, and the least of the processors' time, which other work on the machine moves less.
measure() { # COMMAND...
  local TIMEFORMAT='%R %U %S'
  for ((r = 0; r < runs; r++)); do
    touch "$work/src/main.rs"
    { time (cd "$work" && CARGO_TARGET_DIR="$work/target" "$@" --quiet >&2 2> "$work/errors") || cat "$work/errors" >&3; } 2>&1
  done 3>&2 | sort -n | awk '
    { wall[NR] = $1; spent = $2 + $3; if (NR == 1 || spent < least) least = spent }
    END { printf "%.2f s, median %.2f s, processor %.2f s", wall[1], wall[int((NR + 1) / 2)], least }'
}

echo "load average: $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || echo unknown), $(getconf _NPROCESSORS_ONLN) cores" >&2
echo "| model | \`cargo check\` | \`cargo build --release\` |"
echo "|---|---|---|"
row() { # TITLE GENERATOR ARGUMENT
  [[ "$1" == ${ONLY-*} ]] || return 0
  "$2" ${3+"$3"} > "$work/src/main.rs"
  (cd "$work" && CARGO_TARGET_DIR="$work/target" cargo build --release --quiet && CARGO_TARGET_DIR="$work/target" cargo check --quiet)
  echo "| $1 | $(measure cargo check) | $(measure cargo build --release) |"
}
row "no model (the floor)" nothing
row "50-layer sequential, Linear and ReLU" chain 50
row "50-layer sequential, every width different" widths 50
row "6-block residual MLP" residual 6
row "6-block GPT, \`Repeat<DecoderBlock, 6>\`" gpt 6
row "6-block GPT, six fields of a block written by hand" by_hand 6
