#!/usr/bin/env python3
"""Generates vae_flux2/: tiny random AutoencoderKLFlux2, and reference moments and images.

    vae_flux2.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder NAME/ contains
  diffusion_pytorch_model.safetensors   all tensors; "authors": with the names of the authors' ae.safetensors
  config.json                           as saved by diffusers; "small": the decoder is narrower than the encoder
  blocks.json                           tests that read the references (block_tests.py)
  reference.safetensors                 f32: picture{0,1} [Y, X, 3] in -1 to 1, moments{0,1} [Y/f, X/f, 8 C], packed,
                                        latent{0,1} [4 C, Y/f, X/f], packed and normalised, decoded{0,1} [Y, X, 3]
Outputs are computed from the written weights, in f32 on the CPU, as in Flux2KleinPipeline: the latents are those of
_encode_vae_image and random ones, the images those of its last lines.
"""

import os
import shutil

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from safetensors.torch import save_file

import block_tests
import vae_encoder
import weights

# Specs: one image is higher than wide, one wider than high.
SPECS = {
    "small": dict(seed=11, dtype=torch.float32, widths=[6, 10, 14], decoder=[4, 6, 10], groups=2, resnets=1, channels=3,
                  sizes=[(32, 48), (80, 32)]),
    "authors": dict(seed=15, dtype=torch.bfloat16, widths=[6, 15], decoder=None, groups=3, resnets=2, channels=4,
                    sizes=[(24, 16), (8, 24)]),
}

# Black Forest Labs' names (black-forest-labs/flux2, src/flux2/autoencoder.py): those of latent diffusion, but both 1x1
# convolutions belong to the encoder and the decoder.
AUTHORS = [
    ("post_quant_conv.", "decoder.post_quant_conv."), ("decoder.mid_block.resnets.0.", "decoder.mid.block_1."),
    ("decoder.mid_block.resnets.1.", "decoder.mid.block_2."), (".upsamplers.0.", ".upsample."),
]


def authors(name, tensor, levels):
    """Converts a tensor to the authors' names, which number the decoder's levels from the image to the latent."""
    if name.startswith("quant_conv."):
        name = "encoder." + name
    for ours, theirs in AUTHORS:
        name = name.replace(ours, theirs)
    name, tensor = vae_encoder.authors(name, tensor)
    name = name.replace("decoder.mid_block.attentions.0.", "decoder.mid.attn_1.")
    if name.startswith("decoder.up_blocks."):
        level, rest = name.removeprefix("decoder.up_blocks.").split(".", 1)
        name = f"decoder.up.{levels - 1 - int(level)}.{rest}"
    return name, tensor


def build(spec):
    levels = len(spec["widths"])
    return AutoencoderKLFlux2(
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        block_out_channels=spec["widths"], decoder_block_out_channels=spec["decoder"], layers_per_block=spec["resnets"],
        latent_channels=spec["channels"], norm_num_groups=spec["groups"])


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vae_flux2", name)
    shutil.rmtree(folder, ignore_errors=True)
    model = weights.randomize(build(spec), weights.VAE, f"{spec['seed']} vae flux2")
    generator = torch.Generator().manual_seed(spec["seed"])
    packed = 4 * spec["channels"]
    model.bn.running_mean.copy_(0.3 * torch.randn([packed], generator=generator))
    # small variances, so that eps matters
    model.bn.running_var.copy_(0.01 + 0.5 * torch.rand([packed], generator=generator))
    model.save_config(folder)
    stored = {k: t if k == "bn.num_batches_tracked" else t.to(spec["dtype"]) for k, t in model.state_dict().items()}
    model.load_state_dict({k: t.float() if t.is_floating_point() else t for k, t in stored.items()})
    if name == "authors":
        stored = dict(authors(k, t, len(spec["widths"])) for k, t in stored.items())
    save_file(stored, os.path.join(folder, "diffusion_pytorch_model.safetensors"), metadata={"format": "pt"})
    pack, unpack = Flux2KleinPipeline._patchify_latents, Flux2KleinPipeline._unpatchify_latents
    mean, std = model.bn.running_mean.view(1, -1, 1, 1), torch.sqrt(model.bn.running_var.view(1, -1, 1, 1) + model.config.batch_norm_eps)
    references = {}
    for i in range(2):
        shown = vae_encoder.picture(spec, i)
        posterior = model.encode(shown[None]).latent_dist
        latent = (pack(posterior.mode()) - mean) / std
        if i:
            latent = 1.5 * torch.randn(latent.shape, generator=generator)
        decoded = model.decode(unpack(latent * std + mean), return_dict=False)[0]
        for key, t in (("picture", shown), ("moments", pack(posterior.parameters)[0]), ("decoded", decoded[0])):
            references[f"{key}{i}"] = t.permute(1, 2, 0).contiguous()
        references[f"latent{i}"] = latent[0].contiguous()
    save_file(references, os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    print(name, {k: (tuple(t.shape), float(t.std())) for k, t in references.items()})


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name, spec in SPECS.items():
        write(name, spec)
