"""Measurement of the influence of WAN's tensors, for ../influence.py."""

import torch

import inputs
from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "image_encoder", "transformer", "transformer_2", "vae"]
MEASURE = ("Relative L2 change of case 0's latent when it is drawn in two steps (encoders, transformers), of 13 decoded frames (vae.decoder) or of "
           "their moments (vae.encoder) when the tensor is zero.")

STEPS = 2
UNUSED = [(r"^image_encoder\..*k_proj\.bias", "what is added to all keys the softmax divides out"), (r"post_layernorm", "rows are taken before it")]


def tower_of(pipe):
    return getattr(pipe.image_encoder, "vision_model", pipe.image_encoder)


def unused(pipe):
    if getattr(pipe, "image_encoder", None) is None:
        return UNUSED
    return UNUSED + [(rf"^image_encoder\..*encoder\.layers\.{len(tower_of(pipe).encoder.layers) - 1}\.", "the last layer is left out")]


class Probe:
    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case, self.tensors, self.case_tensors = pipe, expect["cases"][0], tensors, inputs.of_case(tensors, 0)
        self.final, self.known = self.latent(self.case["steps"]), self.case_tensors[f"latent_{self.case['steps']:03}"]
        self.short = self.latent(STEPS)

    @torch.no_grad()
    def latent(self, steps):
        """Returns the sampler's latent, including clean frames."""
        pictures = reference_tensors.shown({n.removeprefix("picture."): p.numpy() for n, p in self.case_tensors.items() if n.startswith("picture.")})
        kept = []
        arguments = reference_tensors.arguments(self.case | dict(steps=steps), pictures, 0)
        reference_tensors.runner_of(self.pipe, self.case)(
            **arguments, output_type="latent", callback_on_step_end=lambda _p, _i, _t, values: kept.append(values["latents"]) or {})
        return kept[-1]

    @torch.no_grad()
    def change(self, name):
        vae = self.pipe.vae
        if name.startswith(("vae.encoder.", "vae.quant_conv.")):
            return relative(vae.encode(self.tensors["video.encoder.in"]).latent_dist.parameters, self.tensors["video.encoder.out"])
        if name.startswith("vae."):
            return relative(reference_tensors.decode(vae, self.tensors["video.decoder.in"]), self.tensors["video.decoder.out"])
        return relative(self.latent(STEPS), self.short)


def constants(pipe):
    model, vae = pipe.transformer, pipe.vae
    layer = [m for m in model.modules() if type(m).__name__ == "FP32LayerNorm" and m.eps == 1e-6]
    heads = [m for m in model.modules() if type(m).__name__ == "RMSNorm"]
    text = [m for m in pipe.text_encoder.modules() if hasattr(m, "variance_epsilon")]
    wan = {part: [m for m in getattr(vae, part).modules() if hasattr(m, "gamma")] for part in ("decoder", "encoder")}
    rows = [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", layer, "eps", 1e-5),
        ("query and key norms: eps 1e-5 for 1e-6", "transformer", heads, "eps", 1e-5),
        ("feed-forward: GELU without tanh", "transformer", [block.ffn.net[0] for block in model.blocks], "approximate", "none"),
        ("text: GELU without tanh", "transformer", [model.condition_embedder.text_embedder.act_1], "approximate", "none"),
        ("umT5's norms: eps 1e-5 for 1e-6", "text_encoder", text, "variance_epsilon", 1e-5),
        ("decoder norms: root of channels + 1", "vae.decoder.", wan["decoder"], "scale", (wan["decoder"][0].gamma.shape[0] + 1) ** 0.5),
        ("encoder norms: root of channels + 1", "vae.encoder.", wan["encoder"], "scale", (wan["encoder"][0].gamma.shape[0] + 1) ** 0.5),
    ]
    seen = model.condition_embedder.image_embedder
    if seen is not None:
        rows += [("picture's norms: eps 1e-6 for 1e-5", "transformer", [seen.norm1, seen.norm2], "eps", 1e-6),
                 ("picture's GELU with tanh", "transformer", [seen.ff.net[0]], "approximate", "tanh"),
                 ("tower's norms: eps 1e-6 for 1e-5", "image_encoder",
                  [m for m in tower_of(pipe).modules() if isinstance(m, torch.nn.LayerNorm)], "eps", 1e-6)]
    return rows
