"""Measurement of the influence of Qwen-Image's tensors, for ../influence.py."""

import torch
from PIL import Image

from watch import relative

from . import reference_tensors
from .folder import released  # noqa: F401 (provides the tensor names that influence.txt has)

PARTS = ["text_encoder", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent after two steps (text encoder with its tower, transformer), of the decoded picture "
           "(vae.decoder) or of the first reference's latent (vae.encoder) when the tensor is zero.")

STEPS = 2  # number of steps that are repeated; case 0 has more
UNUSED = [(r"^vae\..*time_conv\.", "a picture has one frame"), (r"lm_head", "no hidden state depends on it")]
LAST = "the last block's text goes nowhere"


def unused(pipe):
    last = len(pipe.transformer.transformer_blocks) - 1
    text = rf"^transformer\.transformer_blocks\.{last}\.(attn\.(to_add_out|add_q_proj|norm_added_q)|txt_mlp)\."
    seen = [] if hasattr(pipe, "processor") else [(r"^text_encoder\.visual\.", "no picture is seen")]
    return UNUSED + [(text, LAST)] + seen


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.pictures = [Image.fromarray(self.tensors[name].numpy()) for name in sorted(self.tensors) if name.startswith("picture.reference")]
        self.text = self.tensors["hidden.cond"]
        self.final, self.known = self.latent(self.text), self.tensors[f"latent_{STEPS:03}"]
        self.picture = self.decode()

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, [text], steps=STEPS)

    @torch.no_grad()
    def decode(self):
        mean, deviation = reference_tensors.latents_format(self.pipe)
        return self.pipe.vae.decode(self.known[:, :, None] * deviation + mean, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        mean, deviation = reference_tensors.latents_format(self.pipe)
        _, picture = next(reference_tensors.resized(self.pipe, self.pictures))
        pixels = self.pipe.image_processor.preprocess(picture)[:, :, None]
        return (self.pipe.vae.encode(pixels).latent_dist.mode() - mean) / deviation

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.tensors["encoded.reference_000"])
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        text = self.text
        if name.startswith("text_encoder"):
            text = reference_tensors.encode(self.pipe, self.case["prompt"], self.pictures, self.case["max_sequence_length"])[0]["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    model, text, vae = pipe.transformer, pipe.text_encoder.model, pipe.vae
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if type(m).__name__ == "RMSNorm"]
    mlps = [m for m in model.modules() if type(m).__name__ == "GELU"]
    norms = {part: [m for m in getattr(text, part).modules() if hasattr(m, "variance_epsilon")] for part in ("language_model", "visual")}
    wan = {part: [m for m in getattr(vae, part).modules() if hasattr(m, "gamma")] for part in ("decoder", "encoder")}
    rows = [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("text, query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("feed-forward: GELU without tanh", "transformer", mlps, "approximate", "none"),
        ("language model's norms: eps 1e-5 for 1e-6", "text_encoder", norms["language_model"], "variance_epsilon", 1e-5),
        ("decoder norms: root of channels + 1", "vae.decoder.", wan["decoder"], "scale", (wan["decoder"][0].gamma.shape[0] + 1) ** 0.5),
    ]
    if hasattr(pipe, "processor"):
        rows += [
            ("tower's norms: eps 1e-5 for 1e-6", "text_encoder", norms["visual"], "variance_epsilon", 1e-5),
            ("tower looks into windows everywhere", "text_encoder", [text.visual], "fullatt_block_indexes", []),
            ("tower looks everywhere", "text_encoder", [text.visual], "fullatt_block_indexes", list(range(len(text.visual.blocks)))),
            ("tower's merger: GELU with tanh", "text_encoder", [text.visual.merger.mlp[1]], "approximate", "tanh"),
            ("encoder norms: root of channels + 1", "vae.encoder.", wan["encoder"], "scale", (wan["encoder"][0].gamma.shape[0] + 1) ** 0.5),
        ]
    return rows
