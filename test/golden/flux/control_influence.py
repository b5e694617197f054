"""Measurement of the influence of the tensors of Flux.1's control networks and of flux_canny's transformer, for ../influence.py."""

import json
import os
import types

import torch

import control
from runs import unpack
from watch import relative

from . import control as flux_control

PARTS = ["transformer", "controlnet"]
MEASURE = "Relative L2 change of case 0's latent when the tensor is zero."

PROMPT_UNUSED = "without single blocks, the prompt's tokens are not used after the last double block"
UNUSED = [(rf"^controlnet\.transformer_blocks\.{{last}}\.{part}\.", PROMPT_UNUSED)
          for part in (r"attn\.to_add_out", r"ff_context", r"attn\.add_q_proj", r"attn\.norm_added_q")]


def load(model):
    target = os.path.dirname(model)
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        name = json.load(f)["fixture"]
    pipe, networks = flux_control.load(target, flux_control.FORMS[name])
    pipe.networks = networks
    if networks:
        pipe.controlnet = networks[0]
    return pipe


reference_tensors = types.SimpleNamespace(load=load)


def unused(pipe):
    network = getattr(pipe, "controlnet", None)
    if network is None or network.config.num_single_layers:
        return []
    return [(pattern.replace("{last}", str(network.config.num_layers - 1)), why) for pattern, why in UNUSED]


class Probe:
    """Repeats case 0 with the prompt's embeddings."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case = pipe, expect["cases"][0]
        self.pictures = flux_control.pictures_in(tensors, 0)
        self.text = pipe.encode_prompt(self.case["prompt"], max_sequence_length=self.case["max_sequence_length"])[:2]
        self.known = tensors["case0.latent"]
        self.final = self.latent()

    @torch.no_grad()
    def latent(self):
        call = flux_control._call(self.pipe.networks, self.pictures)
        runner, arguments = call(self.pipe, self.case, {}, torch.Generator().manual_seed(self.case["seed"]))
        arguments |= dict(prompt=None, prompt_embeds=self.text[0], pooled_prompt_embeds=self.text[1], output_type="latent")
        with control.posterior_mean(self.pipe.vae):
            return unpack(self.pipe, runner(**arguments).images, self.case)

    def change(self, name):
        return relative(self.latent(), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    network = getattr(pipe, "controlnet", None)
    if network is None:
        return []
    layer = [m for m in network.modules() if isinstance(m, torch.nn.LayerNorm)]
    changes = [("network norms: eps 1e-5 for 1e-6", "controlnet", layer, "eps", 1e-5)]
    if network.union:
        changes.append(("no token for the mode", "controlnet", [network], "union", False))
    return changes
