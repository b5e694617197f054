"""Generates the fixtures of Flux.1's control networks and of Flux.1 Canny, for ../make.py.

control_flux has its own transformer, whose numbers of blocks are no multiples of the networks', and the rest of flux_a's
model; control_flux_union and control_flux_xlabs have no model/ but use control_flux's. Their networks:
  control_flux/controlnet         like InstantX's networks for one kind of image: double and single blocks, guidance
  control_flux/controlnet_2       like Shakker Labs' Union Pro 2.0: no single blocks, no guidance; the last block's residual
                                  is never added, as in the published network (6 residuals for 19 blocks: 18 // 4 is 4)
  control_flux_union/controlnet   with modes; controlnet_2 is a link to control_flux/controlnet
  control_flux_xlabs/controlnet   XLabs: convolutions on the pixels
flux_canny: a transformer that reads the control image's latent in x_embedder.

Tensors and layout as in make.py; images of controls as in ../control.py. Control images have the mean of the VAE's posterior
(control.posterior_mean); an input image's latent is a sample, as in the other fixtures of Flux.1. A case's "adapters" name LoRA
files in the fixture's folder, which change the transformer only. decoded: of case 0 only.
"""

import os
import random
import types
import zlib

import torch
from diffusers import (
    FluxControlImg2ImgPipeline, FluxControlNetImg2ImgPipeline, FluxControlNetInpaintPipeline, FluxControlNetModel,
    FluxControlNetPipeline, FluxControlPipeline, FluxMultiControlNetModel,
)
from safetensors.torch import save_file

import control
import files
import inputs
import runs
import weights
from control import use
from specs import DEFAULT_SEED, case as specs_case, redrawn

from . import bf16, folder, reference_tensors, specs
from .make import encode_case, model_numbers

SHARED = dict(share="flux_a", shares=["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae", "scheduler"])
FORMS = {
    "control_flux": dict(pipeline="FluxPipeline", guided=True, fills=False, controlled=False, tokens_max=512, transformer_dtype="bf16", cast={},
                         transformer_shards=1, networks=["single", "pro"], **SHARED),
    "control_flux_union": dict(guided=True, fills=False, controlled=False, tokens_max=512, model="control_flux", networks=["union", "link"]),
    "control_flux_xlabs": dict(guided=True, fills=False, controlled=False, tokens_max=512, model="control_flux", networks=["xlabs"]),
    "flux_canny": dict(pipeline="FluxControlPipeline", guided=True, fills=False, controlled=True, tokens_max=512, transformer_dtype="bf16", cast={},
                       transformer_shards=1, networks=[], **SHARED),
}

# Numbers of double and single blocks, modes, guidance, and the weights' type of each network.
NETWORKS = {
    "single": dict(num_layers=2, num_single_layers=2, guidance_embeds=True, dtype="bf16"),
    "pro": dict(num_layers=4, num_single_layers=0, guidance_embeds=False, dtype="bf16"),
    "union": dict(num_layers=2, num_single_layers=2, guidance_embeds=True, num_mode=5, dtype="f32"),
    "xlabs": dict(num_layers=2, num_single_layers=0, guidance_embeds=True, dtype="f32"),
}
LINK = "../control_flux/controlnet"

# The layers that training initialises to zero have values here, and residuals about as large as a block's change.
RULES = [
    ("controlnet_x_embedder", 0.5, 0.06), ("controlnet_blocks", 0.5, 0.1), ("controlnet_single_blocks", 0.5, 0.1),
    ("controlnet_mode_embedder", 1.5, 0), ("input_hint_block", 1.4, 0.3), *weights.FLUX,
]


def _case(grid, steps, seed, controls, guidance=3.5, **more):
    return specs_case(grid, steps, seed, guidance=guidance, controls=controls, **more)


