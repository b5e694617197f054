#!/usr/bin/env python3
"""Generates ltx2_upsampler/: tiny random latent upscalers of LTX-2, and reference latents.

    ltx2_upsampler.py

Needs requirements.txt.  test/models/test_latent_upscaler.c reads the output and needs no Python.  Each folder NAME/ contains
  model/                 diffusers folder of the network; in "x2_named" the file of the authors' names, with the configuration as
                         metadata
  reference.safetensors  f32: mean, std [C] of the VAE; latent{0,1} [C, F, Y, X] and enlarged{0,1}, scaled as the denoiser reads them
"""

import json
import os
import shutil

import torch
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from safetensors.torch import save_file

SPECS = {
    "x2": dict(config=dict(mid_channels=64, num_blocks_per_stage=1, rational_spatial_scale=2.0), dtype=torch.bfloat16),
    "x1_5": dict(config=dict(mid_channels=32, num_blocks_per_stage=2, rational_spatial_scale=1.5), dtype=torch.float16),
    "x2_named": dict(config=dict(mid_channels=32, num_blocks_per_stage=1, use_rational_resampler=False), dtype=torch.float16),
}
CHANNELS = 12
SIZES = [(4, 3, 5), (1, 2, 1)]


def randomise(model, generator):
    """Random weights, all of influence: norms are not 1, biases not 0."""
    for name, p in model.named_parameters():
        r = torch.rand(p.shape, generator=generator) * 2 - 1
        if p.ndim > 1:
            p.data = r * (3 / p[0].numel()) ** 0.5
        else:
            p.data = r * 0.3 + (1 if "norm" in name and name.endswith("weight") else 0)


def write(folder, spec, seed):
    generator = torch.Generator().manual_seed(seed)
    model = LTX2LatentUpsamplerModel(in_channels=CHANNELS, **spec["config"])
    randomise(model, generator)
    model = model.to(spec["dtype"])
    os.makedirs(os.path.join(folder, "model"))
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    config = {**{k: v for k, v in model.config.items() if not k.startswith("_")}, "_class_name": "LatentUpsampler"}
    if os.path.basename(folder) == "x2_named":
        save_file(tensors, os.path.join(folder, "model", "upscaler.safetensors"), metadata={"config": json.dumps(config)})
    else:
        config["_class_name"] = "LTX2LatentUpsamplerModel"
        save_file(tensors, os.path.join(folder, "model", "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(folder, "model", "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
            f.write("\n")
    model = model.to(torch.float32)
    mean, std = torch.randn(CHANNELS, generator=generator), torch.rand(CHANNELS, generator=generator) + 0.5
    shape = (1, CHANNELS, 1, 1, 1)
    reference = {"mean": mean, "std": std}
    for i, size in enumerate(SIZES):
        latent = torch.randn(1, CHANNELS, *size, generator=generator)
        with torch.no_grad():
            enlarged = model(latent * std.view(shape) + mean.view(shape))
        enlarged = (enlarged - mean.view(shape)) / std.view(shape)
        reference |= {f"latent{i}": latent[0], f"enlarged{i}": enlarged[0].contiguous()}
    save_file(reference, os.path.join(folder, "reference.safetensors"))


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ltx2_upsampler")
    shutil.rmtree(root, ignore_errors=True)
    for i, (name, spec) in enumerate(SPECS.items()):
        write(os.path.join(root, name), spec, i)


if __name__ == "__main__":
    main()
