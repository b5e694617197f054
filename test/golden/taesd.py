#!/usr/bin/env python3
"""Generates taesd/: tiny random decoders of AutoencoderTiny, and reference images for two latents.

    taesd.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder NAME/ contains
  diffusion_pytorch_model.safetensors   decoder tensors; "authors": as in the authors' taesd_decoder.safetensors
  config.json                           as saved by diffusers; "authors", "taef2": none
  blocks.json             tests that read the references (block_tests.py)
  reference.safetensors                 f32: latent{0,1} [C, Y, X], picture{0,1} [8 Y, 8 X, 3], unclamped, nominally -1 to 1
Outputs are computed from the written weights, in f32 on the CPU: vae.decode(latent / scaling_factor + shift_factor).
"taef2" has the pooled branches of madebyollin/taesd (taesd.py, Block with use_midblock_gn), which diffusers lacks; its latents
are packed as Flux.2's.
"""

import os
import shutil

import torch
from diffusers import AutoencoderTiny, Flux2KleinPipeline
from safetensors.torch import save_file

import block_tests

# Specs: one latent is wider than high, the other higher than wide. Widths differ from all other sizes (published: 4
# and 16 channels).
SPECS = {
    "f32": dict(seed=1, dtype=torch.float32, width=6, channels=4, sizes=[(3, 5), (7, 2)], scaling=1.0, shift=0.0),
    "bf16": dict(seed=2, dtype=torch.bfloat16, width=9, channels=16, sizes=[(2, 4), (5, 3)], scaling=0.7, shift=0.1),
    "authors": dict(seed=3, dtype=torch.float16, width=8, channels=16, sizes=[(4, 3), (1, 6)], scaling=1.0, shift=0.0),
    "taef2": dict(seed=4, dtype=torch.float32, width=6, channels=5, sizes=[(3, 2), (1, 3)], scaling=1.0, shift=0.0),
}


class PooledBlock(torch.nn.Module):
    """A block that first adds W2 relu(group norm(W1 x)) to its input."""

    def __init__(self, block, width):
        super().__init__()
        self.conv, self.skip, self.fuse = block.conv, block.skip, block.fuse
        self.pool = torch.nn.Sequential(torch.nn.Conv2d(width, 4 * width, 1, bias=False), torch.nn.GroupNorm(4, 4 * width),
                                        torch.nn.ReLU(), torch.nn.Conv2d(4 * width, width, 1, bias=False))

    def forward(self, x):
        x = x + self.pool(x)
        return self.fuse(self.conv(x) + self.skip(x))


def authors(name):
    """Converts a tensor name to the checkpoint's: no prefix, and the clamp of the latent counts as a layer."""
    number, rest = name.removeprefix("decoder.layers.").split(".", 1)
    return f"{int(number) + 1}.{rest}"


def fill(model, seed):
    """Fills the model with random weights that all affect the result: half of a ReLU's inputs are positive, and
    blocks keep the magnitude."""
    generator = torch.Generator().manual_seed(seed)
    for name, t in model.state_dict().items():
        inputs = t[0].numel() if t.ndim > 1 else 1
        gain = 0.2 if t.ndim == 1 else 0.4 if ".conv.4." in name else 0.2 if "layers.18." in name else 1.2
        t.copy_(torch.randn(t.shape, generator=generator) * gain / inputs**0.5)
        if name.endswith("pool.1.weight"):
            t.add_(1)


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "taesd", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    width = (spec["width"],) * 4
    model = AutoencoderTiny(latent_channels=spec["channels"], encoder_block_out_channels=width,
                            decoder_block_out_channels=width, scaling_factor=spec["scaling"], shift_factor=spec["shift"])
    packs = name == "taef2"
    for i in range(2, 5) if packs else ():
        model.decoder.layers[i] = PooledBlock(model.decoder.layers[i], spec["width"])
    fill(model, spec["seed"])
    mine = {k: t.to(spec["dtype"]) for k, t in model.state_dict().items() if k.startswith("decoder.")}
    if name == "authors":
        stored = {authors(k): t for k, t in mine.items()}
    else:
        stored = mine
    if name in ("f32", "bf16"):
        model.save_config(folder)
    save_file(stored, os.path.join(folder, "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    model.load_state_dict({k: t.float() for k, t in mine.items()}, strict=False)
    references = {}
    generator = torch.Generator().manual_seed(100 + spec["seed"])
    for i, (Y, X) in enumerate(spec["sizes"]):
        latent = 1.5 * torch.randn([spec["channels"] * (4 if packs else 1), Y, X], generator=generator)
        z = Flux2KleinPipeline._unpatchify_latents(latent[None]) if packs else latent[None]
        picture = model.decode(z / spec["scaling"] + spec["shift"], return_dict=False)[0][0]
        references[f"latent{i}"], references[f"picture{i}"] = latent, picture.permute(1, 2, 0).contiguous()
    save_file(references, os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    print(name, {k: (tuple(t.shape), float(t.std())) for k, t in references.items()})


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, spec in SPECS.items():
        write(name, spec)
