"""Compares Sluice with diffusers at published widths: few layers, random weights, one picture of each family.

    published.py --sluice ../../build/release/sluice --out FOLDER [--steps N] [--keep] [NAME ...]

Needs requirements.txt.  Not part of make test: a family takes minutes and up to 4 GB of RAM; Flux.2 dev takes 9 GB of disk, the
others 3.  The fixtures' widths are tiny; here sums have 3072 to 24576 terms, heads have 128 columns, and the VAE is of the published
shape.  Transformers have one double and one single block.  Text encoders have the published width, few heads, a narrow feed-forward and
few layers: Flux.2's as many as the recipe reads.  Files are bf16; diffusers and Sluice compute in f32.  Sluice runs within
3 GiB, then within the least that its plan permits; latents and images must be equal bit for bit.  FOLDER keeps the images NAME.png (Sluice)
and NAME.reference.png, and with --keep also the model's files, which the next run reads.
"""

import argparse
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from diffusers import (ChromaTransformer2DModel, CosmosTransformer3DModel, Flux2Transformer2DModel, Krea2Transformer2DModel,
                       LongCatImageTransformer2DModel, OvisImageTransformer2DModel, QwenImage21Transformer2DModel)
from PIL import Image
from safetensors.torch import load_file

import anima.folder
import anima.reference_tensors
import anima.specs
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
import krea.folder
import krea.reference_tensors
import krea.specs
import longcat.folder
import longcat.reference_tensors
import longcat.specs
import ovis.folder
import ovis.reference_tensors
import ovis.specs
import qwen.folder
import qwen.specs
import qwen21.folder
import qwen21.make
import qwen21.reference_tensors
import qwen21.specs
from specs import DEFAULT_SEED

TOLERANCE = 2e-5  # relative L2 of the final latents; measured: at most 1e-5
GRID = (16, 20)   # columns and rows of image tokens: 256x320
SEED = 42

VAE = dict(vae_channels=[128, 256, 512, 512], vae_groups=32, vae_layers=2)
FILES = dict(transformer_dtype="bf16", t5_dtype="bf16", vae_dtype="bf16", adapter_dtype="bf16", cast={}, text_cast={}, transformer_shards=4,
             text_shards=1, t5_shards=1)
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
    "qwen_image_21": (qwen21, dict(heads=32, axes=[16, 56, 56], layers=2, text_hidden=4096, text_heads=2, text_kv_heads=1, text_sections=[24, 20, 20],
                                   text_layers=4, text_ffn=256, vae_base=96, decoder_base=144, vae_layers=2, channels=64),
                      dict(cfg=3.0, negative="ugly")),
    "krea2": (krea, dict(heads=48, key_heads=12, axes=[32, 48, 48], layers=1, ffn=16384, fusion_heads=20, fusion_key_heads=20, fusion_ffn=6912,
                         text_hidden=2560, text_heads=2, text_kv_heads=1, text_sections=[24, 20, 20], text_ffn=256, channels=16),
              dict(cfg=5.5, negative="ugly")),
    "anima_base": (anima, dict(heads=16, head_dim=128, layers=2, low_rank=256, mlp_ratio=4.0, rope_scale=[1.0, 4.0, 4.0], adapter_heads=16,
                               adapter_head_dim=64, adapter_layers=2, adapter_ratio=4.0, text_hidden=1024, text_heads=16, text_kv_heads=8,
                               text_head_dim=128, text_layers=2, text_ffn=3072, channels=16), dict(cfg=4.0, negative="ugly")),
}
# Fixtures whose folders contain the components that others link to.
OWNERS = dict(longcat_image="longcat_image_edit", qwen_image_21="qwen_image_21_ref")


def published(name):
    """Returns the family's spec in published widths."""
    package, sizes, _ = FAMILIES[name]
    spec = package.specs.spec(name, DEFAULT_SEED)
    form = spec.form | FILES
    if name in OWNERS:
        form = package.specs.FORMS[OWNERS[name]] | form | dict(shares=[])
    blocks = dict(doubles=1, singles=1) if hasattr(spec, "doubles") else {}
    return dataclasses.replace(spec, form=form, **blocks, **sizes)


