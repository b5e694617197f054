"""bf16 errors of the LTX-2 reference, for ../bf16.py.

Timesteps, their embeddings, rope tables and latents between steps stay f32, as in Sluice; the autoencoders are not measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import cast, disguise
from inputs import of_case

from . import reference_tensors as reference

KEPT = ("timestep", "audio_timestep", "sigma", "video_coords", "audio_coords")


def keep_embedding(network, dtype):
    """Runs a timestep's embedding in f32; only the operand of the last product and the result are rounded."""
    network.emb.float()
    network.register_forward_pre_hook(lambda _m, args, kwargs: (args, kwargs | dict(hidden_dtype=torch.float32)), with_kwargs=True)
    network.linear.register_forward_pre_hook(lambda _m, args: (args[0].to(dtype),))
    network.register_forward_hook(lambda _m, _a, out: cast(out, dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.connectors, pipe.text_encoder):
        disguise(model, dtype, KEPT)
        # transformers looks up output recording by class, so the changed class is registered
        if hasattr(model, "_can_record_outputs"):
            _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
    if dtype == torch.bfloat16:
        for name in reference.MODULATIONS:
            if hasattr(pipe.transformer, name):
                keep_embedding(getattr(pipe.transformer, name), dtype)
    return pipe


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        if case["kind"] != "image":
            continue
        pictures = {"init": t.numpy() for name, t in of_case(known, case["index"]).items() if name == "picture.init"}
        drawn = reference.run_case(pipe, case | dict(decoded=False), pictures)
        out |= {f"case{case['index']}.{name}": drawn[name] for name in ("latent", "sound", "hidden.cond") if name in drawn}
    return out


def everything(folder, dtype, known, expect):
    return cases(load(folder, dtype), known, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
