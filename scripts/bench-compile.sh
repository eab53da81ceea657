#!/usr/bin/env bash
# How long a model takes to compile, on top of built dependencies: `cargo check` and `cargo build --release` of a
# crate that holds one model and one training step, the median of RUNS runs (5 unless set). Prints a Markdown table.
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

median() { sort -n | sed -n "$(((runs + 1) / 2))p"; }

measure() { # COMMAND...: seconds
  for ((r = 0; r < runs; r++)); do
    touch "$work/src/main.rs"
    local from to
    from=$(date +%s.%N)
    (cd "$work" && CARGO_TARGET_DIR="$work/target" "$@" --quiet)
    to=$(date +%s.%N)
    echo "$to $from" | awk '{printf "%.2f\n", $1 - $2}'
  done | median
}

echo "| model | \`cargo check\` | \`cargo build --release\` |"
echo "|---|---|---|"
row() { # TITLE GENERATOR ARGUMENT
  "$2" ${3+"$3"} > "$work/src/main.rs"
  (cd "$work" && CARGO_TARGET_DIR="$work/target" cargo build --release --quiet && CARGO_TARGET_DIR="$work/target" cargo check --quiet)
  echo "| $1 | $(measure cargo check) s | $(measure cargo build --release) s |"
}
row "no model (the floor)" nothing
row "50-layer sequential, Linear and ReLU" chain 50
row "50-layer sequential, every width different" widths 50
row "6-block residual MLP" residual 6
