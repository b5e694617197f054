"""Measurement of the influence of LongCat-Image's tensors, for ../influence.py."""

import torch

from flux.influence import KEY_BIAS
from qwen.folder import released  # noqa: F401 (provides the tensor names that influence.txt has)
from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent after two steps (text encoder with its tower, transformer), of the decoded picture "
           "(vae.decoder) or of the reference's latent (vae.encoder) when the tensor is zero.")

STEPS = 2  # number of steps that are repeated; case 0 has more
UNUSED = [(r"^vae\.(decoder|encoder)\.mid_block\.attentions\.0\.to_k\.bias$", KEY_BIAS)]


def unused(_pipe):
    return UNUSED


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.pictures = reference_tensors.pictures_of(self.tensors)
        self.text = self.tensors["hidden.cond"]
        self.final, self.known = self.latent(self.text), self.tensors[f"latent_{STEPS:03}"]
        self.picture = self.decode()

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, [text], steps=STEPS)

    @torch.no_grad()
    def decode(self):
        vae = self.pipe.vae
        return vae.decode(self.known / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        """Returns the moments, whose log variance the pipelines do not use."""
        _, drawn = reference_tensors.resized(self.pipe, self.pictures[0])
        return self.pipe.vae.encode(self.pipe.image_processor.preprocess(drawn)).latent_dist.parameters[0]

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.tensors["moments.reference_000"])
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        text = self.text
        if name.startswith("text_encoder"):
            text = reference_tensors.encode(self.pipe, self.case["prompt"], self.pictures)[0]["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    model, text = pipe.transformer, pipe.text_encoder.model
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if isinstance(m, torch.nn.RMSNorm)]
    mlps = [b.act_mlp for b in model.single_transformer_blocks]
    norms = [m for m in text.language_model.modules() if hasattr(m, "variance_epsilon")]
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("rope theta 1 % off", "transformer", [model.pos_embed], "theta", model.pos_embed.theta * 1.01),
        ("single blocks: GELU without tanh", "transformer", mlps, "approximate", "none"),
        ("language model's norms: eps 1e-5 for 1e-6", "text_encoder", norms, "variance_epsilon", 1e-5),
        ("parts in quotes: tokenised as usual", "text_encoder", [reference_tensors.quotation], "split", lambda prompt: [(prompt, False)]),
        ("positions: text all at 0", "transformer", [reference_tensors], "positions", _text_at_zero),
        ("positions: images start at 0", "transformer", [reference_tensors], "positions", _images_at_zero),
        ("positions: first axis 0", "transformer", [reference_tensors], "positions", _first_axis_zero),
    ]


POSITIONS = reference_tensors.positions


def _text_at_zero(latents, text_tokens):
    text, *images = POSITIONS(latents, text_tokens)
    return [text * 0, *images]


def _images_at_zero(latents, text_tokens):
    text, *images = POSITIONS(latents, text_tokens)
    return [text, *(ids - torch.tensor([0, text_tokens, text_tokens]) for ids in images)]


def _first_axis_zero(latents, text_tokens):
    return [ids * torch.tensor([0, 1, 1]) for ids in POSITIONS(latents, text_tokens)]
