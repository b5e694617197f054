"""Compares Sluice with diffusers at published widths: few layers, random weights, one picture of each family.

    published.py --sluice ../../build/release/sluice --out FOLDER [NAME ...]

Needs requirements.txt.  Not part of make test: a family takes up to 6 GB of RAM and of disk, and minutes.  The fixtures' widths
are tiny; here sums have 3072 to 24576 terms, heads 128 columns, and the VAE is of the published shape.  Transformers have one double
and one single block.  Text encoders have the published width, one or two heads, a narrow feed-forward and the fewest layers that
the recipe permits.  Files are bf16; diffusers and Sluice compute in f32.  Each family runs in Sluice within the default budget,
then within the least that its plan permits: the images must be equal bit for bit.  FOLDER keeps NAME.reference.png and NAME.png.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from diffusers import Flux2Transformer2DModel
from diffusers.hooks import apply_layerwise_casting
from PIL import Image
from safetensors.torch import load_file

import chroma.folder
import chroma.reference_tensors
import chroma.specs
import flux.folder
import flux.specs
import flux.tokens
import flux2.folder
import flux2.reference_tensors
import flux2.specs
import folder as zimage_folder
import inputs
import longcat.folder
import longcat.reference_tensors
import longcat.specs
import ovis.folder
import ovis.reference_tensors
import ovis.specs
from specs import DEFAULT_SEED

TOLERANCE = 2e-5  # relative L2 of the final latents; measured: at most 1e-5
GRID = (16, 20)   # columns and rows of image tokens: 256x320
STEPS, SEED = 4, 42

VAE = dict(vae_channels=[128, 256, 512, 512], vae_groups=32, vae_layers=2)
FILES = dict(transformer_dtype="bf16", text_dtype="bf16", t5_dtype="bf16", vae_dtype="bf16", cast={}, text_cast={}, transformer_shards=4,
             text_shards=1, t5_shards=1, shares=[])
# axes_dims_rope of Flux.1, LongCat-Image, Chroma and Ovis-Image
FLUX1 = dict(heads=24, axes=[16, 56, 56], channels=16)
FLUX2 = dict(axes=[32, 32, 32, 32], channels=32, decoder_channels=None, **VAE)
QWEN25VL_7B = dict(text_heads=28, text_kv_heads=4, text_sections=[16, 24, 24], text_layers=1, text_ffn=256)

# Family: its package, dimensions (source: config.json of the published models, as diffusers' defaults and the recipes have them),
# and the request.
FAMILIES = {
    "flux2_klein": (flux2, dict(heads=24, text_hidden=2560, text_layers=28, text_ffn=256, text_head_dim=128, text_heads=2, text_kv_heads=1,
                                **FLUX2), {}),
    "flux2_dev": (flux2, dict(heads=48, text_hidden=5120, text_layers=31, text_ffn=64, text_head_dim=128, text_heads=1, text_kv_heads=1, **FLUX2),
                  dict(guidance=4.0)),
    "longcat_image": (longcat, dict(**FLUX1, **QWEN25VL_7B, **VAE), dict(cfg=4.5, negative="ugly")),
    "chroma_hd": (chroma, dict(hidden=5120, t5_hidden=4096, vae_channels=VAE["vae_channels"], **FLUX1), dict(cfg=3.5, negative="ugly")),
    "ovis_image": (ovis, dict(text_hidden=2048, text_layers=2, text_ffn=256, text_head_dim=128, text_heads=2, text_kv_heads=1,
                              vae_channels=VAE["vae_channels"], **FLUX1), dict(cfg=5.0, negative="ugly")),
}


def published(name):
    """Returns the family's spec in published widths."""
    package, sizes, _ = FAMILIES[name]
    spec = package.specs.spec(name, DEFAULT_SEED)
    form = spec.form if not hasattr(package.specs, "spec_edit") else package.specs.FORMS["longcat_image_edit"] | spec.form
    return dataclasses.replace(spec, form=form | FILES, doubles=1, singles=1, **sizes)


def write_flux1_parts(target):
    """Writes the components that Chroma and Ovis-Image share with Flux.1, where their folders' links lead."""
    base = flux.specs.spec("flux_a", DEFAULT_SEED)
    spec = dataclasses.replace(base, form=base.form | FILES, t5_hidden=4096, t5_heads=2, t5_head_dim=64, t5_layers=2, t5_ffn=256, channels=16, **VAE)
    os.makedirs(target)
    zimage_folder.vae(spec, os.path.join(target, "vae"))
    model = flux.tokens.t5()
    flux.folder.t5(spec, os.path.join(target, "text_encoder_2"), flux.tokens.t5_size(model))
    flux.tokens.save_t5(model, os.path.join(target, "tokenizer_2"), True)
