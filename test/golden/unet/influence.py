"""Measurement of the influence of the UNet pipelines' tensors, for ../influence.py."""

import torch

from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "text_encoder_2", "unet", "vae"]
MEASURE = ("Relative L2 change of the UNet's output for case 0's text at two sizes (text encoders, unet), of case 0's decoded picture (vae.decoder) or of a "
           "picture's moments (vae.encoder) when the tensor is zero.")

KEY_BIAS = "a key bias adds the same to all scores of a query: softmax cancels it"
PENULTIMATE = "the rows before the last layer are read, without the last norm, and no pooled row"
CALLS = ["unet.0", "unet.3"]


def unused(pipe):
    out = [
        (r"^vae\.(decoder|encoder)\.mid_block\.attentions\.0\.to_k\.bias$", KEY_BIAS),
        (r"^text_encoder(_2)?\..*\.k_proj\.bias$", KEY_BIAS),
    ]
    if reference_tensors.is_xl(pipe) and pipe.text_encoder is not None:
        last = pipe.text_encoder.config.num_hidden_layers - 1
        out += [(rf"^text_encoder\..*(layers\.{last}\.|final_layer_norm)", PENULTIMATE)]
    return out


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors = pipe, expect["cases"][0], tensors
        self.final = self.outputs(reference_tensors.of_case(tensors, 0))
        self.known = torch.cat([tensors[f"{name}.out"].flatten() for name in CALLS])
        self.picture, self.moments = self.decode(), self.encode()

    def outputs(self, texts):
        outs = [reference_tensors.unet_call(self.pipe, texts, self.case, self.tensors[f"{name}.in"], self.tensors[f"{name}.t"][0]) for name in CALLS]
        return torch.cat([out.flatten() for out in outs])

    @torch.no_grad()
    def decode(self):
        vae = self.pipe.vae
        return vae.decode(self.tensors["case0.latent"][:1] / vae.config.scaling_factor, return_dict=False)[0]

    @torch.no_grad()
    def encode(self):
        picture = self.tensors.get("encoder.in")  # None if another fixture owns the VAE
        return None if picture is None else self.pipe.vae.encode(picture).latent_dist.parameters

    def change(self, name):
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(self.encode(), self.moments)
        if name.startswith("vae."):
            return relative(self.decode(), self.picture)
        texts = reference_tensors.of_case(self.tensors, 0)
        if name.startswith("text_encoder"):
            texts = {f"{tail}.cond": value for tail, value in reference_tensors.encode(self.pipe, self.case["prompt"]).items()}
        return relative(self.outputs(texts), self.final)


def constants(pipe):
    unet, vae = pipe.unet, pipe.vae
    resnets = [m for m in unet.modules() if type(m).__name__ == "ResnetBlock2D"]
    inner = [m.norm for m in unet.modules() if type(m).__name__ == "Transformer2DModel"]
    layer = [m for m in unet.modules() if isinstance(m, torch.nn.LayerNorm)]
    gates = [m for m in unet.modules() if type(m).__name__ == "GEGLU"]
    out = [
        ("resnets' norms: eps 1e-6 for 1e-5", "unet", [r.norm1 for r in resnets] + [r.norm2 for r in resnets], "eps", 1e-6),
        ("transformers' group norms: eps 1e-5 for 1e-6", "unet", inner, "eps", 1e-5),
        ("transformers' layer norms: eps 1e-6 for 1e-5", "unet", layer, "eps", 1e-6),
        ("last norm: eps 1e-6 for 1e-5", "unet", [unet.conv_norm_out], "eps", 1e-6),
        ("GEGLU: GELU with tanh", "unet", gates, "gelu", lambda gate: torch.nn.functional.gelu(gate, approximate="tanh")),
    ]
    for name in reference_tensors.encoders(pipe):
        encoder = getattr(pipe, name)
        act = torch.nn.GELU() if encoder.config.hidden_act == "quick_gelu" else torch.nn.GELU(approximate="tanh")
        out += [
            (f"{name} norms: eps 1e-6 for 1e-5", name, [m for m in encoder.modules() if isinstance(m, torch.nn.LayerNorm)], "eps", 1e-6),
            (f"{name}: another GELU", name, [m for m in encoder.modules() if hasattr(m, "activation_fn")], "activation_fn", act),
        ]
    for part in ("decoder", "encoder"):
        norms = [m for m in getattr(vae, part).modules() if isinstance(m, torch.nn.GroupNorm)]
        out.append((f"{part} norms: eps 1e-5 for 1e-6", f"vae.{part}.", norms, "eps", 1e-5))
    return out
