"""Measurement of the influence of Anima's tensors, for ../influence.py."""

import torch

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "text_conditioner", "transformer", "vae"]
MEASURE = "Relative L2 change of case 0's latent after two steps when the tensor is zero."

STEPS = 2  # number of steps that are repeated; case 0 has more


def unused(_pipe):
    return []


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.text = self.tensors["hidden.cond"]
        self.final, self.known = self.latent(self.text), self.tensors[f"latent_{STEPS:03}"]

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.tensors, text, steps=STEPS)

    def change(self, name):
        text = self.text
        if name.startswith("text_"):
            text = reference_tensors.encode(self.pipe, self.case["prompt"])[0]["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    model, adapter, text = pipe.transformer, pipe.text_conditioner, pipe.text_encoder
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for name, m in model.named_modules() if type(m).__name__ == "RMSNorm" and ".attn" in name]
    mlps = [m for m in model.modules() if type(m).__name__ == "GELU"]
    rows = [m for name, m in adapter.named_modules() if isinstance(m, torch.nn.RMSNorm) and not name.endswith(("q_norm", "k_norm"))]
    adapter_heads = [m for name, m in adapter.named_modules() if name.endswith(("q_norm", "k_norm"))]
    norms = [m for m in text.modules() if hasattr(m, "variance_epsilon")]
    gelus = [m for m in adapter.modules() if isinstance(m, torch.nn.GELU)]
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-6 for 1e-5", "transformer", heads, "eps", 1e-6),
        ("time norm: eps 1e-5 for 1e-6", "transformer", [model.time_embed.norm], "eps", 1e-5),
        ("rope: factor of rows 1 % off", "transformer", [model.rope], "h_ntk_factor", model.rope.h_ntk_factor * 1.01),
        ("rope: factor of columns 1 % off", "transformer", [model.rope], "w_ntk_factor", model.rope.w_ntk_factor * 1.01),
        ("feed-forward: GELU with tanh", "transformer", mlps, "approximate", "tanh"),
        ("adapter norms: eps 1e-5 for 1e-6", "text_conditioner", rows, "eps", 1e-5),
        ("adapter's query and key norms: eps 1e-5 for 1e-6", "text_conditioner", adapter_heads, "eps", 1e-5),
        ("adapter: GELU with tanh", "text_conditioner", gelus, "approximate", "tanh"),
        ("text encoder norms: eps 1e-5 for 1e-6", "text_encoder", norms, "variance_epsilon", 1e-5),
    ]
