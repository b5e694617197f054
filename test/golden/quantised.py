#!/usr/bin/env python3
"""Generates quantised/: rows of every stored weight type and their f32 values.

    quantised.py

Needs requirements.txt and gguf==0.19.0.  test_dequantise.c and the devices' tests read the output and need no Python.
Each file quantised/TYPE.safetensors contains
  bytes   U8 [rows, row_bytes]     all codes, ordinary and extreme scales (0, subnormal, negative, Inf, NaN)
  values  F32 [rows, columns]      decoded values; NaN is 0x7fc00000
  scales  F32 [rows], U8 tiles, or U8 sections (tensor.h)   for types with scales in other tensors
  scale   F32 [1]                  likewise
  sweep   U8 [32]                  SHA-256 of the f32 values of the sweep below, little-endian, NaN as above
GGUF types are decoded by the gguf package, E4M3, E5M2 and E8M0 by PyTorch, E2M1 by the table of OCP Microscaling 1.0.
Rotations (I8_ROT, I4_ROT) are products with comfy-kitchen's matrix. Tiles of scales have the layout of cuBLAS 13's manual (block
scaling factors, 128x4).

A sweep consists of noise() bytes with scales in their places: every f16 as d (and dmin), every E8M0 or E4M3 as a block's
scale.  For types with separate scales it is ramp(): every code in each of 256 rows; row i's scale is noise (f32) or i
(tiles).
"""

import hashlib
import os

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quantised")

# Per GGUF type with f16 scales: (values and bytes per block, offsets of the f16 scales, sweep blocks per scale
# value).
F16_SCALED = {
    "Q4_0": (32, 18, [0], 8), "Q4_1": (32, 20, [0, 2], 8), "Q5_0": (32, 22, [0], 8), "Q5_1": (32, 24, [0, 2], 8),
    "Q8_0": (32, 34, [0], 16), "Q2_K": (256, 84, [80, 82], 1), "Q3_K": (256, 110, [108], 1),
    "Q4_K": (256, 144, [0, 2], 1), "Q5_K": (256, 176, [0, 2], 1), "Q6_K": (256, 210, [208], 1),
    "IQ4_NL": (32, 18, [0], 8), "IQ4_XS": (256, 136, [0], 1),
}
# Per GGUF type with 1-byte scales: (values and bytes per block, scales per block, sweep blocks).
BYTE_SCALED = {"MXFP4": (32, 17, 1, 1 << 14), "NVFP4": (64, 36, 4, 1 << 12)}

ODD_F16 = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfd01, 0x3c00]
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def noise(first, n):
    """Returns the bytes [first, first + n) of the pseudo-random sequence that fills every sweep."""
    i = np.arange(first, first + n, dtype=np.uint32) * np.uint32(0x9e3779b1)
    i = (i ^ (i >> np.uint32(15))) * np.uint32(0x85ebca77)
    return ((i ^ (i >> np.uint32(13))) & np.uint32(255)).astype(np.uint8)


def ramp(row_bytes):
    """Returns 256 rows in which every byte, or half of one, takes every value."""
    step = 256 // row_bytes
    return (np.arange(256)[:, None] + step * np.arange(row_bytes)[None]).astype(np.uint8)


def with_canonical_nan(values):
    values = np.ascontiguousarray(values, np.float32).copy()
    values.view(np.uint32)[np.isnan(values)] = 0x7fc00000
    return values


def decoded(name, blocks):
    with np.errstate(all="ignore"):
        return with_canonical_nan(gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]))


def save(name, sweep, **tensors):
    tensors["sweep"] = np.frombuffer(sweep.digest(), np.uint8)
    tensors = {key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()}
    save_file(tensors, os.path.join(FOLDER, name + ".safetensors"))


def put_f16(blocks, at, scales):
    blocks[:, at] = scales & 255
    blocks[:, at + 1] = scales >> 8


def sweep_f16(name):
    values, size, places, repeats = F16_SCALED[name]
    sha = hashlib.sha256()
    for first in range(0, repeats << 16, 1 << 12):
        n = np.arange(first, first + (1 << 12), dtype=np.uint32)
        blocks = noise(first * size, size << 12).reshape(-1, size)
        for which, at in enumerate(places):
            put_f16(blocks, at, (n * np.uint32(40503 if which else 1)) & np.uint32(0xffff))
        sha.update(decoded(name, blocks).tobytes())
    return sha