CASES = {
    "control_flux": [
        _case((5, 3), 3, 42, [use(0, 0.8)]),
        # the window ends after the first two of three steps, guidance with a negative prompt
        _case((4, 5), 3, 7, [use(1, 1.1, end=0.7, size=(50, 90))], prompt="house", guidance=1.7, cfg=2.5, negative="ugly"),
        _case((3, 5), 2, 123456789, [use(0, 1.2)], batch=2),
        # 5 steps, strength 0.6: of the three steps that run, the network runs in the last two
        _case((4, 3), 5, 11, [use(1, 0.9, start=0.3)], init=True, strength=0.6),
        _case((5, 4), 4, 77, [use(0, 1.0, end=0.8)], prompt="house", init=True, mask=True, strength=0.9),
        _case((3, 4), 2, 5, [use(1)], lora=1.2, guidance=2.0),
    ],
    "control_flux_union": [
        _case((5, 3), 3, 42, [use(0, 0.9, mode=2)]),
        # two images of one network
        _case((3, 4), 3, 9, [use(0, 0.7, mode=4), use(0, 1.1, mode=0, start=0.3)], prompt="house", cfg=3.0, negative="empty"),
        # two networks
        _case((4, 3), 4, 31, [use(0, 0.6, mode=1, end=0.8), use(1, 0.8, start=0.25, size=(70, 40))], guidance=5.0, cfg=2.0, negative="ugly"),
        _case((3, 3), 2, 8, [use(0, mode=3)], batch=2, prompt="house"),
    ],
    "control_flux_xlabs": [
        _case((5, 3), 3, 42, [use(0, 0.8)]),
        _case((3, 5), 3, 12, [use(0, 0.6, start=0.2, size=(61, 33))], prompt="house", guidance=4.0, cfg=2.5, negative="ugly"),
        _case((3, 3), 2, 99, [use(0, 1.1)], batch=2),
    ],
    "flux_canny": [
        _case((5, 3), 3, 42, [use(-1)], guidance=30.0),
        _case((4, 5), 5, 77, [use(-1, size=(50, 90))], prompt="house", guidance=8.5, init=True, strength=0.8),
        _case((3, 4), 2, 99, [use(-1)], guidance=10.0, batch=2),
    ],
}


def spec(name, seed):
    drawn = specs.spec("flux_a", seed)  # flux_a's text encoders and VAE
    drawn.name, drawn.form = name, FORMS[name]
    drawn.heads, drawn.axes, drawn.doubles, drawn.singles = 2, [2, 6, 4], 5, 3
    rng = random.Random(f"{seed} {name}")
    drawn.cases = [wanted if seed == DEFAULT_SEED else redrawn(wanted, rng, 2, 9) for wanted in CASES[name]]
    return drawn


def _network(spec, kind):
    about = {key: value for key, value in NETWORKS[kind].items() if key != "dtype"}
    if kind == "xlabs":
        about |= dict(conditioning_embedding_channels=spec.channels, patch_size=2)
    return FluxControlNetModel(
        in_channels=4 * spec.channels, attention_head_dim=spec.head_dim, num_attention_heads=spec.heads, joint_attention_dim=spec.t5_hidden,
        pooled_projection_dim=spec.clip_hidden, axes_dims_rope=spec.axes, **about)


def _write(spec, target):
    if "model" not in spec.form:
        folder.write(spec, os.path.join(target, "model"))
    for k, kind in enumerate(spec.form["networks"]):
        if kind == "link":
            os.symlink(LINK, control.folder_of(target, k))
        else:
            control.write_network(target, k, _network(spec, kind), RULES, f"{spec.seed} {spec.name}", NETWORKS[kind]["dtype"])


def _pairs(pipe):
    """Returns the LoRA file of a case, and the changes of the transformer's weights at strength 1."""
    tensors, changes = {}, {}
    for name in ("transformer_blocks.1.attn.to_q", "transformer_blocks.3.ff.net.2", "single_transformer_blocks.1.proj_out", "x_embedder"):
        weight = pipe.transformer.get_parameter(f"{name}.weight").float()
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        down = torch.randn(3, weight.shape[1], generator=generator) / weight.shape[1]**0.5
        up = torch.randn(weight.shape[0], 3, generator=generator)
        up *= 0.4 * weight.norm() / (up @ down).norm()
        tensors |= {f"transformer.{name}.lora_A.weight": down, f"transformer.{name}.lora_B.weight": up}
        changes[f"{name}.weight"] = up.double() @ down.double()
    return tensors, changes


class _merged:
    """Context in which a LoRA is merged into the transformer's weights, in f64."""

    def __init__(self, pipe, changes, strength):
        self.model, self.changes, self.strength = pipe.transformer, changes, strength

    def __enter__(self):
        self.before = {name: self.model.get_parameter(name).data.clone() for name in self.changes}
        for name, change in self.changes.items():
            self.model.get_parameter(name).data.copy_(self.before[name].double() + self.strength * change)

    def __exit__(self, *_):
        for name, value in self.before.items():
            self.model.get_parameter(name).data.copy_(value)


def _runner(pipe, networks, case):
    """Returns diffusers' pipeline for a case, and its arguments for the controls."""
    controls = case["controls"]
    starts = init = case["init"]
    if controls[0]["network"] < 0:
        return (FluxControlImg2ImgPipeline if starts else FluxControlPipeline), {}, {}
    kind = FluxControlNetInpaintPipeline if case["mask"] else FluxControlNetImg2ImgPipeline if init else FluxControlNetPipeline
    modes = [None if c["mode"] < 0 else c["mode"] for c in controls]
    values = dict(control_guidance_start=[c["start"] for c in controls], control_guidance_end=[c["end"] for c in controls],
                  controlnet_conditioning_scale=[c["strength"] for c in controls])
    if len(controls) == 1:
        return kind, dict(controlnet=networks[controls[0]["network"]]), {k: v[0] for k, v in values.items()} | dict(control_mode=modes[0])
    used = sorted({c["network"] for c in controls})  # one network for all images, or one for each
    return kind, dict(controlnet=FluxMultiControlNetModel([networks[k] for k in used])), values | dict(control_mode=modes)


