"""Measurement of the influence of Qwen-Image-2.1's tensors, for ../influence.py."""

import torch
from PIL import Image

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent after two steps (text encoder with its tower, transformer), of the decoded picture "
           "(vae.decoder) or of the first reference's latent (vae.encoder) when the tensor is zero.")

STEPS = 2  # number of steps that are repeated; case 0 has more


def unused(_pipe):
    return [
        (r"^vae\..*time_conv\.", "a picture has one frame"),
        (r"lm_head", "no hidden state depends on it"),
        (r"^text_encoder\.model\.language_model\.norm\.", "the hidden state read is not normed"),
    ]


class Probe:
    """Repeats case 0 from the first stage that a change of a tensor affects."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.pictures = [Image.fromarray(self.tensors[name].numpy()) for name in sorted(self.tensors) if name.startswith("picture.reference")]
        self.text = self.tensors["hidden.cond"]
        self.final, self.known = self.latent(self.text), self.tensors[f"latent_{STEPS:03}"]
        self.picture = self.decode()

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, [(text, self.tensors["ids.cond"])], steps=STEPS)

    @torch.no_grad()
    def decode(self):
        mean, deviation = reference_tensors.latents_format(self.pipe)
        return self.pipe.vae.decode(self.known[:, :, None] * deviation + mean, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        mean, deviation = reference_tensors.latents_format(self.pipe)
        pixels = self.pipe.image_processor.preprocess(reference_tensors.resized(self.pipe, self.pictures)[0])[:, :, None]
        return (self.pipe.vae.encode(pixels).latent_dist.mode() - mean) / deviation

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.tensors["encoded.reference_000"])
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        text = self.text
        if name.startswith("text_encoder"):
            text = reference_tensors.encode(self.pipe, self.case["prompt"], self.pictures)["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    model, text, vae = pipe.transformer, pipe.text_encoder.model, pipe.vae
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if type(m).__name__ == "RMSNorm"]
    tower_norms = [m for m in text.visual.modules() if isinstance(m, torch.nn.LayerNorm)]
    text_norms = [m for m in text.language_model.modules() if hasattr(m, "variance_epsilon")]
    wan = {part: [m for m in getattr(vae, part).modules() if hasattr(m, "gamma")] for part in ("decoder", "encoder")}
    rope = text.language_model.rotary_emb
    theta = rope.inv_freq * 5 ** (torch.arange(len(rope.inv_freq)) / len(rope.inv_freq))  # of 1e6 for 5e6
    taps = text.visual.deepstack_visual_indexes
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("text norm: eps 1e-5 for 1e-6", "transformer", [model.txt_in.text_norm], "eps", 1e-5),
        ("text embedding: GELU without tanh", "transformer", [model.txt_in.act], "approximate", "none"),
        ("language model's norms: eps 1e-5 for 1e-6", "text_encoder", text_norms, "variance_epsilon", 1e-5),
        ("language model's rope: theta 1e6 for 5e6", "text_encoder", [rope], "inv_freq", theta),
        ("language model's rope: all pairs of the frame axis", "text_encoder", [rope], "mrope_section", [sum(rope.mrope_section), 0, 0]),
        ("tower's norms: eps 1e-5 for 1e-6", "text_encoder", tower_norms, "eps", 1e-5),
        ("tower's positions: corners not aligned", "text_encoder", [text.visual], "interpolation_align_corners", False),
        ("tower's merger: GELU with tanh", "text_encoder", [text.visual.merger.act_fn], "approximate", "tanh"),
        ("tower's first deepstack rows of another block", "text_encoder", [text.visual], "deepstack_visual_indexes", [taps[1], taps[0], *taps[2:]]),
        ("decoder norms: root of channels + 1", "vae.decoder.", wan["decoder"], "scale", (wan["decoder"][0].gamma.shape[0] + 1) ** 0.5),
        ("encoder norms: root of channels + 1", "vae.encoder.", wan["encoder"], "scale", (wan["encoder"][0].gamma.shape[0] + 1) ** 0.5),
    ]
