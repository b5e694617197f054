#!/usr/bin/env python3
"""Generates vae_encoder/: tiny random AutoencoderKL encoders, and reference moments for two images.

    vae_encoder.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder NAME/ contains
  diffusion_pytorch_model.safetensors   encoder tensors, and quant_conv's if present
  config.json                           as saved by diffusers
  blocks.json                           tests that read the references (block_tests.py)
  reference.safetensors                 f32: picture{0,1} [Y, X, 3] in -1 to 1, moments{0,1} [Y/f, X/f, 2 C]
Outputs are computed from the written weights, in f32 on the CPU: vae.encode(picture).latent_dist.parameters.
"""

import os
import shutil

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

import block_tests
import weights

# Specs: level widths are odd multiples of the number of groups, so group sizes differ per level; one image is higher
# than wide, one wider than high.
SPECS = {
    "f32": dict(seed=1, dtype=torch.float32, widths=[4, 6, 10, 14], groups=2, resnets=1, channels=5, attention=True,
                quant=False, sizes=[(48, 72), (80, 40)]),
    "bf16": dict(seed=2, dtype=torch.bfloat16, widths=[9, 9, 15], groups=3, resnets=2, channels=8, attention=False,
                 quant=True, sizes=[(36, 28), (12, 60)]),
    "authors": dict(seed=3, dtype=torch.float16, widths=[6, 15], groups=3, resnets=2, channels=8, attention=True,
                    quant=True, sizes=[(30, 26), (2, 2)]),
}

# Pairs of diffusers' names and the checkpoint's names (CompVis latent-diffusion,
# ldm/modules/diffusionmodules/model.py).
AUTHORS = [
    ("encoder.mid_block.resnets.0.", "encoder.mid.block_1."), ("encoder.mid_block.resnets.1.", "encoder.mid.block_2."),
    ("encoder.mid_block.attentions.0.", "encoder.mid.attn_1."), ("group_norm.", "norm."), ("conv_norm_out.", "norm_out."),
    ("to_q.", "q."), ("to_k.", "k."), ("to_v.", "v."), ("to_out.0.", "proj_out."),
    ("encoder.down_blocks.", "encoder.down."), (".resnets.", ".block."), (".conv_shortcut.", ".nin_shortcut."),
    (".downsamplers.0.", ".downsample."),
]


def authors(name, tensor):
    """Converts a tensor to the checkpoint's names; projections become 1x1 convolutions."""
    if ".attentions.0.to_" in name and name.endswith("weight"):
        tensor = tensor[:, :, None, None]
    for ours, theirs in AUTHORS:
        name = name.replace(ours, theirs)
    return name, tensor.contiguous()


def build(spec):
    levels = len(spec["widths"])
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        block_out_channels=spec["widths"], layers_per_block=spec["resnets"], latent_channels=spec["channels"],
        norm_num_groups=spec["groups"], scaling_factor=0.7, shift_factor=0.05 * spec["seed"],
        use_quant_conv=spec["quant"], use_post_quant_conv=False, mid_block_add_attention=spec["attention"])


def picture(spec, i):
    """Generates waves with some noise, quantised to 8 bits."""
    Y, X = spec["sizes"][i]
    generator = torch.Generator().manual_seed(100 * spec["seed"] + i)
    y, x = torch.meshgrid(torch.arange(Y) / 7.0, torch.arange(X) / 5.0, indexing="ij")
    waves = torch.stack([torch.sin(y + k * x) + 0.3 * torch.randn([Y, X], generator=generator) for k in range(3)])
    return ((waves.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vae_encoder", name)
    shutil.rmtree(folder, ignore_errors=True)
    model = weights.randomize(build(spec), weights.VAE, f"{spec['seed']} vae encoder")
    model.save_config(folder)
    mine = {k: t.to(spec["dtype"]) for k, t in model.state_dict().items() if k.startswith(("encoder.", "quant_conv."))}
    stored = dict(authors(k, t) for k, t in mine.items()) if name == "authors" else mine
    save_file(stored, os.path.join(folder, "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    model.load_state_dict({k: t.float() for k, t in mine.items()}, strict=False)
    references = {}
    for i in range(2):
        shown = picture(spec, i)
        moments = model.encode(shown[None]).latent_dist.parameters[0]
        references[f"picture{i}"], references[f"moments{i}"] = (t.permute(1, 2, 0).contiguous() for t in (shown, moments))
    save_file(references, os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    print(name, {k: tuple(t.shape) for k, t in references.items()}, float(references["moments0"].abs().mean()))


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, spec in SPECS.items():
        write(name, spec)
