#!/usr/bin/env python3
"""Turns ONNX's own node tests into safetensors files, so that Rust can read them without protobuf.

    python tests/oracle/onnx_cases.py FOLDER      needs onnx and numpy

See README.md beside this file for the format. `scripts/get-data.sh onnx-node-tests` runs it.
"""

import json
import pathlib
import sys

import onnx
from onnx import numpy_helper

import tensorfile

OPERATORS = {
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "Gelu",
    "LayerNormalization",
    "LogSoftmax",
    "MaxPool",
    "RMSNormalization",
    "Relu",
    "RotaryEmbedding",
    "Sigmoid",
    "Softmax",
    "Tanh",
}


def plain(value):
    """An attribute's value as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)) or hasattr(value, "__iter__") and not isinstance(value, str):
        return [plain(v) for v in value]
    return value


def tensor(path):
    return numpy_helper.to_array(onnx.load_tensor(path))


def convert(folder):
    """The test's tensors and metadata, or None where it is not one node of a wanted operator."""
    model = onnx.load(folder / "model.onnx")
    graph = model.graph
    if len(graph.node) != 1 or graph.node[0].op_type not in OPERATORS or graph.initializer:
        return None
    node, data = graph.node[0], folder / "test_data_set_0"
    given = {value.name: data / f"input_{i}.pb" for i, value in enumerate(graph.input)}
    wanted = {value.name: data / f"output_{i}.pb" for i, value in enumerate(graph.output)}
    tensors = {f"in{i}": tensor(given[name]) for i, name in enumerate(node.input) if name}
    tensors |= {f"out{i}": tensor(wanted[name]) for i, name in enumerate(node.output) if name}
    attributes = {a.name: plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    metadata = {
        "case": folder.name,
        "op": node.op_type,
        "opset": str(opset),
        "attributes": json.dumps(attributes, sort_keys=True, separators=(",", ":")),
    }
    return tensors, metadata


def main(target):
    target = pathlib.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"
    count = 0
    for folder in sorted(source.glob("test_*")):
        # An expanded test is the same vectors with the operator spelt out in smaller ones.
        if "_expanded" in folder.name:
            continue
        converted = convert(folder)
        if converted:
            tensorfile.save(target / f"{folder.name}.safetensors", *converted)
            count += 1
    print(f"{count} tests of onnx {onnx.__version__}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
