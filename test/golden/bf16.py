#!/usr/bin/env python3
"""Measures the bf16 rounding error of the reference: PyTorch in bf16 against f64, written to NAME/bf16.json and bf16_linear.json.

    bf16.py [--out DIR] [--only NAME]

Run it after make.py (same requirements).  Sluice's error in bf16 may be at most 1.5 times the reference's.
The truth is the reference in f64 from the stored weights.  Tests compare with the f32 reference tensors, which are close enough
to it: this script asserts that their error is below a hundredth of the bf16 error.  Blocks run on the reference tensors'
inputs, whole models on their own.  Timesteps and latents between steps stay f32, as in the pipeline; the VAE is not measured.

Each entry: "l2" relative L2 distance; "max" largest difference and "bias" mean difference, both relative to the truth's rms;
"n" number of independent errors, if not all are independent.
bf16_linear.json, [{t, n, k, seed, ...}]: matrix products of the values of draw(), weights stored in bf16.
"""

import argparse
import json
import os
import types

import numpy as np
import torch
from safetensors.torch import load_file

import anima.bf16
import anima.specs
import chroma.bf16
import chroma.specs
import flux.bf16
import flux.control
import flux.specs
import longcat.bf16
import longcat.specs
import flux2.bf16
import flux2.specs
import krea.bf16
import krea.specs
import ovis.bf16
import ovis.specs
import ltx.bf16
import ltx.specs
import qwen.bf16
import qwen.specs
import qwen21.bf16
import qwen21.specs
import qwen_control
import reference_tensors as reference
import sd3.bf16
import sd3.specs
import sd3_control
import specs
import unet.bf16
import unet.control
import unet.control_bf16
import unet.specs
import wan.bf16
import wan.specs
import zimage_control
import zimage_pipelines

SHAPES = [(1, 40, 9), (3, 5, 7), (17, 33, 65), (64, 160, 96), (37, 111, 523), (5, 700, 1201), (130, 65, 2050)]


def draw(seed, count):
    """Returns `count` values in [-1, 1) from a seed, identical to those of test_bf16.c."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy(((z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1).astype(np.float32))


def deviation(ours, truth):
    """Returns the error of the tensor `ours` relative to the tensor `truth`."""
    ours, truth = ours.double().flatten(), truth.double().flatten()
    difference, rms = ours - truth, truth.square().mean().sqrt()
    return {
        "l2": float(difference.norm() / truth.norm()),
        "max": float(difference.abs().max() / rms),
        "bias": float(difference.mean().abs() / rms),
    }


@torch.no_grad()
def linear():
    out = []
    for seed, (t, n, k) in enumerate(SHAPES):
        x, w = draw(2 * seed, t * k).reshape(t, k), draw(2 * seed + 1, n * k).reshape(n, k).bfloat16()
        truth = x.double() @ w.double().T
        out.append({"t": t, "n": n, "k": k, "seed": seed, **deviation(x.bfloat16() @ w.T, truth)})
    return out


def force(module, value, condition=None):
    """Hooks a module so that it computes on `value`, in the module's dtype, and ignores its arguments."""
    dtype = next(module.parameters()).dtype

    def hook(_module, args, kwargs):
        args = list(args)
        if args:
            args[0] = value.to(dtype)
        else:
            kwargs["hidden_states"] = value.to(dtype)
        if condition is not None:
            if len(args) > 3:
                args[3] = condition.to(dtype)
            else:
                kwargs["c"] = condition.to(dtype)
        return tuple(args), kwargs

    return module.register_forward_pre_hook(hook, with_kwargs=True)


@torch.no_grad()
def blocks(pipe, known, about):
    """Runs each block on its input among the reference tensors; returns the outputs by reference tensor name."""
    model, text = pipe.transformer, pipe.text_encoder
    dtype = model.dtype
    condition = known["block.adaln_input"]
    modules = {
        "block.context_refiner.0": (model.context_refiner[0], None),
        "block.noise_refiner.1": (model.noise_refiner[1], condition),
        "block.layers.1": (model.layers[1], condition),
        "block.final": (model.all_final_layer["2-1"], condition),
        "embed.image": (model.all_x_embedder["2-1"], None),
        "embed.caption": (model.cap_embedder, None),
    }
    hooks = [force(module, known[f"{name}.in"], c) for name, (module, c) in modules.items()]
    layer = text.layers[about["block.text"]["layer"]]
    modules["block.text"] = (layer, None)
    hooks.append(force(layer, known["block.text.in"]))
    with reference.Watch({name: module for name, (module, _) in modules.items()}) as watch:
        model([known["case0.latent_001"][0].unsqueeze(1).to(dtype)], known["block.t"], [known["case0.hidden.cond"].to(dtype)],
              return_dict=False)
        text(input_ids=known["case0.ids.cond"].long()[None])
    for hook in hooks:
        hook.remove()
    out = {f"{name}.out": watch.tensors[f"{name}.out"] for name in modules}
    small = model.all_final_layer["2-1"](known["block.final_small.in"].to(dtype), c=condition.to(dtype))
    return {**out, "block.final_small.out": small}


@torch.no_grad()
def transformer(pipe, known, calls):
    dtype, out = pipe.transformer.dtype, {}
    for call in calls:
        name = call["name"]
        velocity = pipe.transformer([known[f"{name}.in"].unsqueeze(1).to(dtype)], known[f"{name}.t"],
                                    [known[call["caption"]].to(dtype)], return_dict=False)[0][0]
        out[f"{name}.out"] = velocity.squeeze(1)
    return out


