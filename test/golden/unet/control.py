"""Generates the fixtures of UNets' control networks, for ../make.py: control networks for the models of the fixtures
sd1, sd2 and sdxl.

Each NAME/ has the networks' folders, expect.json and reference.safetensors, as ../control.py describes; the cases'
reference tensors are those of make.py in this package.  The networks of control_sd1 are an ordinary one, one that reads
blue, green, red, and one with global_pool_conditions; of control_sdxl the published sizes full, mid (transformers
without layers, as at the published network's middle level) and small (no transformers); of control_union one for several kinds of images.
"""

import json
import os
from dataclasses import dataclass, field

import diffusers
import torch
from diffusers import ControlNetModel, ControlNetUnionModel
from safetensors.torch import load_file, save_file

import control
import files
import inputs
import loras
import weights
from specs import DEFAULT_SEED
from specs import case as _case

from . import make, reference_tensors, specs

# Rules of the layers that are not the UNet's; in real training the last ones start at zero.
RULES = [
    ("cond_embedding.conv_in", 2.0, 0.3), ("cond_embedding.blocks", 1.6, 0.3), ("cond_embedding.conv_out", 2.0, 0.2),
    ("controlnet_down_blocks", 0.8, 0.2), ("controlnet_mid_block", 0.8, 0.2),
    ("in_proj", 1.0, 0.3), ("out_proj", 1.0, 0.2), ("c_fc", 1.0, 0.3), ("c_proj", 1.0, 0.2), ("spatial_ch_projs", 1.0, 0.2),
    *weights.UNET,
]

PIPELINES = {
    "sd1": dict(text="StableDiffusionControlNetPipeline", init="StableDiffusionControlNetImg2ImgPipeline", mask="StableDiffusionControlNetInpaintPipeline"),
    "sdxl": dict(text="StableDiffusionXLControlNetPipeline", init="StableDiffusionXLControlNetImg2ImgPipeline", mask="StableDiffusionXLControlNetInpaintPipeline"),
    "union": dict(text="StableDiffusionXLControlNetUnionPipeline", init="StableDiffusionXLControlNetUnionImg2ImgPipeline",
                  mask="StableDiffusionXLControlNetUnionInpaintPipeline"),
}

# networks: the changes to the UNet's configuration, and the type of the weights
FORMS = {
    "control_sd1": dict(share="sd1", pipelines="sd1", networks=[
        dict(dtype="f16", hints=(3, 5, 6, 9)),
        dict(dtype="bf16", hints=(2, 3, 4, 5), controlnet_conditioning_channel_order="bgr"),
        dict(dtype="f16", hints=(2, 3, 4, 5), global_pool_conditions=True)]),
    "control_sd2": dict(share="sd2", pipelines="sd1", networks=[dict(dtype="f16", hints=(3, 5, 6, 9))]),
    "control_sdxl": dict(share="sdxl", pipelines="sdxl", networks=[
        dict(dtype="f16", hints=(3, 5, 6, 9)),
        dict(dtype="f16", hints=(3, 4, 5, 6), transformer_layers_per_block=[0, 0, 0]),
        dict(dtype="f16", hints=(3, 4, 5, 6), down_block_types=["DownBlock2D"] * 3, mid_block_type="UNetMidBlock2D")]),
    "control_union": dict(share="sdxl", pipelines="union", networks=[
        dict(dtype="f16", hints=(3, 5, 6, 9), num_control_type=6, num_trans_channel=4, num_trans_head=2, num_trans_layer=2, num_proj_channel=4)]),
}