def _call(networks, pictures):
    def call(pipe, case, given, generator):
        kind, more, arguments = _runner(pipe, networks, case)
        runner = kind(**{k: v for k, v in pipe.components.items() if k not in ("image_encoder", "feature_extractor")}, **more)
        runner.set_progress_bar_config(disable=True)
        images = control.images_of(case, pictures)
        arguments |= dict(
            prompt=case["prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
            guidance_scale=case["guidance"], generator=generator, max_sequence_length=case["max_sequence_length"],
            control_image=images if len(images) > 1 else images[0])
        if case["cfg_scale"] > 1:
            arguments |= dict(negative_prompt=case["negative_prompt"], true_cfg_scale=case["cfg_scale"])
        if case["init"]:
            arguments |= dict(image=given["init"], strength=case["strength"])
        if case["mask"]:
            arguments |= dict(mask_image=given["mask"])
        return runner, arguments
    return call


def run_case(pipe, networks, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix (see ../runs.py)."""
    config = pipe.vae.config
    own = {name: picture for name, picture in pictures.items() if not name.startswith("control")}
    prepared = [pipe.image_processor.preprocess(image, height=case["height"], width=case["width"]) for image in control.images_of(case, pictures)]
    with control.posterior_mean(pipe.vae, only=lambda picture: any(torch.equal(picture, p) for p in prepared)):
        tensors, _ = runs.run_case(pipe, case, own, _call(networks, pictures), lambda z: (z - config.shift_factor) * config.scaling_factor)
    tensors |= {f"picture.{name}": torch.from_numpy(picture) for name, picture in pictures.items() if name not in own}
    dropped = ["encoded.masked", "moments.masked"]  # diffusers encodes a masked image that Flux.1 does not read
    for name in dropped + (["decoded"] if case["index"] else []):
        tensors.pop(name, None)
    return tensors


def load(target, form):
    """Loads the model and the control networks of a fixture, in f32."""
    model = os.path.join(target, "model") if "model" not in form else os.path.join(os.path.dirname(target), form["model"], "model")
    return reference_tensors.load(model), control.load_networks(target, [FluxControlNetModel] * len(form["networks"]))


def pictures_in(known, index):
    """Returns the input images of a case among the reference tensors, by name."""
    prefix = f"case{index}.picture."
    return {name.removeprefix(prefix): value.numpy() for name, value in known.items() if name.startswith(prefix)}


@torch.no_grad()
def everything(model, dtype, known, expect):
    """Returns pooled prompts and final latents of every case, with the networks and the transformer in dtype, for ../bf16.py. model: the model's
    folder in the fixture, whether or not it exists."""
    pipe, networks = load(os.path.dirname(model), FORMS[expect["fixture"]])
    for part in (pipe.transformer, pipe.text_encoder, pipe.text_encoder_2, *networks):
        bf16.disguise(part, dtype)
    for part in (pipe.transformer, *networks):
        bf16.keep_conditioning(part, dtype)
    out = {}
    for case in expect["cases"]:
        for lane, prompt in inputs.lanes(case):
            out[f"case{case['index']}.pooled.{lane}"] = reference_tensors.encode(pipe, prompt, case["max_sequence_length"])[0]["pooled"]
        changes, strength = (_pairs(pipe)[1], case["adapters"][0]["strength"]) if "adapters" in case else ({}, 0)
        with _merged(pipe, changes, strength):
            out[f"case{case['index']}.latent"] = run_case(pipe, networks, dict(case), pictures_in(known, case["index"]))["latent"]
    return out


family = types.SimpleNamespace(everything=everything, add_names=lambda _errors: None, independent=lambda _name, _known: {}, renamed={})


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    _write(spec, target)
    pipe, networks = load(target, spec.form)
    tensors, cases = {}, []
    for k, wanted in enumerate(spec.cases):
        case = inputs.of_tokens(spec, specs.TEXTS, spec.form["tokens_max"], k, wanted)
        pictures = inputs.pictures_of(spec, case, unit=spec.pixel_multiple) | control.pictures_of(spec, case, wanted["controls"])
        encode_case(pipe, case, tensors, hidden=False)
        changes, strength = {}, wanted.get("lora", 0)
        if strength:
            pairs, changes = _pairs(pipe)
            save_file(pairs, os.path.join(target, "lora.safetensors"), metadata={"format": "pt"})
            case["adapters"] = [dict(file="lora.safetensors", strength=strength)]
        with _merged(pipe, changes, strength):
            tensors |= inputs.named(case, run_case(pipe, networks, case, pictures))
        cases.append(case)
    files.fixture_end(out, spec, tensors, dict(family="flux_control", model=model_numbers(spec), cases=cases))