def write_flux1_parts(target):
    """Writes T5, the VAE and the scheduler, to which the folders of Chroma and Ovis-Image link."""
    base = flux.specs.spec("flux_a", DEFAULT_SEED)
    others = ["text_encoder", "tokenizer", "transformer"]  # begin_model() makes links to nothing of them
    form = base.form | FILES | dict(share="absent", shares=others)
    flux.folder.write(dataclasses.replace(
        base, form=form, t5_hidden=4096, t5_heads=2, t5_head_dim=64, t5_layers=2, t5_ffn=256, channels=16, **VAE), target)
    for part in others:
        os.remove(os.path.join(target, part))


def write_wan_parts(scratch):
    """Writes Wan's VAE, and links tokenizers: parts to which the folders of Krea 2 and Anima link."""
    target = os.path.join(scratch, "qwen_edit_plus", "model")
    os.makedirs(target)
    base = qwen.specs.spec("qwen_edit_plus", DEFAULT_SEED)
    qwen.folder._vae(dataclasses.replace(base, form=base.form | FILES, vae_base=96, vae_times=[1, 2, 4, 4], vae_layers=2, channels=16),
                     os.path.join(target, "vae"))
    os.makedirs(os.path.join(scratch, "flux_a", "model"))
    here = os.path.dirname(os.path.abspath(__file__))
    for part in ("qwen_edit_plus/model/tokenizer", "flux_a/model/tokenizer_2"):
        os.symlink(os.path.join(here, part), os.path.join(scratch, part))


def write(name, spec, scratch, folder):
    """Writes the model folder. Draws weights in bf16, and once; they lie in mapped files, because those of Flux.2 dev take 4.2 GB."""
    reset, maps = torch.nn.Linear.reset_parameters, tempfile.mkdtemp(dir=scratch)

    def map_weight(linear):
        file = tempfile.mkstemp(dir=maps)[1]
        linear.weight.data = torch.from_file(file, shared=True, size=linear.weight.numel(), dtype=torch.bfloat16).view_as(linear.weight)

    torch.set_default_dtype(torch.bfloat16)
    torch.nn.Linear.reset_parameters = map_weight
    if spec.form.get("share") == "flux_a":
        write_flux1_parts(os.path.join(scratch, "flux_a", "model"))
    if FAMILIES[name][0] in (krea, anima):
        write_wan_parts(scratch)
    FAMILIES[name][0].folder.write(spec, folder)
    torch.set_default_dtype(torch.float32)
    torch.nn.Linear.reset_parameters = reset
    shutil.rmtree(maps)


def keep_narrow(model_class):
    """Makes the class load bf16, which maps the files, and widen each matrix only while it computes: Flux.2 dev would take 8.5 GB."""
    load = model_class.from_pretrained

    def from_pretrained(*arguments, **more):
        model = load(*arguments, **more | dict(dtype=torch.bfloat16))
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = functools.partial(widened, module)
            else:
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.float()
        return model

    model_class.from_pretrained = from_pretrained
    model_class.dtype = torch.float32


def widened(linear, x):
    return torch.nn.functional.linear(x, linear.weight.float(), None if linear.bias is None else linear.bias.float())