_use = control.use
CASES = {
    "control_sd1": [
        _case((9, 7), 5, 42, cfg=4.0, negative="ugly", controls=[_use(strength=0.8)]),
        # a window, and an image of another size
        _case((5, 8), 5, 7, prompt="house", controls=[_use(strength=1.3, start=0.2, end=0.7, size=(64, 40))]),
        _case((7, 5), 4, 11, cfg=3.0, negative="empty", guess_mode=True, controls=[_use(strength=0.9)], batch=2),
        # two networks, two images of one network
        _case((6, 5), 3, 5, cfg=2.5, negative="ugly", controls=[_use(1, 0.7), _use(0, 0.6, end=0.8)]),
        _case((5, 6), 3, 6, prompt="house", controls=[_use(0, 0.7), _use(0, 0.5, start=0.3)]),
        # the mean over the pixels, in the positive prompt's lane alone
        _case((6, 7), 4, 8, cfg=3.0, negative="ugly", controls=[_use(2, 1.2)]),
        _case((5, 7), 6, 2024, cfg=2.5, negative="empty", init=True, strength=0.5, batch=2, controls=[_use(strength=0.8)]),
        _case((7, 6), 4, 77, cfg=3.0, negative="ugly", init=True, mask=True, strength=0.75, controls=[_use(1)]),
    ],
    "control_sd2": [
        _case((7, 9), 4, 42, cfg=3.0, negative="ugly", controls=[_use(strength=0.8)]),
        # an adapter of the UNet does not change the network
        _case((5, 6), 3, 7, prompt="house", adapter=0.8, controls=[_use(strength=0.7)]),
    ],
    "control_sdxl": [
        _case((9, 6), 4, 42, cfg=4.0, negative="ugly", controls=[_use(0, 0.8)]),
        _case((6, 7), 4, 7, cfg=3.0, guess_mode=True, batch=2, controls=[_use(1, 0.9)]),
        _case((5, 8), 4, 9, prompt="house", controls=[_use(2, 1.1, end=0.75), _use(0, 0.6, start=0.25)]),
        _case((7, 5), 5, 2, cfg=2.0, negative="empty", init=True, strength=0.8, controls=[_use(2, 0.7)]),
        _case((6, 5), 4, 16, init=True, mask=True, strength=0.6, controls=[_use(1, 0.8)]),
    ],
    "control_union": [
        _case((7, 9), 4, 42, cfg=4.0, negative="ugly", controls=[_use(strength=0.8, mode=3)]),
        _case((6, 5), 4, 7, prompt="house", controls=[_use(strength=0.7, mode=1), _use(strength=0.9, mode=5)]),
        # without guidance: the pipeline fails in guess mode with guidance
        _case((5, 6), 3, 9, guess_mode=True, batch=2, controls=[_use(strength=0.7, mode=0), _use(strength=1.2, mode=4)]),
        _case((6, 7), 4, 11, guess_mode=True, controls=[_use(strength=0.9, mode=2, end=0.75)]),
        _case((5, 7), 5, 2, cfg=2.0, negative="empty", init=True, strength=0.8, controls=[_use(strength=0.7, mode=5)]),
    ],
}


@dataclass
class Spec:
    name: str
    seed: int
    form: dict
    base: object  # the spec of the model's fixture
    cases: list = field(default_factory=list)

    @property
    def pixel_multiple(self):
        return self.base.pixel_multiple


def spec(name, seed):
    form = FORMS[name]
    return Spec(name, seed, form, specs.spec(form["share"], seed), CASES[name])


def network(of_unet, about):
    """Returns a control network for the UNet with changes to its configuration."""
    kind = kinds_of(dict(networks=[about]))[0]
    given = {k: v for k, v in of_unet.config.items() if k in kind._get_init_keys(kind)}
    changes = {k: v for k, v in about.items() if k not in ("dtype", "hints")}
    return kind(**given | changes | dict(conditioning_embedding_out_channels=about["hints"]))


def kinds_of(form):
    """Returns the classes of a fixture's control networks."""
    return [ControlNetUnionModel if "num_control_type" in about else ControlNetModel for about in form["networks"]]


def runner_of(pipe, networks, case, kind):
    """Returns the pipeline for a case, with the networks of its controls."""
    used = [networks[c["network"]] for c in case["controls"]]
    union = isinstance(used[0], ControlNetUnionModel)
    pipeline = getattr(diffusers, PIPELINES[kind]["mask" if case["mask"] else "init" if case["init"] else "text"])
    return reference_tensors.with_components(pipe, pipeline, controlnet=used[0] if union or len(used) == 1 else used)


