#!/usr/bin/env python3
"""Generates the fixtures of the second pass (--hires): hires (over the model of sd1) and hires_flux (of flux_a).

    hires.py [--out DIR]

The reference runs two pipelines of diffusers one after the other: text to image, then image to image at the larger
size, with the same generator.  Between them PyTorch's interpolate enlarges the latent, or Pillow's Lanczos the
picture.  expect.json and reference.safetensors are as for sd1 (unet/make.py); case k also has
  hires        {"scale", "strength", "steps", "upscaler"} of the request; "dumps": number of latents of the second pass
  latent_NNN   start and steps of the first pass, then start and steps of the second pass (image 0)
"""

import argparse
import os
from types import SimpleNamespace

import files
import flux.reference_tensors
import numpy as np
import torch
import torch.nn.functional as F
import unet.reference_tensors
from diffusers import FluxImg2ImgPipeline, FluxPipeline
from PIL import Image
from runs import unpack
from specs import DEFAULT_SEED

FOX, HOUSE = "a red fox in the snow, golden hour", "the old house by the sea; 3 trees & 12 birds"
SD1 = [
    dict(prompt=FOX, negative_prompt="blurry", width=56, height=40, steps=4, cfg_scale=2.5, seed=42, batch=2,
         hires=dict(scale=1.5, strength=0.6, steps=5, upscaler="latent")),
    dict(prompt=HOUSE, negative_prompt=None, width=40, height=64, steps=3, cfg_scale=1.0, seed=7, batch=1,
         hires=dict(scale=1.3, strength=0.75, steps=3, upscaler="latent-bilinear")),
    dict(prompt=FOX, negative_prompt="", width=48, height=40, steps=3, cfg_scale=2.0, seed=9, batch=2,
         hires=dict(scale=1.7, strength=0.5, steps=4, upscaler="lanczos")),
]
FLUX = [
    dict(prompt=FOX, negative_prompt=None, width=48, height=80, steps=3, cfg_scale=1.0, guidance=3.5, seed=5, batch=2,
         hires=dict(scale=1.5, strength=0.7, steps=4, upscaler="latent-bilinear")),
    dict(prompt=HOUSE, negative_prompt=None, width=64, height=48, steps=2, cfg_scale=1.0, guidance=2.0, seed=6, batch=1,
         hires=dict(scale=2, strength=0.5, steps=4, upscaler="lanczos")),
]


def larger_side(side, scale, step):
    return int(side * scale) // step * step


class Run:
    """Runs one pass of a pipeline and records its latents: the start, then one after each step."""

    def __init__(self, pipe, case, width, height):
        self.pipe, self.latents = pipe, []
        self.shape = dict(case, width=width, height=height)
        self.packed = hasattr(pipe, "_unpack_latents")

    def __call__(self, **arguments):
        prepare = self.pipe.prepare_latents

        def prepare_and_record(*args, **kwargs):
            out = prepare(*args, **kwargs)
            self.record(out[0] if isinstance(out, tuple) else out)
            return out

        def on_step(_pipe, _i, _t, values):
            self.record(values["latents"])
            return {}

        self.pipe.prepare_latents = prepare_and_record
        try:
            return self.pipe(**arguments, callback_on_step_end=on_step).images
        finally:
            self.pipe.prepare_latents = prepare

    def record(self, latents):
        self.latents.append((unpack(self.pipe, latents, self.shape) if self.packed else latents).clone())


def enlarge(how, latent, picture, width, height, factor):
    if how == "lanczos":
        return Image.fromarray(picture).resize((width, height), Image.LANCZOS)
    mode = dict(mode="nearest") if how == "latent" else dict(mode="bilinear", align_corners=False)
    return F.interpolate(latent, size=(height // factor, width // factor), **mode)


@torch.no_grad()
def run_case(load, arguments_of, case, step):
    hires, images, tensors = case["hires"], [], {}
    width, height = (larger_side(case[side], hires["scale"], step) for side in ("width", "height"))
    for k in range(case["batch"]):
        text, image = load()
        generator = torch.Generator().manual_seed(case["seed"] + k)
        first, second = Run(text, case, case["width"], case["height"]), Run(image, case, width, height)
        common = dict(prompt=case["prompt"], generator=generator) | arguments_of(case)
        picture = first(**common, num_inference_steps=case["steps"], width=case["width"], height=case["height"], output_type="np")[0]
        if not k:
            tensors["timesteps"] = text.scheduler.timesteps.to(torch.float32).clone()
        begin = enlarge(hires["upscaler"], first.latents[-1], (picture * 255).round().astype("uint8"), width, height, image.vae_scale_factor)
        sized = dict(width=width, height=height) if first.packed else {}
        drawn = second(**common, **sized, image=begin, strength=hires["strength"], num_inference_steps=hires["steps"], output_type="pil")[0]
        images.append((first.latents, second.latents, torch.from_numpy(np.array(drawn))))
    tensors["noise"] = torch.cat([first[0] for first, _, _ in images])
    for i, latent in enumerate([*images[0][0][1:], *images[0][1][:-1]]):
        if case["batch"] == 1:
            tensors[f"latent_{i + 1:03}"] = latent
    tensors["latent"] = torch.cat([second[-1] for _, second, _ in images])
    tensors["picture"] = torch.stack([picture for _, _, picture in images]) if case["batch"] > 1 else images[0][2]
    hires["dumps"] = len(images[0][1])
    return tensors


def make(out, name, model_of, cases, load, arguments_of, step):
    target = files.fixture_begin(out, name)
    tensors, written = {}, []
    for k, case in enumerate(cases):
        case = dict(case, index=k, kind="image", init=False)
        tensors |= {f"case{k}.{key}": value for key, value in run_case(load, arguments_of, case, step).items()}
        written.append(case)
    files.fixture_end(out, SimpleNamespace(name=name, seed=DEFAULT_SEED), tensors, dict(model_of=model_of, cases=written))


def sd1(out):
    def load():
        pipe = unet.reference_tensors.load(os.path.join(out, "sd1/model"))
        return unet.reference_tensors.beside(pipe, "text"), unet.reference_tensors.beside(pipe, "init")

    make(out, "hires", "sd1", SD1, load, lambda case: dict(negative_prompt=case["negative_prompt"], guidance_scale=case["cfg_scale"]), 8)


def flux_a(out):
    def load():
        pipe = flux.reference_tensors.load(os.path.join(out, "flux_a/model"))
        both = FluxPipeline(**pipe.components), FluxImg2ImgPipeline(**pipe.components)
        for one in both:
            one.set_progress_bar_config(disable=True)
        return both

    make(out, "hires_flux", "flux_a", FLUX, load, lambda case: dict(guidance_scale=case["guidance"], max_sequence_length=512), 16)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--out", default=here)
    target = parser.parse_args().out
    torch.set_num_threads(2)
    sd1(target)
    flux_a(target)