@torch.no_grad()
def latents(pipe, known, cases):
    """Returns hidden states and final latents of every case, computed by the pipeline; image k of a batch has its
    own seed."""
    out = {}
    for case in cases:
        prefix = f"case{case['index']}"
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" in known:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text])[1]
        if case["kind"] != "image":
            continue
        pipe.scheduler.set_shift(case["shift"])
        images = []
        for k in range(case["batch"]):
            images.append(pipe(
                case["prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
                guidance_scale=case["cfg_scale"] - 1, negative_prompt=case["negative_prompt"],
                generator=torch.Generator().manual_seed(case["seed"] + k), output_type="latent").images)
        out[f"{prefix}.latent"] = torch.cat(images)
    return out


def everything(folder, dtype, known, expect):
    pipe = reference.load(folder)
    pipe.transformer.to(dtype)
    pipe.text_encoder.to(dtype)
    return {**blocks(pipe, known, expect["blocks"]), **transformer(pipe, known, expect["transformer"]),
            **latents(pipe, known, expect["cases"])}


def entry(name, renamed):
    """Converts a reference tensor's name to the name that the C tests use; latents have one entry per image."""
    name = name.removesuffix(".out")
    if name.startswith("transformer."):
        return name.replace(".", " ")
    if name.startswith("case"):
        case, expected = name.split(".", 1)
        return f"{expected.split('.')[0]} case {case[4:]} {expected.split('.')[-1]}"
    return renamed.get(name, name)


def short(numbers):
    return {name: float(f"{x:.4g}") if isinstance(x, float) else x for name, x in numbers.items()}


def write(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def add_names(errors):
    # context_refiner.in has the rows of embed.caption.out and uncomputed padding, so its error is the same
    errors["context_refiner.in"] = errors["embed.caption.out"]


zimage = types.SimpleNamespace(
    everything=everything, add_names=add_names, independent=lambda _name, _known: {},
    renamed={"block.context_refiner.0": "block.context_refiner", "block.noise_refiner.1": "block.noise_refiner",
             "block.layers.1": "block.layers", "embed.image": "embed.image.out", "embed.caption": "embed.caption.out"})


def make(folder, family):
    known = load_file(os.path.join(folder, "reference.safetensors"))
    with open(os.path.join(folder, "expect.json"), encoding="utf-8") as f:
        expect = json.load(f)
    model = os.path.join(folder, "model")
    truth = family.everything(model, torch.float64, known, expect)
    ours = family.everything(model, torch.bfloat16, known, expect)
    out = {}
    for name, value in ours.items():
        assert torch.isfinite(value).all(), name
        expected = known[name].reshape(truth[name].shape)
        bf16, f32 = deviation(value, truth[name]), deviation(expected, truth[name])
        print(f"{name:32} bf16 {bf16['l2']:.2e} max {bf16['max']:.2e} bias {bf16['bias']:.2e}; f32 reference tensor {f32['l2']:.1e}")
        assert f32["l2"] < bf16["l2"] / 100, name
        kind = name.split(".")[-1]
        if kind in ("latent", "sound") and name.startswith("case"):
            each = "image" if kind == "latent" else kind
            for k in range(len(value)):
                out[f"{kind} {entry(name, family.renamed).split(' ', 1)[1].removesuffix(f' {kind}')} {each} {k}"] = deviation(value[k], truth[name][k])
        else:
            out[entry(name, family.renamed)] = bf16 | family.independent(name, known)
    family.add_names(out)
    write(os.path.join(folder, "bf16.json"), {name: short(v) for name, v in out.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    families = {name: zimage for name in sorted(specs.FORMS)} | {name: flux.bf16.family for name in flux.specs.FORMS}
    families |= {name: types.SimpleNamespace(everything=zimage_pipelines.everything, add_names=lambda _errors: None, independent=None, renamed={})
                 for name in zimage_pipelines.FORMS}
    families |= {name: flux.control.family for name in flux.control.FORMS}
    families |= {name: types.SimpleNamespace(everything=zimage_control.everything, add_names=lambda _errors: None, independent=None, renamed={})
                 for name in zimage_control.FORMS}
    families |= {name: longcat.bf16.family for name in longcat.specs.FORMS}
    families |= {name: chroma.bf16.family for name in chroma.specs.FORMS}
    families |= {name: flux2.bf16.family for name in flux2.specs.FORMS}
    families |= {name: ovis.bf16.family for name in ovis.specs.FORMS}
    families |= {name: krea.bf16.family for name in krea.specs.FORMS}
    families |= {name: unet.bf16.family for name in unet.specs.FORMS} | {name: qwen.bf16.family for name in qwen.specs.FORMS}
    families |= {name: unet.control_bf16.family for name in unet.control.FORMS}
    families |= {name: qwen21.bf16.family for name in qwen21.specs.FORMS}
    families |= {name: ltx.bf16.family for name in ltx.specs.FORMS}
    families |= {name: wan.bf16.family for name in wan.specs.FORMS} | {name: sd3.bf16.family for name in sd3.specs.FORMS}
    families |= {name: anima.bf16.family for name in anima.specs.FORMS}
    families |= {name: types.SimpleNamespace(everything=module.everything, add_names=lambda _errors: None, independent=None, renamed={})
                 for module in (qwen_control, sd3_control) for name in module.FORMS}
    parser.add_argument("--only", choices=families)
    args = parser.parse_args()
    torch.set_num_threads(2)
    for name in [args.only] if args.only else families:
        make(os.path.join(args.out, name), families[name])
    write(os.path.join(args.out, "bf16_linear.json"), [short(row) for row in linear()])


if __name__ == "__main__":
    main()
