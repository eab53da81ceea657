#!/usr/bin/env bash
# Builds, where there is no GPU, what runs on a GPU: tests, a benchmark and the scripts they need, in one folder to be
# carried to a machine that has neither Rust nor a network. There: FOLDER/gpu-check.sh
#
#   scripts/gpu-pack.sh [FOLDER]    target/gpu, unless another is named
#
# The other machine needs Linux on x86-64, and no older glibc than the programs ask for (the manifest says which).
set -euo pipefail
[[ $# -le 1 && ${1:-} != -* ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }

most_kib=$((60 * 1024))
folder=$(realpath -m "${1:-$(dirname "$0")/../target/gpu}")
cd "$(dirname "$0")/.."

# What is in it may be deleted only if it was put there by this script.
if [[ -e $folder && ! -f $folder/MANIFEST && -n $(ls -A "$folder") ]]; then
  echo "$folder holds something else: name another folder" >&2
  exit 2
fi
rm -rf "$folder"
mkdir -p "$folder"
# A folder of programs must not be committed, wherever it is.
echo '*' > "$folder/.gitignore"

built=$(mktemp)
trap 'rm -f "$built"' EXIT
cargo build --release --locked --message-format=json-render-diagnostics \
  -p nn -p nn-kernels -p nn-cuda-emulator -p nn-bench --features nn/cuda,nn-kernels/cuda,nn-bench/cuda \
  --test cuda --test nvrtc --test arithmetic --bin gpu > "$built"

# Packages have tests of the same name: the source's path tells them apart.
pack() { # SOURCE NAME
  local program
  program=$(grep -F "\"src_path\":\"$PWD/$1\"" "$built" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | tail -n 1)
  [[ -n $program ]] || { echo "$1 gave no program" >&2; exit 1; }
  cp "$program" "$folder/$2"
  # Names of functions stay, for backtraces.
  strip --strip-debug "$folder/$2"
}
pack cuda-emulator/tests/arithmetic.rs wrappers.test
pack nn-kernels/tests/cuda/main.rs kernels.test
pack tests/cuda.rs models.test
pack nn-kernels/tests/nvrtc.rs nvrtc.test
pack bench/src/bin/gpu.rs bench
cp scripts/gpu-check.sh scripts/gpu-table.py scripts/peers/{torch_gpu,torch_peer,protocol}.py "$folder/"

glibc=$(strings -a "$folder"/*.test "$folder/bench" | grep -oE '^GLIBC_2\.[0-9]+$' | sort -Vu | tail -n 1)
changes=$(git status --porcelain 2> /dev/null | grep -c . || true)
{
  commit=$(git rev-parse --short=12 HEAD 2> /dev/null || echo unknown)
  echo "# commit $commit, $changes files changed since; $(rustc --version), ${glibc:-glibc unknown}"
  (cd "$folder" && sha256sum -- *)
} > "$built"
cp "$built" "$folder/MANIFEST"
chmod 644 "$folder/MANIFEST"

cat "$folder/MANIFEST"
kib=$(du -sk "$folder" | cut -f 1)
echo "$folder: $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB, $(find "$folder" -type f | wc -l) files"
if ((kib >= most_kib)); then
  echo "it is too large to be carried: $((most_kib / 1024)) MiB at most" >&2
  exit 1
fi
