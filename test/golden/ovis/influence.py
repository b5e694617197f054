"""Measurement of the influence of Ovis-Image's tensors, for ../influence.py."""

import torch

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "transformer", "vae"]
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
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, text, steps=STEPS)

    def change(self, name):
        text = self.text
        if name.startswith("text_encoder"):
            text = self.pipe.encode_prompt(self.case["prompt"], do_classifier_free_guidance=False)[0][0]
        return relative(self.latent(text), self.final)


def constants(pipe):
    model, text = pipe.transformer, pipe.text_encoder
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for name, m in model.named_modules() if isinstance(m, torch.nn.RMSNorm) and ".attn." in name]
    norms = [m for m in text.modules() if hasattr(m, "variance_epsilon")]
    gates = [b.act_mlp for b in model.single_transformer_blocks]
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("text norm: eps 1e-5 for 1e-6", "transformer", [model.context_embedder_norm], "eps", 1e-5),
        ("rope theta 1 % off", "transformer", [model.pos_embed], "theta", model.pos_embed.theta * 1.01),
        ("single blocks: GELU for SiLU", "transformer", gates, "forward", torch.nn.functional.gelu),
        ("text encoder norms: eps 1e-5 for 1e-6", "text_encoder", norms, "variance_epsilon", 1e-5),
    ]
