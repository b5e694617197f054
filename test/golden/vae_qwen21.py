#!/usr/bin/env python3
"""Generates vae_qwen21/: tiny random AutoencoderKLQwenImage21, and reference moments and images.

    vae_qwen21.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder NAME/ contains
  diffusion_pytorch_model.safetensors   all tensors; "authors": with the names and kernels of ComfyUI's files
  config.json                           as saved by diffusers
  blocks.json                           tests that read the references (block_tests.py)
  reference.safetensors                 f32: picture{0,1} [Y, X, 4] in -1 to 1, moments{0,1} [Y/f, X/f, 2 C],
                                        latent{0,1} [C, Y/f, X/f], normalised, decoded{0,1} [Y, X, 4], not clamped
Outputs are computed from the written weights, in f32 on the CPU, as in QwenImage21Pipeline: the latents are those of
_encode_vae_image and random ones, the images those of the decoder before its clamp.
"""

import os
import shutil

import torch
from diffusers import AutoencoderKLQwenImage21
from safetensors.torch import save_file

import block_tests
import weights

# Specs: one image is higher than wide, one wider than high. "small": channels fall at the deepest level, so that each
# kind of shortcut groups other channels; "authors": the published levels.
SPECS = {
    "small": dict(seed=21, dtype=torch.float32, base=6, decoder=5, times=[1, 4, 2], resnets=1, channels=5, sizes=[(12, 20), (28, 8)]),
    "authors": dict(seed=23, dtype=torch.bfloat16, base=2, decoder=3, times=[1, 2, 4, 8, 8], resnets=2, channels=6,
                    sizes=[(48, 32), (16, 80)]),
}

# Names in Wan 2.2's and ComfyUI's files (ComfyUI, comfy/ldm/wan/vae2_2.py).
AUTHORS = [
    ("coder.conv_in.", "coder.conv1."), ("coder.norm_out.", "coder.head.0."), ("coder.conv_out.", "coder.head.2."),
    ("post_quant_conv.", "conv2."), ("quant_conv.", "conv1."), ("mid_block.resnets.0.", "middle.0."),
    ("mid_block.attentions.0.", "middle.1."), ("mid_block.resnets.1.", "middle.2."), (".norm1.", ".residual.0."),
    (".norm2.", ".residual.3."), (".conv_shortcut.", ".shortcut."),
]


def authors(name, tensor, resnets):
    """Converts a tensor to the authors' names. Kernels have a time axis, except those of resampling and attention."""
    folded = ".resample." in name or ".attentions." in name or tensor.dim() != 4
    resnet = ".resnets." in name
    for half, ours, theirs, n in (("encoder", "down_blocks", "downsamples", resnets), ("decoder", "up_blocks", "upsamples", resnets + 1)):
        if name.startswith(f"{half}.{ours}."):
            level, kind, rest = name.removeprefix(f"{half}.{ours}.").split(".", 2)
            number, rest = rest.split(".", 1) if kind == "resnets" else (n, rest)
            name = f"{half}.{theirs}.{level}.{theirs}.{number}.{rest}"
    if resnet:
        name = name.replace(".conv1.", ".residual.2.").replace(".conv2.", ".residual.6.")
    for ours, theirs in AUTHORS:
        name = name.replace(ours, theirs)
    return name, tensor if folded or "gamma" in name else tensor[:, :, None].contiguous()


def build(spec):
    steps = len(spec["times"]) - 1
    generator = torch.Generator().manual_seed(spec["seed"])
    mean, std = torch.randn(spec["channels"], generator=generator), 0.5 + 3 * torch.rand(spec["channels"], generator=generator)
    return AutoencoderKLQwenImage21(
        base_dim=spec["base"], decoder_base_dim=spec["decoder"], z_dim=spec["channels"], dim_mult=spec["times"],
        num_res_blocks=spec["resnets"], temperal_downsample=[False] + [True] * (steps - 1), scale_factor_spatial=2**steps,
        latents_mean=[round(v, 4) for v in mean.tolist()], latents_std=[round(v, 4) for v in std.tolist()])


def picture(spec, i):
    """Generates waves with some noise in four channels, quantised to 8 bits."""
    Y, X = spec["sizes"][i]
    generator = torch.Generator().manual_seed(100 * spec["seed"] + i)
    y, x = torch.meshgrid(torch.arange(Y) / 7.0, torch.arange(X) / 5.0, indexing="ij")
    waves = torch.stack([torch.sin(y + k * x) + 0.3 * torch.randn([Y, X], generator=generator) for k in range(4)])
    return ((waves.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def decode(model, z):
    """Returns the decoder's output [4, Y, X] before the clamp of model.decode."""
    model.clear_cache()
    out = model.decoder(model.post_quant_conv(z), feat_cache=model._feat_map, feat_idx=[0], first_chunk=True)
    assert torch.equal(model.decode(z).sample, out.clamp(-1, 1))
    return out[0, :, 0]


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vae_qwen21", name)
    shutil.rmtree(folder, ignore_errors=True)
    model = weights.randomize(build(spec), weights.VAE_WAN, f"{spec['seed']} vae qwen21")
    model.save_config(folder)
    stored = {k: t.to(spec["dtype"]) for k, t in model.state_dict().items()}
    model.load_state_dict({k: t.float() for k, t in stored.items()})
    if name == "authors":
        stored = dict(authors(k, t, spec["resnets"]) for k, t in stored.items())
    save_file(stored, os.path.join(folder, "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    generator = torch.Generator().manual_seed(spec["seed"])
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (model.config.latents_mean, model.config.latents_std))
    references = {}
    for i in range(2):
        shown = picture(spec, i)
        posterior = model.encode(shown[None, :, None]).latent_dist
        latent = (posterior.mode() - mean) / std
        if i:
            latent = torch.randn(latent.shape, generator=generator)
        decoded = decode(model, latent * std + mean)
        for key, t in (("picture", shown), ("moments", posterior.parameters[0, :, 0]), ("decoded", decoded)):
            references[f"{key}{i}"] = t.permute(1, 2, 0).contiguous()
        references[f"latent{i}"] = latent[0, :, 0].contiguous()
    save_file(references, os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    print(name, {k: (tuple(t.shape), float(t.std()), float(t.abs().max())) for k, t in references.items()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, spec in SPECS.items():
        write(name, spec)
