#!/usr/bin/env python3
"""Generates vae_ltx2/: reference tensors of LTX-2's video VAEs, and a small VAE under the authors' names.

    vae_ltx2.py [NAME...]

Needs requirements.txt, and the models of ltx2/ and ltx23/ (ltx/make.py).  test/models/test_vae_ltx2.c reads the output
and needs no Python.  For each NAME (ltx2, ltx23: the VAEs of those folders; authors: a VAE of this script)
  NAME.safetensors       f32, for F = 1, 2, 3 latent frames: latentF [C, F, Y, X], normalised; framesF, every third row
                         and column of the 8 F - 7 decoded frames; meanF [F, Y, X, C], the encoder's mean of frames
                         with the values of `pattern`
  authors/vae.safetensors  the VAE `authors`, in bf16, without config.json: LTX-2.0's layout
Outputs are computed from the written weights, in f32 on the CPU.
"""

import os
import sys

import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import AutoencoderKLLTX2Video
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "vae_ltx2")
SIZES = {"ltx2": (2, 3), "ltx23": (1, 2), "authors": (3, 2)}
LENGTHS = (1, 2, 3)


def authors_name(name, levels):
    """Converts a tensor name of diffusers; levels: number of up_blocks and of down_blocks."""
    name = name.replace("latents_mean", "per_channel_statistics.mean-of-means")
    name = name.replace("latents_std", "per_channel_statistics.std-of-means")
    name = name.replace("encoder.mid_block.", f"encoder.down_blocks.{2 * levels[1]}.")
    name = name.replace("decoder.mid_block.", "decoder.up_blocks.mid.")
    parts = name.split(".")
    if parts[1] in ("up_blocks", "down_blocks") and parts[2] != "mid" and "mid_block" not in name:
        number = int(parts[2])
        if not (parts[0] == "encoder" and number == 2 * levels[1]):
            samples = parts[3] in ("upsamplers", "downsamplers")
            parts[2] = str(2 * number + (samples if parts[0] == "encoder" else 2 - samples))
            if samples:
                del parts[3:5]
    return ".".join(parts).replace("up_blocks.mid.", "up_blocks.0.").replace(".resnets.", ".res_blocks.")


def build_authors():
    torch.manual_seed(20)
    vae = AutoencoderKLLTX2Video(
        latent_channels=6, block_out_channels=(8, 8, 8, 16), decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1, 2, 1, 1, 2), decoder_layers_per_block=(2, 1, 1, 1), decoder_causal=False)
    tensors = {}
    for name, value in vae.state_dict().items():
        spread = 0.3 if name.endswith("bias") else 1.6 / value[0].numel() ** 0.5
        tensors[name] = (torch.randn_like(value) * spread).bfloat16()
    tensors["latents_std"] = (0.5 + torch.rand(6)).bfloat16()
    os.makedirs(os.path.join(FOLDER, "authors"), exist_ok=True)
    named = {authors_name(name, (3, 4)): value.contiguous() for name, value in tensors.items()}
    assert len(named) == len(tensors)
    named["per_channel_statistics.mean-of-stds"] = torch.ones(6).bfloat16()
    save_file(named, os.path.join(FOLDER, "authors", "vae.safetensors"))
    vae.load_state_dict({name: value.float() for name, value in tensors.items()})
    return vae.eval()


def load(name):
    if name == "authors":
        return build_authors()
    return AutoencoderKLLTX2Video.from_pretrained(os.path.join(HERE, name, "model", "vae"), torch_dtype=torch.float32).eval()


def pattern(frames, rows, columns):
    """Pixels in -1 to 1, of a formula that the test repeats."""
    t, y, x, c = torch.meshgrid(*[torch.arange(n) for n in (frames, rows, columns, 3)], indexing="ij")
    return ((37 * t * t + 11 * y + 23 * x * (y % 7) + 101 * c) % 255).float() / 127 - 1


@torch.no_grad()
def references(name):
    vae, (Y, X) = load(name), SIZES[name]
    C, tensors = vae.config.latent_channels, {}
    each = lambda v: v.float().view(1, -1, 1, 1, 1)
    for F in LENGTHS:
        latent = torch.randn(1, C, F, Y, X, generator=torch.Generator().manual_seed(F))
        frames = vae.decode(latent * each(vae.latents_std) + each(vae.latents_mean)).sample[0].permute(1, 2, 3, 0)
        picture = pattern(8 * F - 7, 32 * Y, 32 * X)
        mean = vae.encode(picture.permute(3, 0, 1, 2)[None]).latent_dist.mode()[0].permute(1, 2, 3, 0)
        tensors |= {f"latent{F}": latent[0], f"frames{F}": frames[:, ::3, ::3], f"mean{F}": mean}
        print(name, F, f"frames {frames.std():.3f}, mean {mean.std():.3f}")
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(FOLDER, f"{name}.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.makedirs(FOLDER, exist_ok=True)
    for name in sys.argv[1:] or SIZES:
        references(name)
