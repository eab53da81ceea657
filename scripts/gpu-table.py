#!/usr/bin/env python3
"""Makes a table of what gpu-check.sh measured.

    gpu-table.py FIGURES             prints it
    gpu-table.py --write FIGURES     puts it into BENCHMARKS.md
"""

import json
import math
import sys
from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent / "BENCHMARKS.md"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
TITLES = {
    "gpt-train": "GPT, 6 layers of 384: a step of AdamW, 64 × 256 tokens",
    "resnet-train": "ResNet-20 on 32×32: a step of Adam, 128 samples",
    "policy-train": "policy 8→64→64→4: a step of Adam, 256 samples",
    "policy-forward-1": "the same, forward, 1 sample",
    "policy-forward-256": "the same, forward, 256 samples",
    "product-4096": "matrix product, 4,096³",
    "product-1024x768x3072": "matrix product, 1,024 × 768 × 3,072",
    "attention": "causal attention, 8 × 12 heads of 64, 1,024 tokens",
    "attention-vjp": "… its gradients",
    "copy": "copy, 65,536 × 1,024",
    "layer-norm": "LayerNorm, 65,536 × 1,024",
    "softmax": "softmax, 65,536 × 1,024",
    "adam": "AdamW, 100 M parameters",
}
TORCH = ["eager", "captured", "reduce-overhead", "max-autotune-no-cudagraphs"]
HEADS = ["work", "products in", "nn", "nn without graphs", "rate", "PyTorch", "… in a CUDA graph", "… reduce-overhead",
         "… max-autotune", "ratio"]


def digits(value):
    """Three of them, and no exponent."""
    if value <= 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{places}f}"


def duration(line):
    if line is None:
        return ""
    ms = line["ms"]
    return f"{digits(ms * 1e3)} µs" if ms < 1 else f"{digits(ms)} ms" if ms < 1e3 else f"{digits(ms / 1e3)} s"


def rate(line):
    if line is None:
        return ""
    if line["bytes"]:
        return f"{digits(line['gb_s'])} GB/s"
    each = "" if line["unit"] == "calls" else f", {digits(line['per_s'])} {line['unit']}/s"
    return f"{digits(line['tflops'])} TFLOP/s{each}"


def differences(lines):
    """Works that the programs do not count alike, and so do not do alike."""
    seen, found = {}, []
    for line in lines:
        # A multiple of a half is exact in either.
        counts = (line["params"], float(line["flops"]), float(line["bytes"]), line["tiny"])
        first = seen.setdefault(line["work"], counts)
        if first != counts:
            found.append(f"{line['work']}: {first} and {counts}")
    return sorted(set(found))


def table(data):
    lines = data["figures"]
    found = {(x["peer"], x["work"], x["precision"], x["mode"]): x for x in lines}
    rows = dict.fromkeys((x["work"], x["precision"]) for x in lines)
    order = list(TITLES)
    text = [f"{data['machine']}. {data['manifest']}. {data['date']}.", ""]
    if any(x["tiny"] for x in lines):
        text += ["**Tiny sizes: a try of the programs, no measurement.**", ""]
    text += ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for work, precision in sorted(rows, key=lambda row: order.index(row[0]) if row[0] in order else len(order)):
        of = lambda peer, *modes: next(filter(None, (found.get((peer, work, precision, m)) for m in modes)), None)
        ours, launched = of("nn", "graphs", "kernel"), of("nn", "launches")
        theirs = [of("torch", "eager", "kernel"), *(of("torch", mode) for mode in TORCH[1:])]
        mine = [x["ms"] for x in (ours, launched) if x]
        best = [x["ms"] for x in theirs if x]
        ratio = digits(min(best) / min(mine)) if mine and best and min(mine) > 0 else ""
        cells = [TITLES.get(work, work), precision.upper(), duration(ours), duration(launched), rate(ours)]
        cells += [*map(duration, theirs), ratio]
        text.append("| " + " | ".join(cells) + " |")
    text += ["", "Medians; rates are `nn`'s. A ratio is PyTorch's fastest time by ours: above 1, `nn` is faster."]
    return "\n".join(text)


def main():
    write = sys.argv[1:2] == ["--write"]
    paths = sys.argv[2:] if write else sys.argv[1:]
    if len(paths) != 1:
        sys.exit(__doc__)
    data = json.loads(Path(paths[0]).read_text())
    wrong = differences(data["figures"])
    if wrong:
        sys.exit("the programs do not do the same:\n" + "\n".join(wrong))
    if not write:
        print(table(data))
        return
    if any(line["tiny"] for line in data["figures"]):
        sys.exit("these are of tiny sizes, and no measurement")
    report = REPORT.read_text()
    before, rest = report.split(BEGIN)
    _, after = rest.split(END)
    REPORT.write_text(f"{before}{BEGIN}\n{table(data)}\n{END}{after}")


if __name__ == "__main__":
    main()
