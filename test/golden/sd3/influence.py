"""Measurement of the influence of Stable Diffusion 3's tensors, for ../influence.py."""

import torch
from PIL import Image

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent when it is drawn in two steps (text encoders, transformer), of its decoded picture (vae.decoder) or of "
           "a picture's moments (vae.encoder) when the tensor is zero.")

STEPS = 2
KEY_BIAS = "a key bias adds the same to all scores of a query: softmax cancels it"


def unused(pipe):
    last = len(pipe.transformer.transformer_blocks) - 1
    return [
        (r"^vae\.(decoder|encoder)\.mid_block\.attentions\.0\.to_k\.bias$", KEY_BIAS),
        (r"^text_encoder(_2)?\..*\.k_proj\.bias$", KEY_BIAS),
        (rf"^transformer\.transformer_blocks\.{last}\.attn\.(add_q_proj|norm_added_q)\.", "what the last block's text attends to nobody reads"),
    ]


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case = pipe, expect["cases"][0]
        self.final, self.known = self.latent(self.case["steps"]), tensors["case0.latent"]
        self.short, self.pictures = self.latent(STEPS), [t for name, t in tensors.items() if name.endswith(".picture.init")]
        self.picture, self.moments = self.decode(), self.encode()

    @torch.no_grad()
    def latent(self, steps):
        runner, arguments = reference_tensors.call(self.pipe, self.case | dict(steps=steps), {}, torch.Generator().manual_seed(self.case["seed"]))
        return runner(**arguments, output_type="latent").images

    @torch.no_grad()
    def decode(self):
        vae = self.pipe.vae
        return vae.decode(self.known / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        if not self.pictures:  # another fixture owns the VAE
            return None
        picture = self.pipe.image_processor.preprocess(Image.fromarray(self.pictures[0].numpy()))
        return self.pipe.vae.encode(picture).latent_dist.parameters

    def change(self, name):
        if name.startswith("vae.encoder."):
            return relative(self.encode(), self.moments)
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        return relative(self.latent(STEPS), self.short)


def constants(pipe):
    model, vae = pipe.transformer, pipe.vae
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if type(m).__name__ == "RMSNorm"]
    gelus = [m for m in model.modules() if hasattr(m, "approximate")]
    rows = [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("feed-forward: GELU without tanh", "transformer", gelus, "approximate", "none"),
    ]
    if heads:
        rows.append(("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5))
    for name in reference_tensors.encoders(pipe):
        norms = [m for m in getattr(pipe, name).modules() if isinstance(m, torch.nn.LayerNorm)]
        mlps = [m for m in getattr(pipe, name).modules() if hasattr(m, "activation_fn")]
        rows += [(f"{name} norms: eps 1e-6 for 1e-5", name, norms, "eps", 1e-6),
                 (f"{name}: GELU with tanh", name, mlps, "activation_fn", torch.nn.GELU(approximate="tanh"))] if norms else []
    for part in ("decoder", "encoder"):
        norms = [m for m in getattr(vae, part).modules() if isinstance(m, torch.nn.GroupNorm)]
        rows.append((f"{part} norms: eps 1e-5 for 1e-6", f"vae.{part}.", norms, "eps", 1e-5))
    return rows
