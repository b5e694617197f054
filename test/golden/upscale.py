#!/usr/bin/env python3
"""Generates upscale/: tiny random upscalers, and reference images.

    upscale.py

Needs requirements.txt.  The networks give the bits of spandrel 0.4.2 (bench/LOG.md).  test/models/test_upscale.c reads the output and needs no Python.  Each folder NAME/ contains
  model.safetensors      weights, with the names and prefix of one kind of published files
  reference.safetensors  f32: enlarged{0,1} [s Y, s X, 3] of the images of pixel(), unclamped, -1 to 1
"wide" has enlarged0 of an image of many bands, every 41st column and 37th row of it.
"""

import os
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# naming: new (Real-ESRGAN), old (ESRGAN), trunk (BSRGAN). sizes: [Y, X] of the images.
SPECS = {
    "esrgan": dict(naming="old", width=10, growth=6, blocks=2, doublings=2, square=1, dtype=torch.float32, prefix="",
                   sizes=[(7, 5), (1, 3)]),
    "x2plus": dict(naming="new", width=9, growth=4, blocks=1, doublings=2, square=2, dtype=torch.float16, prefix="params_ema.",
                   sizes=[(5, 7), (1, 4)]),
    "trunk": dict(naming="trunk", width=6, growth=5, blocks=2, doublings=1, square=1, dtype=torch.bfloat16, prefix="",
                  sizes=[(6, 3), (1, 1)]),
    "wide": dict(naming="new", width=4, growth=3, blocks=1, doublings=1, square=1, dtype=torch.float32, prefix="",
                 sizes=[(83, 1030)], steps=(37, 41)),
    "srvgg": dict(width=9, convs=3, scale=4, dtype=torch.float32, prefix="", sizes=[(6, 5), (1, 2)]),
    "srvgg_x2": dict(width=7, convs=4, scale=2, dtype=torch.float16, prefix="params.", sizes=[(5, 4), (1, 1)]),
    "srvgg_wide": dict(width=5, convs=3, scale=3, dtype=torch.float32, prefix="", sizes=[(83, 1030)], steps=(37, 41)),
}


def pixel(y, x, colour):
    """A colour value of the test image, 0 to 255, with few regularities."""
    mixed = (y * 2654435761 + x * 40503 + colour * 2246822519 + 12345) % 2**32
    return (mixed ^ mixed >> 15) * 2246822519 % 2**32 >> 24


def image(Y, X):
    y, x, c = torch.meshgrid(torch.arange(Y), torch.arange(X), torch.arange(3), indexing="ij")
    return pixel(y.long(), x.long(), c.long()).float() / 255


def conv(w, name, x):
    return F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=1)


def leaky(x):
    return F.leaky_relu(x, 0.2)


def rrdbnet(w, spec, x):
    """BasicSR 1.4, basicsr/archs/rrdbnet_arch.py, with new names. An image that is no multiple of the square is reflected as in
    spandrel; a side of 1 pixel, which PyTorch does not reflect, is repeated."""
    Y, X, side = *x.shape[2:], spec["square"]
    for axis, size in (2, Y), (3, X):
        more = -size % side
        if more:
            at = [max(2 * (size - 1) - i, 0) if i >= size else i for i in range(size + more)]
            x = x.index_select(axis, torch.tensor(at))
    x = first = conv(w, "conv_first", F.pixel_unshuffle(x, side) if side > 1 else x)
    for i in range(spec["blocks"]):
        block = x
        for j in range(1, 4):
            parts = [block]
            for k in range(1, 6):
                out = conv(w, f"body.{i}.rdb{j}.conv{k}", torch.cat(parts, 1))
                parts.append(leaky(out) if k < 5 else out)
            block = parts[5] * 0.2 + block
        x = block * 0.2 + x
    x = first + conv(w, "conv_body", x)
    for i in range(spec["doublings"]):
        x = leaky(conv(w, f"conv_up{i + 1}", F.interpolate(x, scale_factor=2, mode="nearest")))
    x = conv(w, "conv_last", leaky(conv(w, "conv_hr", x)))
    scale = 2 ** spec["doublings"] // side
    return x[:, :, : scale * Y, : scale * X]


