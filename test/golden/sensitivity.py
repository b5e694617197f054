#!/usr/bin/env python3
"""Measures the effect of rounding on each reference tensor: the reference in f32 against f64.

    sensitivity.py [DIR]      writes DIR/sensitivity.txt

A block receives its f32 input, so its line shows its own rounding. Text, latent and decoded image are computed from ids and
noise, so their rounding accumulates.
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file

import exact
import reference_tensors

GATE_LATENT, GATE_BLOCK = 2e-5, 1e-5


@torch.no_grad()
def blocks(pipe, tensors, expect, tables):
    """Returns the relative L2 distance of every block reference tensor from the output of the same module in f64 on
    the same input."""
    model, text, vae = exact.models(pipe, tables)
    out = {}

    def compare(name, value):
        out[name] = reference_tensors.relative(tensors[name], value)

    adaln = tensors["block.adaln_input"].double()
    latent, hidden = tensors["case0.latent_001"][0].double(), tensors["case0.hidden.cond"].double()
    ids = reference_tensors.positions(model, latent.unsqueeze(1), hidden)
    image, caption = model.rope_embedder(ids["image"]), model.rope_embedder(ids["caption"])
    joint = torch.cat([image, caption])
    for name, block, freqs in (("block.context_refiner.0", model.context_refiner[0], caption),
                               ("block.noise_refiner.1", model.noise_refiner[1], image),
                               ("block.layers.1", model.layers[1], joint)):
        compare(f"{name}.out", block(tensors[f"{name}.in"].double(), None, freqs[None], adaln))
    compare("block.final.out", model.all_final_layer["2-1"](tensors["block.final.in"].double(), c=adaln))
    compare("block.final_small.out", model.all_final_layer["2-1"](tensors["block.final_small.in"].double(), c=adaln))
    compare("embed.image.out", model.all_x_embedder["2-1"](tensors["embed.image.in"].double()))
    compare("embed.caption.out", model.cap_embedder(tensors["embed.caption.in"].double()))
    compare("t_embedder.out", model.t_embedder(tensors["t_embedder.in"]))
    out["t_embedder.freq"] = reference_tensors.relative(tensors["t_embedder.freq"], model.t_embedder.timestep_embedding(tensors["t_embedder.in"], 256))
    layer = text.layers[expect["blocks"]["block.text"]["layer"]]
    x = tensors["block.text.in"].double()
    positions = torch.arange(x.shape[1])[None]
    compare("block.text.out", layer(x, position_embeddings=text.rotary_emb(x, positions)))
    for call in expect["transformer"]:
        name = call["name"]
        value = model([tensors[f"{name}.in"].double().unsqueeze(1)], tensors[f"{name}.t"], [tensors[call["caption"]].double()], return_dict=False)
        compare(f"{name}.out", value[0][0].squeeze(1))
    for name in ("vae.resnet", "vae.resnet_shortcut", "vae.attention", "vae.upsampler", "vae.mid"):
        module = vae.get_submodule(expect["blocks"][name]["module"])
        x = tensors[f"{name}.in"].double()
        compare(f"{name}.out", module(x, None) if "resnet" in name or "mid" in name else module(x))
    compare("decoder.out", vae.decode(tensors["decoder.in"].double(), return_dict=False)[0])
    return out


def free_running(pipe, tensors, expect, tables):
    model, text, vae = exact.models(pipe, tables)
    out = {}
    for case in expect["cases"]:
        if case["kind"] != "image":
            continue
        prefix = f"case{case['index']}."
        caption, negative = (
            exact.hidden(text, tensors[prefix + f"ids.{lane}"]) if prefix + f"ids.{lane}" in tensors else None
            for lane in ("cond", "uncond"))
        out[prefix + "hidden.cond"] = reference_tensors.relative(tensors[prefix + "hidden.cond"], caption)
        if negative is not None:
            out[prefix + "hidden.uncond"] = reference_tensors.relative(tensors[prefix + "hidden.uncond"], negative)
        for k in range(case["batch"]):
            latent = exact.denoise(model, caption, negative, case, tensors[prefix + "noise"][k:k + 1],
                                   tensors[prefix + "sigmas"], tensors[prefix + "timesteps"])
            out[prefix + f"latent[{k}]"] = reference_tensors.relative(tensors[prefix + "latent"][k], latent)
            if case["batch"] == 1:
                picture = exact.decode(vae, latent)
                out[prefix + "decoded"] = reference_tensors.relative(tensors[prefix + "decoded"], picture)
    return out


def report(folder, names):
    lines = [
        "Rounding of the f32 reference: relative L2 distance from f64, by reference tensor.",
        "Column 1: f64 arithmetic on the reference's own f32 tables (rope, timestep frequencies).",
        "Column 2: tables in f64 as well.  Blocks get the f32 input; text, latents and decoded run freely.",
        f"The C tests gate blocks at {GATE_BLOCK:g} and final latents at {GATE_LATENT:g}.", ""]
    for name in names:
        target = os.path.join(folder, name)
        pipe = reference_tensors.load(os.path.join(target, "model"))
        tensors = load_file(os.path.join(target, "reference.safetensors"))
        with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
            expect = json.load(f)
        columns = [blocks(pipe, tensors, expect, tables) | free_running(pipe, tensors, expect, tables) for tables in (False, True)]
        lines.append(name)
        for expected in columns[0]:
            lines.append(f"  {expected:28} {columns[0][expected]:.2e}  {columns[1][expected]:.2e}")
        lines.append("")
    with open(os.path.join(folder, "sensitivity.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    torch.set_num_threads(2)
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    report(where, sorted(n for n in os.listdir(where) if os.path.exists(os.path.join(where, n, "expect.json"))))
