"""Measurement of the influence of Chroma's tensors, for ../influence.py."""

import torch

from watch import relative

from . import reference_tensors

PARTS = ["transformer"]  # text encoder and VAE are flux_a's
MEASURE = "Relative L2 change of case 0's latent after two steps when the tensor is zero."

STEPS = 2  # number of steps that are repeated; case 0 has more


def unused(_pipe):
    return []


class Probe:
    """Repeats the start of case 0, without the masked text rows and the negative prompt's lane."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.final = self.latent()
        self.known = self.tensors[f"latent_{STEPS:03}"]

    def latent(self):
        texts = [self.tensors["hidden.cond"], self.tensors["hidden.uncond"]]
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, texts, steps=STEPS)

    def change(self, _name):
        return relative(self.latent(), self.final)


class _Index(torch.nn.Module):
    """Sinusoids of the rows' indices with angles in double instead of f32."""

    @staticmethod
    def of(model):
        rows, width = model.time_text_embed.mod_proj.shape
        frequency = torch.exp(-torch.log(torch.tensor(1e4, dtype=torch.float64)) * torch.arange(width // 2, dtype=torch.float64) / (width // 2))
        angle = 1000 * torch.arange(rows, dtype=torch.float64)[:, None] * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=1).float()


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    model = pipe.transformer
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    norms = list(model.distilled_guidance_layer.norms)
    heads = [m for m in model.modules() if isinstance(m, torch.nn.RMSNorm) and m not in norms]
    mlps = [b.act_mlp for b in model.single_transformer_blocks]
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("approximator norms: eps 1e-6 for 1.19e-7", "transformer", norms, "eps", 1e-6),
        ("approximator: angles of the rows' indices in double", "transformer", [model.time_text_embed], "mod_proj", _Index.of(model)),
        ("rope theta 1 % off", "transformer", [model.pos_embed], "theta", model.pos_embed.theta * 1.01),
        ("single blocks: GELU without tanh", "transformer", mlps, "approximate", "none"),
    ]