def case_of(name, spec, steps):
    package, _, wanted = FAMILIES[name]
    if package is qwen21:  # a token is one latent pixel, and the grid counts 2x2
        return qwen21.make.image_case(spec, 0, dict(grid=(GRID[0] // 2, GRID[1] // 2), steps=steps, seed=SEED, prompt="house") | wanted)
    case = inputs.of_tokens(spec, package.specs.TEXTS, 512, 0, dict(grid=GRID, steps=steps, seed=SEED, prompt="house", cfg=1.0, negative=None) | wanted)
    if package is flux2:  # a token is one packed latent pixel
        case |= dict(latent_width=GRID[0], latent_height=GRID[1])
    return case


def reference(name, folder, case):
    """Returns diffusers' latents [1, C, h, w] before and after the steps, picture [H, W, 3] and seconds."""
    module = FAMILIES[name][0].reference_tensors
    pipe, start = module.load(folder), time.time()
    values = module.run_case(pipe, case) if name in ("ovis_image", "krea2") else module.run_case(pipe, case, {})
    return values["latent_000"], values["latent"], values["picture"].numpy(), time.time() - start


def generate(sluice, folder, case, out, max_ram):
    """Runs sluice generate; returns its latents, picture and report."""
    latent, report = out + ".safetensors", out + ".json"
    command = [sluice, "generate", "-m", folder, "-p", case["prompt"], "-W", str(case["width"]), "-H", str(case["height"]), "--seed", str(SEED),
               "--steps", str(case["steps"]), "--cfg-scale", str(case["cfg_scale"]), "--precision", "f32", "--threads", str(torch.get_num_threads()),
               "--device", "cpu", "--max-ram", max_ram, "--save-latent", latent, "--report", report, "-o", out + ".png"]
    if case["negative_prompt"]:
        command += ["--negative-prompt", case["negative_prompt"]]
    if case["guidance"]:
        command += ["--guidance", str(case["guidance"])]
    subprocess.run(command, check=True)
    with open(report, encoding="utf-8") as f:
        return load_file(latent)["latent"], np.array(Image.open(out + ".png")), json.load(f)


def megabytes(report):
    return round(report["measured"]["ram_bytes"] / 1e6)


def compare(name, args, scratch):
    """Prints one line of figures; returns whether the family passes."""
    spec = published(name)
    folder, case, path = os.path.join(scratch, name, "model"), case_of(name, spec, args.steps), os.path.join(args.out, name)
    if not os.path.exists(folder):
        write(name, spec, scratch, folder)
    start = time.time()
    latent, picture, report = generate(args.sluice, folder, case, path, "3G")
    seconds, least = time.time() - start, report["plan"]["least"]["ram_bytes"]
    tight_latent, tight_picture, tight = generate(args.sluice, folder, case, os.path.join(scratch, "tight"), f"{least}B")
    same = torch.equal(latent, tight_latent) and np.array_equal(picture, tight_picture)
    noise, expected, drawn, reference_seconds = reference(name, folder, case)
    Image.fromarray(drawn).save(path + ".reference.png")
    error = float((latent - expected).norm() / expected.norm())
    levels = np.abs(picture.astype(int) - drawn)
    passed = same and error < TOLERANCE
    moved = float((expected - noise).norm() / expected.norm())
    print(f"{name:13} width {spec.dim}  latents {error:.1e} of their size, which the steps changed by {moved:.2f}  "
          f"image: at most {levels.max()} levels, mean {levels.mean():.4f}, standard deviation {drawn.std():.0f}  "
          f"RAM {megabytes(report)} MB; least {megabytes(tight)} MB, {'equal' if same else 'DIFFERENT'}  "
          f"{seconds:.0f} s, diffusers {reference_seconds:.0f} s  {'ok' if passed else 'FAILED'}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--out", required=True, help="folder of the pictures and, while a family runs, of its files")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"families, of {', '.join(FAMILIES)}")
    args = parser.parse_args()
    for model_class in (Flux2Transformer2DModel, LongCatImageTransformer2DModel, ChromaTransformer2DModel, OvisImageTransformer2DModel,
                        QwenImage21Transformer2DModel, Krea2Transformer2DModel, CosmosTransformer3DModel):
        keep_narrow(model_class)
    failed = []
    for name in args.names or FAMILIES:
        scratch = os.path.join(args.out, f"{name}.files")
        os.makedirs(scratch, exist_ok=True)
        if not compare(name, args, scratch):
            failed.append(name)
        if not args.keep:
            shutil.rmtree(scratch)
    if failed:
        sys.exit(f"families that differ from diffusers: {', '.join(failed)}")


if __name__ == "__main__":
    main()
