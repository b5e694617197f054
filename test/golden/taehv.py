#!/usr/bin/env python3
"""Generates taehv/: tiny random decoders of TAEHV's architecture, and frames computed from its formulas.

    taehv.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  diffusers 0.42 has no such class (later
versions have AutoencoderTinyVideo): decode() follows the architecture as its authors describe it
(github.com/madebyollin/taehv), each layer over all frames before the next layer.  Each folder NAME/ contains
  diffusion_pytorch_model.safetensors   decoder tensors under the authors' names; "bf16": under diffusers' names;
                          "encoded": also some encoder tensors, as in published files
  config.json             "bf16": as saved by diffusers
  blocks.json             tests that read the references (block_tests.py)
  reference.safetensors   f32: video.decoder.in [1, C, F, Y, X], a latent in the denoiser's scale, and
                          video.decoder.out [1, 3, 4 F - 3, p 8 Y, p 8 X], unclamped, nominally -1 to 1
Outputs are computed from the written weights, in f32 on the CPU.  The first frames of a latent determine the first frames of
the video: asserted here.
"""

import json
import os
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import block_tests

# Specs: the widths within one model differ (published: 256, 128, 64, 64, with 16 or 48 channels). The first width of
# "bf16" makes blocks several pages large, which test/models/test_vae_causal.c evicts. Channels match wan21/ and
# qwen_image/, wan_ti2v/, and published models.
SPECS = {
    "f32": dict(seed=3, dtype=torch.float32, widths=(7, 6, 4, 3), channels=5, patch=1, size=(4, 3, 2)),
    "bf16": dict(seed=26, dtype=torch.bfloat16, widths=(16, 7, 4, 5), channels=48, patch=2, size=(4, 1, 2)),
    "encoded": dict(seed=1, dtype=torch.float16, widths=(9, 8, 8, 6), channels=16, patch=1, size=(2, 2, 3)),
}
GROWTH = {7: 1, 13: 2, 19: 2}
BLOCKS = [level + i for level in (3, 9, 15) for i in range(3)]


def shapes(spec):
    """Returns names and shapes of the decoder's tensors."""
    w, p = spec["widths"], spec["patch"]
    out = {"1.weight": (w[0], spec["channels"], 3, 3), "1.bias": (w[0],)}
    for number in BLOCKS:
        c = w[number // 6]
        for i, inputs in ((0, 2 * c), (2, c), (4, c)):
            out[f"{number}.conv.{i}.weight"], out[f"{number}.conv.{i}.bias"] = (c, inputs, 3, 3), (c,)
    for i, (number, times) in enumerate(GROWTH.items()):
        out[f"{number}.conv.weight"] = (times * w[i], w[i], 1, 1)
        out[f"{number + 1}.weight"] = (w[i + 1], w[i], 3, 3)
    out["22.weight"], out["22.bias"] = (3 * p * p, w[3], 3, 3), (3 * p * p,)
    return out


def diffusers_name(name):
    """Converts a tensor name of the checkpoint to diffusers' name."""
    number, rest = name.split(".", 1)
    number = int(number)
    level, place = divmod(number - 3, 6)
    if number in BLOCKS:
        conv, rest = rest.removeprefix("conv.").split(".", 1)
        return f"blocks.{level}.mem_blocks.{place}.conv{int(conv) // 2 + 1}.{rest}"
    if number in GROWTH:
        return f"blocks.{level}.time_grow.weight"
    if number - 1 in GROWTH:
        return f"blocks.{level}.conv_out.weight"
    return f"{'conv_in' if number == 1 else 'conv_out'}.{rest}"


def config(spec):
    return {"_class_name": "AutoencoderTinyVideo", "_diffusers_version": "0.43.0.dev0", "in_channels": 3,
            "latent_channels": spec["channels"], "patch_size": spec["patch"],
            "encoder_block_out_channels": [64, 64, 64], "decoder_block_out_channels": spec["widths"],
            "encoder_time_downscale": [True, True, False], "decoder_time_upscale": [False, True, True]}


def fill(spec):
    """Returns random weights that all affect the result: half of a ReLU's inputs are positive, and blocks keep the
    magnitude."""
    generator = torch.Generator().manual_seed(spec["seed"])
    weights = {}
    for name, shape in shapes(spec).items():
        inputs = torch.Size(shape[1:]).numel()
        gain = 0.2 if len(shape) == 1 else 0.4 if ".conv.4." in name else 1.2
        weights[name] = (torch.randn(shape, generator=generator) * gain / inputs**0.5).to(spec["dtype"])
    return weights


def decode(weights, latent, patch):
    """Decodes a latent [C, F, Y, X] to frames [3, 4 F - 3, p 8 Y, p 8 X] from -1 to 1."""
    w = {k: t.float() for k, t in weights.items()}
    conv = lambda name, x: F.conv2d(x, w[name + ".weight"], w.get(name + ".bias"), padding=w[name + ".weight"].shape[-1] // 2)
    at = F.relu(conv("1", 3 * torch.tanh(latent.transpose(0, 1) / 3)))  # computes with the frames as the batch axis
    for number in range(3, 21):
        if number in BLOCKS:
            before = torch.cat([torch.zeros_like(at[:1]), at[:-1]])
            h = F.relu(conv(f"{number}.conv.0", torch.cat([at, before], 1)))
            h = F.relu(conv(f"{number}.conv.2", h))
            at = F.relu(at + conv(f"{number}.conv.4", h))
        elif number in GROWTH:
            at = F.interpolate(at, scale_factor=2, mode="nearest")
            grown = conv(f"{number}.conv", at)
            # frames that grow from one frame become consecutive
            at = torch.stack(grown.chunk(GROWTH[number], 1), 1).flatten(0, 1)
            at = conv(str(number + 1), at)
    colours = F.pixel_shuffle(conv("22", F.relu(at)), patch)
    return 2 * colours[3:].transpose(0, 1).contiguous() - 1


def normalise_colours(weights, latent, patch):
    """Scales the last layer so that most colours lie within 0 to 1, around grey."""
    video = decode(weights, latent, patch)
    k = 0.5 / video.std()
    middle = 0.5 - k * (video.mean() + 1) / 2
    for name, more in (("22.weight", 0), ("22.bias", middle)):
        weights[name] = (weights[name].float() * k + more).to(weights[name].dtype)


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "taehv", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    weights = fill(spec)
    generator = torch.Generator().manual_seed(100 + spec["seed"])
    latent = 1.5 * torch.randn([spec["channels"], *spec["size"]], generator=generator)
    normalise_colours(weights, latent, spec["patch"])
    naming = diffusers_name if name == "bf16" else str
    stored = {"decoder." + naming(k): t for k, t in weights.items()}
    if name == "bf16":
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config(spec), f, indent=2)
            f.write("\n")
    if name == "encoded":
        stored["encoder.0.weight"], stored["encoder.0.bias"] = torch.zeros(2, 3, 3, 3), torch.zeros(2)
    save_file(stored, os.path.join(folder, "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    video = decode(weights, latent, spec["patch"])
    for n in range(1, spec["size"][0]):
        first = decode(weights, latent[:, :n], spec["patch"])
        assert (first - video[:, : 4 * n - 3]).abs().max() < 1e-5
    save_file({"video.decoder.in": latent[None], "video.decoder.out": video[None]},
              os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    print(name, tuple(latent.shape), tuple(video.shape), float(video.mean()), float(video.std()))


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, spec in SPECS.items():
        write(name, spec)
