"""Measurement of the influence of Krea 2's tensors, for ../influence.py."""

import torch

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "transformer"]
NOT_READ = ("visual.",)  # prompts have no images
MEASURE = "Relative L2 change of case 0's latent after two steps when the tensor is zero."

STEPS = 2  # number of steps that are repeated; case 0 has more
ROWS = 96  # prompts are padded to this many rows instead of 512: padding changes nothing, but takes most of the time


def unused(pipe):
    last = len(pipe.text_encoder.language_model.layers) - 1
    return [(rf"^text_encoder\.language_model\.(layers\.{last}\.|norm\.)", "the pipeline reads hidden states of earlier layers only")]


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
            text = reference_tensors.encode(self.pipe, self.case["prompt"], ROWS)[0]["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    model, text = pipe.transformer, pipe.text_encoder.language_model

    def norms(part):
        return [m for name, m in model.named_modules() if type(m).__name__ == "Krea2RMSNorm" and part in f"{name}."]

    text_norms = [m for m in text.modules() if hasattr(m, "variance_epsilon")]
    return [
        ("norms of layers: eps 1e-6 for 1e-5", "transformer", [m for n in ("norm1.", "norm2.") for m in norms(n)], "eps", 1e-6),
        ("query and key norms: eps 1e-6 for 1e-5", "transformer", norms("attn.norm_"), "eps", 1e-6),
        ("final norm: eps 1e-6 for 1e-5", "transformer", norms("final_layer."), "eps", 1e-6),
        ("text norm: eps 1e-6 for 1e-5", "transformer", norms("txt_in."), "eps", 1e-6),
        ("rope theta 1 % off", "transformer", [model.rotary_emb], "theta", model.rotary_emb.theta * 1.01),
        ("text encoder norms: eps 1e-5 for 1e-6", "text_encoder", text_norms, "variance_epsilon", 1e-5),
        ("text encoder rope: theta 1e6 for 5e6", "text_encoder", [text.rotary_emb], "inv_freq",
         1 / 1e6 ** (torch.arange(0, text.config.head_dim, 2).float() / text.config.head_dim)),
    ]