def srvgg(w, spec, x):
    """Real-ESRGAN 0.3, realesrgan/archs/srvgg_arch.py."""
    out = x
    for i in range(spec["convs"] + 1):
        out = F.prelu(conv(w, f"body.{2 * i}", out), w[f"body.{2 * i + 1}.weight"])
    out = conv(w, f"body.{2 * spec['convs'] + 2}", out)
    return F.pixel_shuffle(out, spec["scale"]) + F.interpolate(x, scale_factor=spec["scale"], mode="nearest")


def weights(spec, generator):
    """Random weights with new names, all of which affect the result."""
    w = {}

    def add(name, out, inputs, gain=1.3):
        w[f"{name}.weight"] = torch.randn(out, inputs, 3, 3, generator=generator) * gain / (9 * inputs) ** 0.5
        w[f"{name}.bias"] = torch.randn(out, generator=generator) * 0.1

    n = spec["width"]
    if "convs" in spec:
        for i in range(spec["convs"] + 1):
            add(f"body.{2 * i}", n, n if i else 3)
            w[f"body.{2 * i + 1}.weight"] = torch.rand(n, generator=generator)
        add(f"body.{2 * spec['convs'] + 2}", 3 * spec["scale"] ** 2, n, 0.3)
        return {k: t.to(spec["dtype"]) for k, t in w.items()}
    add("conv_first", n, 3 * spec["square"] ** 2)
    for i in range(spec["blocks"]):
        for j in range(1, 4):
            for k in range(1, 6):
                add(f"body.{i}.rdb{j}.conv{k}", n if k == 5 else spec["growth"], n + (k - 1) * spec["growth"], 2.5 if k == 5 else 1.3)
    add("conv_body", n, n)
    for i in range(spec["doublings"]):
        add(f"conv_up{i + 1}", n, n)
    add("conv_hr", n, n)
    add("conv_last", 3, n, 0.5)
    return {k: t.to(spec["dtype"]) for k, t in w.items()}


def renamed(name, spec):
    layer, end = name.rsplit(".", 1)
    d = spec.get("doublings", 0)
    if spec.get("naming") == "trunk":
        layer = (layer.replace("body.", "RRDB_trunk.", 1).replace("rdb", "RDB") if ".rdb" in layer else
                 {"conv_body": "trunk_conv", "conv_hr": "HRconv"}.get(layer, layer.replace("conv_up", "upconv")))
    if spec.get("naming") == "old":
        fixed = {"conv_first": "model.0", "conv_body": f"model.1.sub.{spec['blocks']}", "conv_hr": f"model.{3 * d + 2}",
                 "conv_last": f"model.{3 * d + 4}"} | {f"conv_up{i + 1}": f"model.{3 * i + 3}" for i in range(d)}
        layer = fixed.get(layer) or "model.1.sub." + layer.removeprefix("body.").replace("rdb", "RDB") + ".0"
    return f"{spec['prefix']}{layer}.{end}"


def run(w, spec, x):
    return (srvgg if "convs" in spec else rrdbnet)({k: t.float() for k, t in w.items()}, spec, x)


@torch.no_grad()
def write(name, spec, seed):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "upscale", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    w = weights(spec, torch.Generator().manual_seed(seed))
    save_file({renamed(k, spec): t for k, t in w.items()}, os.path.join(folder, "model.safetensors"))
    reference = {}
    for i, size in enumerate(spec["sizes"]):
        x = image(*size).permute(2, 0, 1)[None]
        y = run(w, spec, x)
        exact = (srvgg if "convs" in spec else rrdbnet)({k: t.double() for k, t in w.items()}, spec, x.double())
        error = ((y - exact).norm() / (2 * exact - 1).norm()).item()
        down, across = spec.get("steps", (1, 1))
        reference[f"enlarged{i}"] = (2 * exact - 1)[0].permute(1, 2, 0)[::down, ::across].float().contiguous()
        # Each tensor must matter.
        least = min((run({**w, k: torch.zeros_like(t)}, spec, x) - y).norm() / y.norm() for k, t in w.items()) if i == 0 else 0
        print(f"{name} {i}: {tuple(reference[f'enlarged{i}'].shape)}, f32 error {error:.1e}, least influence {float(least):.1e}")
    save_file(reference, os.path.join(folder, "reference.safetensors"))


def main():
    torch.set_num_threads(1)
    for seed, (name, spec) in enumerate(SPECS.items()):
        write(name, spec, seed)


main()
