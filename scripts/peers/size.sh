#!/usr/bin/env bash
# How long a small program that trains an MLP takes to build from nothing, and how large its stripped binary is.
# Usage: scripts/peers/size.sh nn|candle|burn
set -euo pipefail
peer=$1
cd "$(dirname "$0")/size-$peer"
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
unset RUSTFLAGS
cargo fetch --locked --quiet
export CARGO_TARGET_DIR=$target
TIMEFORMAT='%R s (%U s of user time, %S s of system time)'
time cargo build --release --locked --offline --quiet
"$target/release/size-$peer"
stat --format='%s bytes' "$target/release/size-$peer"
cargo tree --locked --offline --edges normal,build --prefix none | sed 's/ (\*)$//' | sort -u | wc -l | sed 's/$/ crates/'
