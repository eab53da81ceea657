#!/usr/bin/env bash
# Runs what gpu-pack.sh packed, on a machine with an NVIDIA GPU that needs neither Rust nor a network: every test, the
# smaller ones once more under compute-sanitizer, and the benchmark, beside PyTorch where python3 has it. In 9 minutes.
#
#   gpu-check.sh [FOLDER] [--only tests,sanitize,bench,torch] [--filter TEXT] [--seconds S] [--tiny]
#                [--out FOLDER] [--emulator FOLDER]
#
#   --only      some of the four parts
#   --filter    only tests whose name holds this; one that none has is a failure
#   --seconds   for each measurement of the benchmarks, 1 unless set
#   --tiny      the benchmarks' sizes for an emulator
#   --out       where log.txt, figures.json and figures.md go: $OUT, or else a new folder
#   --emulator  the folder of cuda-emulator's stand-ins for libcuda and NVRTC, to try this script where there is no GPU
#
# Libraries are looked for in GPU_LIB_ROOTS, folders separated by spaces, and python is PYTHON. The exit status is 0 if
# all that was to run did and was right, 1 if not, 2 if it could not begin.
set -uo pipefail

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
fail() { echo "$*" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
folder='' only=tests,sanitize,bench,torch filter='' seconds=1 tiny='' out=${OUT:-} emulator=''
while (($#)); do
  case $1 in
    --tiny) tiny=--tiny ;;
    --only | --filter | --seconds | --out | --emulator) (($# > 1)) || usage; printf -v "${1#--}" %s "$2"; shift ;;
    -*) usage ;;
    *) [[ -z $folder ]] || usage; folder=$1 ;;
  esac
  shift
done
for part in ${only//,/ }; do
  [[ " tests sanitize bench torch " == *" $part "* ]] || usage
done
if [[ -z $folder ]]; then
  folder=$here
  [[ -f $folder/MANIFEST ]] || folder=$here/../target/gpu
fi
[[ -f $folder/MANIFEST ]] || fail "there is no $folder/MANIFEST: run scripts/gpu-pack.sh where there is Rust"
folder=$(cd "$folder" && pwd)
[[ -n $out ]] || out=$(mktemp -d)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

(cd "$folder" && grep -v '^#' MANIFEST | sha256sum --check --quiet) || fail "$folder is not what was packed"
chmod +x "$folder"/*.test "$folder/bench" 2> /dev/null
: > "$out/log.txt"
summary=()
failed=0

# Prints a line, and keeps it in the log.
say() { printf '%s\n' "$*" | tee -a "$out/log.txt"; }
note() { # ok|FAILED TEXT
  summary+=("$(printf '%-7s %s' "$1" "$2")")
  [[ $1 != FAILED ]] || failed=1
  say "-- ${summary[-1]}"
}
wants() { [[ ,$only, == *,$1,* ]]; }

# When each part must be over, in seconds from the start. What one leaves, the next ones have.
declare -A ends=([tests]=215 [sanitize]=310 [bench]=410 [torch]=525)
limit() { # PART MOST: seconds that a step of a part may take
  local left=$((ends[$1] - SECONDS))
  echo $((left < $2 ? left : $2))
}

say "== $(sed -n 's/^# //p' "$folder/MANIFEST")"

# A folder `stubs` has libraries to link with, which only fail.
roots=()
search() { # NAME...: the first name that any root has
  local name root found
  for name; do
    for root in "${roots[@]}"; do
      [[ -d $root ]] || continue
      found=$(timeout 30 find -L "$root" -maxdepth 8 -name "$name" -not -path '*/stubs/*' -print -quit 2> /dev/null)
      [[ -z $found ]] || { echo "$found"; return 0; }
    done
  done
  return 1
}
without_stubs() { tr ':' '\n' <<< "${LD_LIBRARY_PATH:-}" | grep -v -e '/stubs/*$' -e '^$'; }

libraries=()
if [[ -n $emulator ]]; then
  [[ -f $emulator/libcuda.so && -f $emulator/libnvrtc.so ]] || fail "$emulator has no stand-ins"
  emulator=$(cd "$emulator" && pwd)
  # Kernels that are loaded later look for symbols in them.
  libraries=("LD_PRELOAD=$emulator/libcuda.so:$emulator/libnvrtc.so")
  machine="an emulator"
else
  mapfile -t roots < <(without_stubs)
  read -ra more <<< "${GPU_LIB_ROOTS:-/usr/local/nvidia /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/cuda \
    $(echo /usr/local/cuda-*) /opt /usr/local/lib /usr/lib/python3}"
  roots+=("${more[@]}")
  cuda=$(search libcuda.so.1 libcuda.so) ||
    fail "no libcuda.so.1 in ${roots[*]}: this machine has no NVIDIA driver, and so no GPU (or name GPU_LIB_ROOTS)"
  nvrtc=$(search libnvrtc.so.13 libnvrtc.so.12) ||
    fail "no NVRTC, libnvrtc.so.13 or .12, in ${roots[*]} (or name GPU_LIB_ROOTS)"
  major=${nvrtc##*.so.}
  builtins=$(find -L "$(dirname "$nvrtc")" -maxdepth 1 -name "libnvrtc-builtins.so.$major*" -print -quit)
  [[ -n $builtins ]] || builtins=$(search "libnvrtc-builtins.so.$major*") ||
    fail "no libnvrtc-builtins.so.$major in ${roots[*]} (or name GPU_LIB_ROOTS)"
  say "libcuda: $cuda; NVRTC: $nvrtc; $builtins"
  # By the names that are tried first, so that no other is found.
  mkdir "$scratch/lib"
  ln -s "$cuda" "$scratch/lib/libcuda.so"
  ln -s "$nvrtc" "$scratch/lib/libnvrtc.so"
  path=$scratch/lib:$(dirname "$cuda"):$(dirname "$nvrtc"):$(dirname "$builtins")
  libraries=("LD_LIBRARY_PATH=$path:$(without_stubs | paste -sd :)")
  # An empty entry would be the folder that this runs in.
  libraries=("${libraries[0]%:}")
  smi=$(command -v nvidia-smi || search nvidia-smi || true)
  machine=$([[ -z $smi ]] || "$smi" --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -n 1)
fi
machine="${machine:-a GPU}, $(nproc) cores"
say "machine: $machine"

# Kernels are compiled once for all programs.
programs=("${libraries[@]}" NN_CUDA=gpu NN_REQUIRE_NVRTC=1 RUST_BACKTRACE=1 "NN_CUDA_CACHE=$scratch/kernels")

step() { # PART MOST COMMAND...: its output is in $scratch/step, and at its end in the log
  local most status
  most=$(limit "$1" "$2")
  ((most > 0)) || { echo "no time is left" > "$scratch/step"; return 124; }
  timeout -k 5 "$most" "${@:3}" > "$scratch/step" 2>&1
  status=$?
  # What never ends must not fill the log.
  tail -c 1000000 "$scratch/step" >> "$out/log.txt"
  ((status != 124 && status != 137)) || echo "stopped after $most s" | tee -a "$scratch/step" >> "$out/log.txt"
  return $status
}

run_tests() { # NAME PART MOST COMMAND...: runs a program of tests, and counts what it says
  local name=$1 start=$SECONDS status passed wrong
  say "== $name"
  step "$2" "$3" env "${programs[@]}" "${@:4}" --test-threads=1 --nocapture
  status=$?
  read -r passed wrong < \
    <(sed -nE 's/.*test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' "$scratch/step" | tail -n 1)
  local took="in $((SECONDS - start)) s"
  grep -aE 'ERROR SUMMARY|RACECHECK SUMMARY' "$scratch/step" | tail -n 1
  if ((status != 0)); then
    # The names of what failed are at the end, and why in the log.
    tail -n 25 "$scratch/step"
    note FAILED "$name: status $status, ${passed:-no tests} passed and ${wrong:-?} failed, $took"
  elif grep -aqE '(^|\s)skipped: ' "$scratch/step"; then
    note FAILED "$name: something was skipped, $took"
  elif [[ -n $filter && ${passed:-0} == 0 ]]; then
    say "-- $name has no test of that name"
  elif ((${passed:-0} == 0)); then
    note FAILED "$name: there was no test"
  else
    note ok "$name: $passed passed, $took"
  fi
  total=$((total + ${passed:-0}))
}

total=0
if wants tests; then
  # It compiles every kernel for every GPU that is meant, on a processor of its own.
  if [[ -z $emulator ]]; then
    {
      timeout -k 5 "$(limit tests 200)" env "${programs[@]}" "$folder/nvrtc.test" --nocapture ${filter:+"$filter"}
      echo $? > "$scratch/nvrtc.status"
    } > "$scratch/nvrtc" 2>&1 &
  fi
  for name in wrappers kernels models; do
    run_tests "$name" tests 120 "$folder/$name.test" ${filter:+"$filter"}
  done
  if [[ -z $emulator ]]; then
    wait
    # shellcheck disable=SC2016 # It is the other shell that has these.
    run_tests nvrtc tests 9 bash -c 'cat "$0"; exit "$(cat "$0.status")"' "$scratch/nvrtc"
  else
    note none "nvrtc: an emulator's compiler tells nothing of NVRTC"
  fi
  if ((total == 0)); then note FAILED "no test at all was run${filter:+: none has \`$filter\` in its name}"; fi
fi

if wants sanitize; then
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    note none "compute-sanitizer is not on this machine"
  else
    # Of the kernels, those whose threads share memory.
    for name in wrappers kernels; do
      some=()
      [[ $name == wrappers ]] || some=(attention:: linear:: norm:: conv::)
      [[ -z $filter ]] || some=("$filter")
      for tool in memcheck racecheck; do
        run_tests "$name under $tool" sanitize 60 \
          "$sanitizer" --tool "$tool" --error-exitcode 9 "$folder/$name.test" "${some[@]}"
      done
    done
  fi
fi

: > "$scratch/figures"
figures() { # NAME PART COMMAND...: runs a program that prints a line of JSON for each measurement
  local name=$1 start=$SECONDS status lines
  say "== $name"
  step "$2" 600 "${@:3}"
  status=$?
  grep -a '^{.*}$' "$scratch/step" >> "$scratch/figures"
  lines=$(grep -ac '^{.*}$' "$scratch/step")
  local took="$lines measurements in $((SECONDS - start)) s"
  grep -av '^{.*}$' "$scratch/step" | tail -n 15
  if ((status == 0)); then
    note ok "$name: $took"
  elif [[ $2 == torch ]]; then
    # What another library does not do, or not in time, is no failure of this one.
    note short "$name: status $status, $took"
  else
    note FAILED "$name: status $status, $took"
  fi
}

if wants bench; then
  figures "the benchmark" bench env "${programs[@]}" "$folder/bench" --seconds "$seconds" $tiny
fi

python=${PYTHON:-python3}
device=cuda
[[ -z $emulator ]] || device=cpu
if wants torch; then
  there="import torch, sys; sys.exit('$device' == 'cuda' and not torch.cuda.is_available())"
  if ! step torch 60 "$python" -c "$there"; then
    note none "PyTorch: $python has none that sees the GPU"
  else
    # It ends by itself if a single measurement does not take longer than this.
    within=$(($(limit torch 600) - 45))
    figures "PyTorch" torch env PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 "$python" "$folder/torch_gpu.py" \
      --device "$device" --seconds "$seconds" --within "$within" $tiny
  fi
fi

if [[ -s $scratch/figures ]]; then
  {
    printf '{"machine":"%s","date":"%s","manifest":"%s","figures":[\n' "${machine//\"/}" "$(date -u +%F)" \
      "$(sed -n 's/^# //p' "$folder/MANIFEST" | tr -d '"')"
    sed '$!s/$/,/' "$scratch/figures"
    printf ']}\n'
  } > "$out/figures.json"
  if ! command -v "$python" > /dev/null; then
    note none "a table: there is no $python"
  elif "$python" "$folder/gpu-table.py" "$out/figures.json" > "$out/figures.md"; then
    cat "$out/figures.md"
  else
    note FAILED "the table of the figures"
  fi
fi

echo
echo "== summary, after $SECONDS s; logs and figures are in $out"
printf '%s\n' "${summary[@]}" | tee -a "$out/log.txt"
if ((failed)); then echo "FAILED"; else echo "all is well"; fi
exit "$failed"
