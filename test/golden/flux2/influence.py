"""Measurement of the influence of Flux.2's tensors, for ../influence.py."""

import torch
from PIL import Image

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent after two steps (text encoder, transformer), of the decoded picture (vae.decoder) or of the first "
           "reference's latent (vae.encoder) when the tensor is zero.")

STEPS = 2  # number of steps that are repeated; case 0 has more
KEY_BIAS = "a key bias adds the same to all scores of a query: softmax cancels it"


def released(name):
    """Returns the name that the engine gives a tensor, without a language model's prefix."""
    return name.replace("model.language_model.", "model.")


def unused(pipe):
    text = reference_tensors.language_model(pipe)
    return [
        (r"^vae\.(decoder|encoder)\.mid_block\.attentions\.0\.to_k\.bias$", KEY_BIAS),
        (rf"^text_encoder\.model\.layers\.{len(text.layers) - 1}\.", "the last hidden state read is the one before the last layer"),
        (r"^text_encoder\.model\.norm\.", "the hidden states read are not normed"),
        (r"^text_encoder\.lm_head\.", "no hidden state depends on it"),
    ]


class Probe:
    """Repeats case 0 from the first stage that a change of a tensor affects."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], reference_tensors.of_case(tensors, 0)
        self.text = self.tensors["hidden.cond"]
        self.final, self.known = self.latent(self.text), self.tensors[f"latent_{STEPS:03}"]
        self.picture = self.decode()

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.case, self.tensors, [text], steps=STEPS)

    @torch.no_grad()
    def decode(self):
        mean, deviation = reference_tensors.statistics(self.pipe)
        return self.pipe.vae.decode(self.pipe._unpatchify_latents(self.known * deviation + mean), return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        mean, deviation = reference_tensors.statistics(self.pipe)
        h, w = (side * 2 * self.pipe.vae_scale_factor for side in self.tensors["encoded.reference_000"].shape[2:])
        picture = Image.fromarray(self.tensors["picture.reference_000"].numpy())
        pixels = self.pipe.image_processor.preprocess(picture, height=h, width=w, resize_mode="crop")
        return (self.pipe._patchify_latents(self.pipe.vae.encode(pixels).latent_dist.mode()) - mean) / deviation

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.tensors["encoded.reference_000"])
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        text = self.text
        if name.startswith("text_encoder"):
            text = reference_tensors.encode(self.pipe, self.case["prompt"])[0]["hidden"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    model, vae = pipe.transformer, pipe.vae
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if isinstance(m, torch.nn.RMSNorm)]
    text_norms = [m for m in pipe.text_encoder.modules() if hasattr(m, "variance_epsilon")]
    eps = text_norms[0].variance_epsilon
    groups = {part: [m for m in getattr(vae, part).modules() if isinstance(m, torch.nn.GroupNorm)] for part in ("decoder", "encoder")}
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("rope theta 1 % off", "transformer", [model.pos_embed], "theta", model.pos_embed.theta * 1.01),
        (f"text norms: eps {11e-6 - eps:g} for {eps:g}", "text_encoder", text_norms, "variance_epsilon", 11e-6 - eps),
        ("decoder norms: eps 1e-5 for 1e-6", "vae.decoder.", groups["decoder"], "eps", 1e-5),
        ("encoder norms: eps 1e-5 for 1e-6", "vae.encoder.", groups["encoder"], "eps", 1e-5),
    ]
