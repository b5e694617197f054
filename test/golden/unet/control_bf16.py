"""bf16 errors of the reference with control networks of UNets, for ../bf16.py: final latents, measured as in bf16.py of
this package."""

import os
import types

import torch

import control
from flux.bf16 import disguise

from . import bf16
from .control import FORMS, kinds_of, run


@torch.no_grad()
def everything(folder, dtype, known, expect):
    target = os.path.dirname(folder)
    form = FORMS[expect["fixture"]]
    pipe = bf16.load(os.path.join(os.path.dirname(target), form["share"], "model"), dtype)
    networks = control.load_networks(target, kinds_of(form))
    for network in networks:
        disguise(network, dtype)
        bf16.keep_conditioning(network, dtype)
        if hasattr(network, "control_add_embedding"):
            network.control_add_embedding.float()
    out = {}
    for case in expect["cases"]:
        prefix = f"case{case['index']}"
        pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
        out[f"{prefix}.latent"] = run(pipe, networks, dict(case, adapters=case.get("adapters", [])), pictures, form, target)["latent"]
    return out


family = types.SimpleNamespace(everything=everything, add_names=lambda _errors: None, independent=bf16.alike, renamed={})
