"""Writes safetensors files whose bytes depend on nothing but their content.

The official writer keeps metadata in a hash map, so two runs may order it differently; a fixture that is
under version control should not change unless its numbers do.
"""

import json
import struct

import numpy as np

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "int8": "I8",
    "bool": "BOOL",
}


def save(path, tensors, metadata):
    """Writes `tensors` (name → numpy array) and `metadata` (name → str) to `path`."""
    # Widest elements first: every tensor then starts at a multiple of its own element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, chunks, end = {"__metadata__": metadata}, [], 0
    for name in order:
        array = np.asarray(tensors[name])
        chunk = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + len(chunk)],
        }
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for chunk in chunks:
            file.write(chunk)