def call_of(networks, kind):
    def call(pipe, case, pictures, generator):
        runner, controls = runner_of(pipe, networks, case, kind), case["controls"]
        images = [pictures[c["image"].removeprefix("picture.")].resize((case["width"], case["height"]), 1) for c in controls]
        union, one = kind == "union", len(controls) == 1
        each = lambda key: controls[0][key] if one and not union else [c[key] for c in controls]  # noqa: E731
        arguments = dict(prompt=case["prompt"], negative_prompt=case["negative_prompt"], num_inference_steps=case["steps"], guidance_scale=case["cfg_scale"],
                         generator=generator, controlnet_conditioning_scale=each("strength"), control_guidance_start=each("start"),
                         control_guidance_end=each("end"), guess_mode=case["guess_mode"])
        if union:
            arguments |= dict(control_mode=each("mode"))
        picture = images[0] if one and not union else images
        if not case["init"]:
            # in the Union pipeline the image has another name
            return runner, arguments | {"control_image" if union else "image": picture, "height": case["height"], "width": case["width"]}
        if case["mask"]:
            arguments |= dict(mask_image=pictures["mask"])
        size = {} if kind != "sd1" and not case["mask"] else dict(height=case["height"], width=case["width"])
        return runner, arguments | size | dict(image=pictures["init"], control_image=picture, strength=case["strength"])

    return call


def write_adapter(target, unet, seed):
    """Writes an adapter (LoRA) of the UNet's attention in adapter.safetensors, in peft's names."""
    generator, tensors = torch.Generator().manual_seed(seed % 2**31), {}
    for name, module in unet.named_modules():
        if name.endswith(("attn1.to_q", "attn1.to_out.0", "attn2.to_v")):
            rows, columns = module.weight.shape
            tensors[f"unet.{name}.lora_A.weight"] = torch.randn(2, columns, generator=generator) / columns**0.5
            tensors[f"unet.{name}.lora_B.weight"] = 0.5 * torch.randn(rows, 2, generator=generator)
    save_file(tensors, os.path.join(target, "adapter.safetensors"), metadata={"format": "pt"})


def run(pipe, networks, case, pictures, form, target):
    """Runs a case, with its adapters merged into the UNet."""
    path = os.path.join(target, "adapter.safetensors")
    adapter = {name.removeprefix("unet."): t for name, t in load_file(path).items()} if case["adapters"] else {}
    with loras.merged(pipe.unet, adapter, case["adapters"]):
        return reference_tensors.run_case(pipe, case, pictures, call_of(networks, form["pipelines"]))


def influence(target):
    """Writes influence.txt for the first network, which case 0 uses. Returns False if a tensor has no effect."""
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        expect = json.load(f)
    form, case = FORMS[expect["fixture"]], expect["cases"][0]
    pipe = reference_tensors.load(os.path.join(os.path.dirname(target), form["share"], "model"))
    networks = control.load_networks(target, kinds_of(form))
    known = inputs.of_case(load_file(os.path.join(target, "reference.safetensors")), 0)
    pictures = {name.removeprefix("picture."): t.numpy() for name, t in known.items() if name.startswith("picture.")}
    return control.influence(target, [{name: [weight] for name, weight in networks[0].named_parameters()}],
                             lambda: run(pipe, networks, dict(case, adapters=[]), pictures, form, target)["latent"], known["latent"], [[]])


def make_fixture(spec, out):
    target = files.fixture_begin(out, spec.name)
    pipe = reference_tensors.load(os.path.join(out, spec.form["share"], "model"))
    for i, about in enumerate(spec.form["networks"]):
        control.write_network(target, i, network(pipe.unet, about), RULES, f"{spec.seed} {spec.name}", about["dtype"])
    networks = control.load_networks(target, kinds_of(spec.form))
    if any("adapter" in wanted for wanted in spec.cases):
        write_adapter(target, pipe.unet, spec.seed)
    tensors, cases = {}, []
    for k, wanted in enumerate(spec.cases):
        adapters = [dict(file="adapter.safetensors", strength=wanted["adapter"])] if "adapter" in wanted else []
        case = make.image_case(spec, k, wanted) | dict(guess_mode=wanted.get("guess_mode", False), adapters=adapters)
        cases.append(case)
        make.encode_case(pipe, case, tensors, hidden=False)
        pictures = inputs.pictures_of(spec, case) | control.pictures_of(spec, case, wanted["controls"])
        tensors |= inputs.named(case, run(pipe, networks, case, pictures, spec.form, target))
    files.fixture_end(out, spec, tensors, dict(family="unet_control", model_of=spec.form["share"], cases=cases))
