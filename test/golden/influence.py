#!/usr/bin/env python3
"""Shows that every tensor has an effect: sets each to zero in turn and runs the pipeline again.

    influence.py [DIR [NAME ...]]       writes DIR/NAME/influence.txt; exit 1 if a tensor has no effect

The effect of transformer and text encoder tensors is measured on the final latent of case 0, of decoder tensors on the decoded
image, of encoder tensors on an image's moments.  Tensors without possible effect are listed by name and must change
nothing; all others must change the result by more than 1e-3.  The file also lists constants that are not in tensors, each
slightly wrong: a test that tolerates a listed change would miss that error.
"""

import json
import os
import re
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import anima.influence
import chroma.influence
import flux.control_influence
import flux.influence
import flux2.influence
import longcat.influence
import krea.influence
import ltx.influence
import ovis.influence
import qwen.influence
import qwen21.influence
import qwen_control
import sd3.influence
import sd3_control
import unet.control
import unet.influence
import wan.influence
import watch
import zimage_control
import zimage_influence

# zimage_base has zimage_a's weights
FAMILIES = {"zimage": zimage_influence, "zimage_base": zimage_influence, "flux": flux.influence,
            "flux_control": flux.control_influence,
            "flux2": flux2.influence, "longcat_image": longcat.influence,
            "chroma": chroma.influence,
            "ovis": ovis.influence,
            "krea2": krea.influence, "ltx2": ltx.influence,
            "unet": unet.influence, "qwen": qwen.influence, "qwen21": qwen21.influence,
            "wan": wan.influence, "sd3": sd3.influence, "anima": anima.influence}

# Fixtures of control networks: the networks' tensors.
NETWORKS = {"control_zimage": zimage_control.influence, "control_qwen": qwen_control.influence,
            "control_sd3": sd3_control.influence, "control_sd35": sd3_control.influence} | {
                name: unet.control.influence for name in unet.control.FORMS}

LEAST = 1e-3   # minimum effect of a tensor on the result
NOTHING = 2e-6  # maximum effect of a tensor that must have none: rounding


def constants(probe, changes):
    lines = []
    for name, part, objects, attribute, wrong in changes:
        kept = [getattr(o, attribute) for o in objects]
        table = hasattr(objects[0], "freqs_cis")  # the module caches the rope table and must recompute it
        for o in objects:
            setattr(o, attribute, wrong)
            if table:
                o.freqs_cis = None
        lines.append(f"  {probe.change(part):.2e}  {name}")
        for o, value in zip(objects, kept):
            setattr(o, attribute, value)
            if table:
                o.freqs_cis = None
    return lines


def heads_in_files(target, part):
    """Returns the tensors in a text encoder's files that no module uses."""
    for folder, _, files in os.walk(os.path.join(target, "model", part)):
        for file in files:
            if file.endswith(".safetensors"):
                with safe_open(os.path.join(folder, file), "pt") as f:
                    yield from (f"{part}.{key}" for key in f.keys() if key.startswith("lm_head"))


@torch.no_grad()
def report(target):
    if os.path.basename(target) in NETWORKS:
        return NETWORKS[os.path.basename(target)](target)
    tensors = load_file(os.path.join(target, "reference.safetensors"))
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        expect = json.load(f)
    family = FAMILIES[expect["family"]]
    model = os.path.join(target, "model")
    pipe = family.reference_tensors.load(model)
    # skip components shared with another fixture, which tests them; control networks lie next to the model
    folders = {part: os.path.join(target if part.startswith("controlnet") else model, part) for part in family.PARTS}
    parts = [part for part in family.PARTS if os.path.isdir(folders[part]) and not os.path.islink(folders[part])]
    of_redux = ["image_encoder", "image_embedder"] if getattr(pipe, "redux", None) else []  # Flux Redux
    parts += of_redux
    if not parts:
        return True
    unused = family.unused(pipe)
    named = getattr(family, "released", lambda name: name)  # the tensor's name in the files
    probe = family.Probe(pipe, expect, tensors)
    again = watch.relative(probe.final, probe.known)
    assert again < 5e-6, again  # difference by rounding
    counted, silent, failed = [], [], []

    def reason(name):
        return next((why for pattern, why in unused if re.search(pattern, name)), None)

    for part in parts:
        for name, parameter in getattr(pipe.redux if part in of_redux else pipe, part).named_parameters():
            # prompts depend neither on the head nor on Mistral's tower, so files may omit them
            if name.startswith(("lm_head.", "model.vision_tower.", "model.multi_modal_projector.", *getattr(family, "NOT_READ", ()))):
                continue
            full = f"{part}.{named(name)}"
            kept = parameter.clone()
            parameter.zero_()
            moved = probe.change(full)
            parameter.copy_(kept)
            why = reason(full)
            (silent if why else counted).append((moved, full, why))
            if not (moved <= NOTHING if why else moved > LEAST):
                failed.append(full)
    silent += [(0.0, name, reason(name)) for part in parts for name in heads_in_files(target, part)]
    counted.sort()
    lines = [
        f"{os.path.basename(target)}: {len(counted)} tensors counted, least influence {counted[0][0]:.2e} (gate {LEAST:g}), {len(failed)} failed.",
        family.MEASURE,
        "", "Zeroed tensors, least influence first:"]
    lines += [f"  {moved:.2e}  {name}" for moved, name, _ in counted]
    lines += ["", "Tensors that the mathematics cancels or that are never used:"]
    for why in dict.fromkeys(why for _, _, why in silent):
        lines.append(f"  {why}:")
        lines += [f"    {moved:.2e}  {name}" for moved, name, w in silent if w == why]
    changes = [change for change in family.constants(pipe) if change[1].split(".")[0] in parts]
    lines += ["", "Constants a little wrong:"] + constants(probe, changes)
    if failed:
        lines += ["", "FAILED:"] + [f"  {name}" for name in failed]
    with open(os.path.join(target, "influence.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(lines[0])
    return not failed


if __name__ == "__main__":
    torch.set_num_threads(2)
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    names = sys.argv[2:] or sorted(os.listdir(where))
    found = [n for n in names if os.path.exists(os.path.join(where, n, "expect.json"))]
    sys.exit(0 if all([report(os.path.join(where, n)) for n in found]) else 1)