def make_f16(name):
    values, size, places, _ = F16_SCALED[name]
    rows, each = 16, 2 if values == 256 else 12
    rng = np.random.default_rng(size)
    blocks = rng.integers(0, 256, (rows * each, size), np.uint8)
    for which, at in enumerate(places):
        scales = rng.integers(0x2000, 0x3000, rows * each).astype(np.uint16)
        odd = rng.permutation(rows * each)[:len(ODD_F16)]
        scales[odd] = ODD_F16
        put_f16(blocks, at, scales)
    blocks = blocks.reshape(rows, -1)
    save(name, sweep_f16(name), bytes=blocks, values=decoded(name, blocks))


def make_byte(name):
    values, size, scales, repeats = BYTE_SCALED[name]
    blocks = noise(0, size * repeats).reshape(-1, size)
    for k in range(scales):
        blocks[:, k] = (np.arange(repeats) * scales + k) & 255
    sweep = hashlib.sha256(decoded(name, blocks).tobytes())
    blocks = np.random.default_rng(size).integers(0, 256, (32, 8 * size), np.uint8)
    save(name, sweep, bytes=blocks, values=decoded(name, blocks))


def torch_values(codes, dtype):
    return torch.from_numpy(np.ascontiguousarray(codes)).view(dtype).float().numpy()


PLAIN = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I8": torch.int8}


def scaled(name, codes, scales, scale):
    with np.errstate(all="ignore"):
        return with_canonical_nan(torch_values(codes, PLAIN[name]) * scales[:, None] * scale)


def make_plain(name):
    sweep_scales = noise(0, 1024).view(np.uint32).view(np.float32)
    sweep = hashlib.sha256(scaled(name, ramp(256), sweep_scales, np.float32(1)).tobytes())
    rng = np.random.default_rng(1)
    scales = rng.uniform(1e-4, 1e-2, 24).astype(np.float32)
    scales[:8] = [0, -0., 1e-45, -3e-39, 3e38, np.inf, -np.inf, np.nan]
    scale = np.array([0.37], np.float32)
    codes = np.array([rng.permutation(256) for _ in scales], np.uint8)
    save(name, sweep, bytes=codes, values=scaled(name, codes, scales, scale[0]), scales=scales, scale=scale)


def hadamard(group):
    """Returns ConvRot's Hadamard matrix without its factor 1 / sqrt(group)."""
    h, h4 = np.ones((1, 1), np.int64), np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])
    while len(h) < group:
        h = np.kron(h, h4)
    return h


def rotated(group, codes, scales, scale):
    """Decodes rotated int8 rows. Sums of codes are exact integers; the factor is a power of 2."""
    sums = codes.view(np.int8).astype(np.int64).reshape(len(codes), -1, group) @ hadamard(group)
    with np.errstate(all="ignore"):
        return with_canonical_nan((sums.reshape(codes.shape) / group ** 0.5).astype(np.float32) * scales[:, None] * scale)


