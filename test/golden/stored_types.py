"""Weights in every stored type, with their decoded values.

GGUF types use the gguf package: its quantiser, or random codes if it has none, with scales that give the
standard deviation of the original weight. Values are always the package's dequantisation.  ComfyUI types are
written with torch, after comfy/ops.py.
"""

import gguf
import numpy as np
import torch

import quantised

Type = gguf.GGMLQuantizationType

# Per type: (offset of the f16 scale, offset of the minimum's scale, minimum / scale), so that random codes have mean
# zero.
SCALES = {
    "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0), "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
}


def _with_scales(name, blocks, scale):
    at, offset, multiple = SCALES[name]
    blocks[:, at:at + 2] = scale.astype(np.float16)[:, None].view(np.uint8)
    if offset is not None:
        blocks[:, offset:offset + 2] = (multiple * scale).astype(np.float16)[:, None].view(np.uint8)


def _random(weight, name, rng):
    """Returns a weight's bytes in a GGUF type with random codes."""
    values, size = gguf.GGML_QUANT_SIZES[Type[name]]
    rows, columns = weight.shape
    blocks = rng.integers(0, 256, (rows * columns // values, size), np.uint8)
    if name == "NVFP4":  # NVFP4 has four scale bytes per block: subnormal numbers (up to 2^-6) and normal ones
        blocks[:, :4] = rng.integers(0x02, 0x0d, (len(blocks), 4), np.uint8)
        return blocks.reshape(rows, -1)
    spread = rng.uniform(0.5, 1.5, len(blocks))
    _with_scales(name, blocks, spread)
    unit = gguf.quants.dequantize(blocks.reshape(rows, -1), Type[name]).std()
    _with_scales(name, blocks, spread * (weight.std() / unit))
    return blocks.reshape(rows, -1)


def of_gguf(weight, name, rng):
    """Converts an f32 weight to a GGUF type; returns (bytes [rows, row bytes], values f32)."""
    if name in SCALES or name == "NVFP4":
        data = _random(weight, name, rng)
    else:
        data = gguf.quants.quantize(weight, Type[name])
    return data, gguf.quants.dequantize(data, Type[name]).reshape(weight.shape)




def _fp8(weight, dtype):
    scale = weight.abs().max() / torch.finfo(dtype).max
    codes = (weight / scale).to(dtype)
    return codes, scale, codes.float() * scale


def _e2m1(values):
    """Returns the codes and values of the nearest E2M1 numbers."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = (values.abs().unsqueeze(-1) - numbers).abs().argmin(-1)
    return (codes | ((values < 0).long() << 3)).to(torch.uint8), torch.sign(values) * numbers[codes]


def _tiles(scales, rows):
    down, across = -(-rows // 128) * 128, -(-scales.shape[1] // 4) * 4
    return torch.from_numpy(quantised.tiles(scales.view(torch.uint8).numpy()).reshape(down, across))


def _nvfp4(weight):
    rows, columns = weight.shape
    blocks = weight.reshape(rows, columns // 16, 16)
    whole = weight.abs().max() / (6 * 448)
    scales = (blocks.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    factor = (scales.float() * whole).unsqueeze(-1)
    codes, numbers = _e2m1(torch.where(factor > 0, blocks / factor, 0))
    codes = codes.reshape(rows, columns // 2, 2)
    packed = codes[..., 0] << 4 | codes[..., 1]
    scales_stored = _tiles(scales, rows).view(torch.float8_e4m3fn)
    return dict(weight=packed, weight_scale=scales_stored, weight_scale_2=whole), (numbers * factor).reshape(rows, columns)


def _mxfp8(weight):
    rows, columns = weight.shape
    blocks = weight.reshape(rows, columns // 32, 32)
    exponents = torch.ceil(torch.log2(blocks.abs().amax(-1) / 448)).clamp(-127, 127)
    factor = torch.exp2(exponents).unsqueeze(-1)
    codes = (blocks / factor).to(torch.float8_e4m3fn)
    stored = dict(weight=codes.reshape(rows, columns), weight_scale=_tiles((exponents + 127).to(torch.uint8), rows))
    return stored, (codes.float() * factor).reshape(rows, columns)


def _int8(weight, by_row):
    scale = (weight.abs().amax(1, keepdim=True) if by_row else weight.abs().max()) / 127
    codes = torch.round(weight / scale).to(torch.int8)
    return dict(weight=codes, weight_scale=scale), codes.float() * scale


def _rotated(weight, group, by_row):
    """Rotates groups of columns by the Hadamard matrix, then quantises to int8; the matrix is its own inverse."""
    h = torch.from_numpy(quantised.hadamard(group)).double() / group ** 0.5
    turned = (weight.double().reshape(len(weight), -1, group) @ h).reshape(weight.shape).float()
    stored, values = _int8(turned, by_row)
    return stored, (values.double().reshape(len(weight), -1, group) @ h).reshape(weight.shape).float()


def _awq(weight):
    """nvfp4 of a weight whose columns are divided by factors, which ComfyUI multiplies into the input."""
    generator = torch.Generator().manual_seed(weight.shape[1])
    factors = (0.25 + 2 * torch.rand(weight.shape[1], generator=generator)).bfloat16()
    stored, values = _nvfp4(weight / factors.float())
    return dict(stored, pre_quant_scale=factors), values * factors.float()


def _w4a8(weight):
    """Rotated groups of 16 values in 16 levels, as comfy-kitchen's quantize_w4a8_int8_weight without its refinements;
    decoded by its formula."""
    levels = torch.from_numpy(quantised.I4_LEVELS.copy())
    h = torch.from_numpy(quantised.hadamard(256)).double() / 16
    turned = (weight.double().reshape(len(weight), -1, 256) @ h).reshape(weight.shape).float()
    groups = turned.reshape(len(weight), -1, 16)
    largest = groups.abs().amax(-1)
    channel = largest.amax(1) / 127
    relative = (largest / channel[:, None]).to(torch.float8_e4m3fn)
    grid = torch.round(levels * relative.float().unsqueeze(-1)).clamp(-127, 127)
    codes = (groups.unsqueeze(-1) / channel[:, None, None, None] - grid.unsqueeze(2)).abs().argmin(-1).to(torch.uint8)
    codes = codes.reshape(len(weight), -1, 2)
    packed = codes[..., 0] | codes[..., 1] << 4
    numbers = torch.from_numpy(quantised.i4_codes(packed.numpy(), quantised.I4_LEVELS, relative.view(torch.uint8).numpy()).view(np.int8))
    values = (numbers.double().reshape(len(weight), -1, 256) @ h).reshape(weight.shape) * channel.double()[:, None]
    stored = dict(weight=packed.view(torch.int8), weight_s_rel=relative, weight_s_channel=channel, weight_codebook=levels)
    return stored, values.float()


def of_comfy(weight, name):
    """Converts an f32 weight to a ComfyUI type. Returns (tensors by name suffix, values f32, the comfy_quant entry
    or None)."""
    if name in ("f8_e4m3", "f8_e5m2"):
        dtype = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}[name]
        codes, scale, values = _fp8(weight, dtype)
        return dict(weight=codes, weight_scale=scale), values, dict(format={"f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}[name])
    if name in ("f8_e4m3 plain", "f8_e5m2 plain"):
        codes = weight.to(torch.float8_e4m3fn if "e4m3" in name else torch.float8_e5m2)
        return dict(weight=codes), codes.float(), None
    if name in ("int8", "int8 rows"):
        stored, values = _int8(weight, name == "int8 rows")
        return stored, values, dict(format="int8_tensorwise")
    if name.startswith("convrot"):
        _, group, *rows = name.split()
        stored, values = _rotated(weight, int(group), bool(rows))
        return stored, values, dict(format="int8_tensorwise", convrot=True, convrot_groupsize=int(group))
    if name == "w4a8":
        stored, values = _w4a8(weight)
        return stored, values, dict(format="asym_w4a8_int8", group_size=16, convrot_groupsize=256)
    stored, values = {"nvfp4": _nvfp4, "mxfp8": _mxfp8, "nvfp4 awq": _awq}[name](weight)
    return stored, values, dict(format=name.split()[0])
