"""Measurement of the influence of Flux.1's tensors, for ../influence.py."""

import torch

from watch import relative

from . import redux, reference_tensors

PARTS = ["text_encoder", "text_encoder_2", "transformer", "vae"]
MEASURE = ("Relative L2 change of case 0's latent after two steps (text encoders, transformer), of the decoded picture (vae.decoder) or of a picture's "
           "moments (vae.encoder) when the tensor is zero.")

STEPS = 2  # number of steps that are repeated; case 0 has more
KEY_BIAS = "a key bias adds the same to all scores of a query: softmax cancels it"
UNUSED = [
    (r"^vae\.(decoder|encoder)\.mid_block\.attentions\.0\.to_k\.bias$", KEY_BIAS),
    (r"^(text_encoder|image_encoder)\..*\.k_proj\.bias$", KEY_BIAS),
    (r"^image_encoder\.head\.", "the pooling head is not read"),
]


def unused(_pipe):
    return UNUSED


class Probe:
    """Repeats case 0 from the first stage that a change of a tensor affects."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], tensors
        self.text = [tensors[f"case0.{name}.cond"] for name in ("hidden", "pooled")]
        self.final, self.known = self.latent(self.text), tensors[f"case0.latent_{STEPS:03}"]
        self.picture, self.moments = self.decode(), self.encode()

    def latent(self, text):
        return reference_tensors.denoise(self.pipe, self.case, reference_tensors.of_case(self.tensors, 0), [text], steps=STEPS)

    @torch.no_grad()
    def decode(self):
        vae = self.pipe.vae
        return vae.decode(self.known / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        picture = self.tensors.get("encoder.in")  # None if another fixture owns the VAE
        return None if picture is None else self.pipe.vae.encode(picture).latent_dist.parameters

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.moments)
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        text = self.text
        if name.startswith("image_e"):
            pictures = {k: v.numpy() for k, v in self.tensors.items() if k.startswith("case0.picture.redux_")}
            text = [t[0] for t in redux.encode(self.pipe, self.case, {k.removeprefix("case0.picture."): v for k, v in pictures.items()})]
        if name.startswith("text_encoder"):
            values, _ = reference_tensors.encode(self.pipe, self.case["prompt"], self.case["max_sequence_length"])
            text = values["hidden"], values["pooled"]
        return relative(self.latent(text), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
    model, clip, t5, vae = pipe.transformer, pipe.text_encoder, pipe.text_encoder_2, pipe.vae
    layer = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    heads = [m for m in model.modules() if isinstance(m, torch.nn.RMSNorm)]
    clip_norms = [m for m in clip.modules() if isinstance(m, torch.nn.LayerNorm)]
    t5_norms = [m for m in t5.modules() if hasattr(m, "variance_epsilon")]
    clip_mlps = [m for m in clip.modules() if hasattr(m, "activation_fn")]
    t5_mlps = [m for m in t5.modules() if hasattr(m, "wi_0")]
    bias = [m for m in t5.modules() if getattr(m, "has_relative_attention_bias", False)]
    mlps = [b.act_mlp for b in model.single_transformer_blocks]
    groups = {part: [m for m in getattr(vae, part).modules() if isinstance(m, torch.nn.GroupNorm)] for part in ("decoder", "encoder")}
    if pipe.redux:
        tower = pipe.redux.image_encoder
        norms, mlps = [m for m in tower.modules() if isinstance(m, torch.nn.LayerNorm)], [m for m in tower.modules() if hasattr(m, "activation_fn")]
        return [("SigLIP norms: eps 1e-5 for 1e-6", "image_encoder", norms, "eps", 1e-5),
                ("SigLIP: GELU without tanh", "image_encoder", mlps, "activation_fn", torch.nn.GELU())]
    return [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("rope theta 1 % off", "transformer", [model.pos_embed], "theta", model.pos_embed.theta * 1.01),
        ("single blocks: GELU without tanh", "transformer", mlps, "approximate", "none"),
        ("CLIP norms: eps 1e-6 for 1e-5", "text_encoder", clip_norms, "eps", 1e-6),
        ("CLIP: GELU for quick GELU", "text_encoder", clip_mlps, "activation_fn", torch.nn.GELU()),
        ("T5 norms: eps 1e-5 for 1e-6", "text_encoder_2", t5_norms, "variance_epsilon", 1e-5),
        ("T5: GELU without tanh", "text_encoder_2", t5_mlps, "act", torch.nn.GELU()),
        ("T5: longest distance 64 for 128", "text_encoder_2", bias, "relative_attention_max_distance", 64),
        ("decoder norms: eps 1e-5 for 1e-6", "vae.decoder.", groups["decoder"], "eps", 1e-5),
        ("encoder norms: eps 1e-5 for 1e-6", "vae.encoder.", groups["encoder"], "eps", 1e-5),
    ]