def make_rotated(group):
    """Writes the file of rotated int8 with this group size; the first rows give the largest possible sums of either sign."""
    sweep_scales = noise(0, 1024).view(np.uint32).view(np.float32)
    sweep = hashlib.sha256(rotated(group, ramp(256), sweep_scales, np.float32(1)).tobytes())
    rng = np.random.default_rng(group)
    scales = rng.uniform(1e-4, 1e-2, 24).astype(np.float32)
    scales[16:] = [0, -0., 1e-45, -3e-39, 3e38, np.inf, -np.inf, np.nan]
    scale = np.array([0.37], np.float32)
    codes = rng.integers(0, 256, (24, 768), np.uint8)
    signs = np.tile(hadamard(group)[rng.integers(0, group, 4)], (1, 768 // group))
    codes[0:4] = np.where(signs > 0, -128, 127).astype(np.int8).view(np.uint8)
    codes[4:8] = np.where(signs > 0, 127, -128).astype(np.int8).view(np.uint8)
    codes[8] = 128
    save(f"I8_ROT{group}", sweep, bytes=codes, values=rotated(group, codes, scales, scale[0]), scales=scales, scale=scale)


def tiles(scales):
    """Reorders scales [rows, blocks] into tiles of 128 rows by 4 blocks, one after another along a row of tiles,
    padded with 0xff."""
    rows, blocks = scales.shape
    down, across = -(-rows // 128), -(-blocks // 4)
    to = np.full((down * 128, across * 4), 0xff, np.uint8)
    to[:rows, :blocks] = scales
    # from [tile down, quarter, row in it, tile across, block] to [tile down, tile across, row, quarter, block]
    return to.reshape(down, 4, 32, across, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def nvfp4_values(packed, scales, scale):
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(packed.shape[0], -1)
    with np.errstate(all="ignore"):
        return with_canonical_nan(E2M1[codes] * torch_values(scales, torch.float8_e4m3fn).repeat(16, 1) * scale)


def mxfp8_values(codes, scales, scale):
    with np.errstate(all="ignore"):
        factors = torch_values(scales, torch.float8_e8m0fnu)
        return with_canonical_nan(torch_values(codes, torch.float8_e4m3fn) * factors.repeat(32, 1) * scale)


# Levels of comfy-kitchen 0.2.40, tensor/w4a8_packed.py.
I4_LEVELS = np.array([-0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720,
                      0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671], np.float32)


def i4_codes(packed, levels, groups):
    """Decodes I4_ROT256 rows to int8 codes, as comfy-kitchen's _dequant_int4_grouped_to_int8; NaN gives 0."""
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    with np.errstate(all="ignore"):
        numbers = np.rint(levels[codes] * torch_values(groups, torch.float8_e4m3fn).repeat(16, 1))
        return np.nan_to_num(np.clip(numbers, -127, 127), nan=0).astype(np.int8).view(np.uint8)


def i4_sections(levels, scales, groups):
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in (levels, scales, groups)])


def make_i4():
    sweep_scales = noise(0, 1024).view(np.uint32).view(np.float32)
    groups = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 16))
    sweep = hashlib.sha256(rotated(256, i4_codes(ramp(128), I4_LEVELS, groups), sweep_scales, np.float32(1)).tobytes())
    rng = np.random.default_rng(4)
    rows, columns = 66, 512
    scales = rng.uniform(1e-4, 1e-2, rows).astype(np.float32)
    scales[58:] = [0, -0., 1e-45, -3e-39, 3e38, np.inf, -np.inf, np.nan]
    levels = np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    scale = np.array([0.37], np.float32)
    packed = rng.integers(0, 256, (rows, columns // 2), np.uint8)
    groups = rng.permutation(np.arange(rows * columns // 16) & 255).astype(np.uint8).reshape(rows, -1)
    values = rotated(256, i4_codes(packed, levels, groups), scales, scale[0])
    save("I4_ROT256", sweep, bytes=packed, values=values, scales=i4_sections(levels, scales, groups), scale=scale)


def bf16_values(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def awq_values(packed, scales, scale, factors):
    with np.errstate(all="ignore"):
        return with_canonical_nan(nvfp4_values(packed, scales, scale) * bf16_values(factors))


def make_awq():
    scales = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 16))
    factors = noise(0, 512).view(np.uint16)
    sweep = hashlib.sha256(awq_values(ramp(128), scales, np.float32(1), factors).tobytes())
    rng = np.random.default_rng(17)
    rows, blocks = 160, 5
    codes = rng.integers(0, 256, (rows, blocks * 8), np.uint8)
    scales = rng.permutation(np.arange(rows * blocks) & 255).astype(np.uint8).reshape(rows, blocks)
    scale = np.array([0.0137], np.float32)
    factors = (rng.uniform(0.1, 8, blocks * 16).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    factors[:6] = [0x0000, 0x8000, 0x0001, 0x7f7f, 0x7f80, 0x7fc0]
    save("NVFP4_AWQ", sweep, bytes=codes, values=awq_values(codes, scales, scale[0], factors),
         scales=np.concatenate([factors.view(np.uint8), tiles(scales)]), scale=scale)


def make_tiled(name, values, bytes_each, block):
    scales = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 256 // block))
    sweep = hashlib.sha256(values(ramp(256 * bytes_each // block), scales, np.float32(1)).tobytes())
    rng = np.random.default_rng(block)
    rows, blocks = 160, 9 if block == 16 else 5
    codes = rng.integers(0, 256, (rows, blocks * bytes_each), np.uint8)
    scales = rng.permutation(np.arange(rows * blocks) & 255).astype(np.uint8).reshape(rows, blocks)
    scale = np.array([0.0137], np.float32)
    save(name, sweep, bytes=codes, values=values(codes, scales, scale[0]), scales=tiles(scales), scale=scale)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for name in F16_SCALED:
        make_f16(name)
    for name in BYTE_SCALED:
        make_byte(name)
    for name in PLAIN:
        make_plain(name)
    for group in (16, 64, 256):
        make_rotated(group)
    make_tiled("NVFP4_TILED", nvfp4_values, 8, 16)
    make_tiled("MXFP8_TILED", mxfp8_values, 32, 32)
    make_awq()
    make_i4()


if __name__ == "__main__":
    main()
