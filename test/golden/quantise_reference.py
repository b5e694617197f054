#!/usr/bin/env python3
"""Measures the errors of ggml's quantisers on test_quantise.c's tensors; writes quantise_reference.h next to this file.

Needs a ggml library (ggml_quantize_chunk), for instance built from the source distribution of the Python package
ggml-python 0.0.45; and numpy and gguf, whose dequantize returns the values:

    pip download --no-deps --no-binary :all: ggml-python==0.0.45 && tar xzf ggml_python-0.0.45.tar.gz
    (in its vendor/ggml: compile src/ggml.c ggml-quants.c ggml-alloc.c and src/ggml-threading.cpp ggml-backend.cpp
     ggml-backend-meta.cpp ggml.cpp gguf.cpp into libggml.so with -O3 -fPIC -Iinclude -Isrc)
    quantise_reference.py libggml.so

With a second library, a build of loaders/quantise*.c, the script prints the ratio of its errors to ggml's.
"""

import ctypes
import pathlib
import sys

import gguf
import numpy as np

ROWS, COLUMNS = 16, 1024
TYPES = ["Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def uniforms(seed, n):
    """Returns n uniforms in [0, 1): the upper 24 bits of splitmix64 at seed * 2^32 + i."""
    with np.errstate(over="ignore"):
        z = (np.uint64(seed << 32) + np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-24


def normals(seed, n):
    """Returns n approximately normal values: sums of twelve uniforms minus six, exact in double."""
    u = uniforms(seed, 12 * n).reshape(n, 12)
    total = np.zeros(n)
    for i in range(12):
        total = total + u[:, i]
    return total - 6.0


def tensors():
    n = ROWS * COLUMNS
    z, u = normals(1, n), uniforms(2, n)
    row = np.arange(n) // COLUMNS
    column = np.arange(n) % COLUMNS
    yield "normal", z * 0.02
    yield "uniform", u * 2.0 - 1.0
    yield "heavy_tailed", z / (0.03125 + u)
    yield "outlier_a_row", np.where(column == row * 61 % COLUMNS, 50.0, z)
    yield "zeros", np.zeros(n)
    yield "constant", np.full(n, 0.7)
    yield "constant_negative", np.full(n, -0.3)
    yield "row_scales", z * 2.0 ** -(row.astype(np.float64))
    yield "column_scales", z * (0.125 + uniforms(3, COLUMNS)[column])
    yield "offset", z * 0.1 + 1.0
    yield "mostly_zero", np.where(u < 0.875, 0.0, z)
    yield "small", z * 2.0**-20


def quantise(library, name, values):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.zeros((ROWS, COLUMNS // block * size), np.uint8)
    pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if hasattr(library, "ggml_quantize_chunk"):
        library.ggml_quantize_chunk.restype = ctypes.c_size_t
        library.ggml_quantize_chunk(ctypes.c_int(kind.value), pointer, out.ctypes.data_as(ctypes.c_void_p),
                                    ctypes.c_int64(0), ctypes.c_int64(ROWS), ctypes.c_int64(COLUMNS), None)
    else:
        function = getattr(library, "quantise_" + name.lower())
        function(pointer, ctypes.c_int64(values.size // block), out.ctypes.data_as(ctypes.c_void_p))
    return gguf.quants.dequantize(out, kind).reshape(-1).astype(np.float64)


def error(library, name, values):
    """Returns the RMS error of quantising the values."""
    rest = quantise(library, name, values) - values.astype(np.float64)
    return float(np.sqrt(np.mean(rest * rest)))


def main():
    reference = ctypes.CDLL(sys.argv[1])
    ours = ctypes.CDLL(sys.argv[2]) if len(sys.argv) > 2 else None
    lines = []
    for tensor, values in tensors():
        values = values.astype(np.float32)
        errors = [error(reference, name, values) for name in TYPES]
        lines.append(f'    {{"{tensor}", {{{", ".join(f"{e:.9e}" for e in errors)}}}}},')
        if ours:
            mine = [error(ours, name, values) for name in TYPES]
            print(f"{tensor:18}" + " ".join(f"{m / e if e else m:9.5f}" for m, e in zip(mine, errors)))
    text = ["/* Written by quantise_reference.py: errors of ggml's quantisers, root of the mean square. */",
            f"enum {{ REFERENCE_ROWS = {ROWS}, REFERENCE_COLUMNS = {COLUMNS}, N_REFERENCE_TYPES = {len(TYPES)} }};",
            "/* clang-format off */",
            "static const enum dtype reference_types[] = {" + ", ".join("DTYPE_" + t for t in TYPES) + "};",
            "static const struct {", "    const char *tensor;", "    double error[N_REFERENCE_TYPES];",
            "} reference_errors[] = {", *lines, "};", "/* clang-format on */", ""]
    pathlib.Path(__file__).with_suffix(".h").write_text("\n".join(text))


main()
