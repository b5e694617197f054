"""bf16 errors of the LongCat-Image reference, for ../bf16.py.

Timesteps, their embeddings before rounding, positions and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise
from inputs import of_case

from . import reference_tensors as reference


def keep_conditioning(transformer, dtype):
    """Runs timestep embeddings in f32; only their result is rounded."""
    given = {}
    transformer.register_forward_pre_hook(lambda _module, _args, kwargs: given.update(time=kwargs["timestep"].float() * 1000), with_kwargs=True)
    transformer.time_embed.float().register_forward_pre_hook(lambda _module, _args: (given["time"], torch.float32))
    transformer.time_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype, kept=("txt_ids", "img_ids"))
    # transformers looks up output recording by class, so the changed class is registered
    _CAN_RECORD_REGISTRY[pipe.text_encoder] = pipe.text_encoder._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, case, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, temb, out = pipe.transformer, known["block.temb"].to(dtype), {}
    rope, n = model.pos_embed(known["rope.ids"].float()), about["text_tokens"]
    for name, block in (("block.double", model.transformer_blocks[about["double"]]),
                        ("block.single", model.single_transformer_blocks[about["single"]])):
        rows = known[f"{name}.in"].to(dtype)
        out[f"{name}.out"] = torch.cat(block(hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], temb=temb, image_rotary_emb=rope), 1)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), temb))
    out["embed.image.out"] = model.x_embedder(known["embed.image.in"].to(dtype))
    out["embed.text.out"] = model.context_embedder(known["embed.text.in"].to(dtype))
    own = of_case(known, 0)
    latents = [own["latent_001"], *reference.conditioning_latents(case, own)]
    out["block.velocity"] = reference.velocity_of(pipe, latents, known["block.t"], own["hidden.cond"][:n])
    return out


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        prefix, own = f"case{case['index']}", of_case(known, case["index"])
        pictures = reference.pictures_of(own)
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"hidden.{lane}" in own:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text], pictures)[0]["hidden"]
        if pictures:
            out[f"{prefix}.seen.reference_000"] = reference.look(pipe, pictures)["seen.reference_000"]
        if case["kind"] == "image":
            given = {k.removeprefix("picture."): v.numpy() for k, v in own.items() if k.startswith("picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), given)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, first = load(folder, dtype), expect["cases"][0]
    return {**blocks(pipe, dtype, known, first, expect["blocks"]["block"]), **cases(pipe, known, expect)}


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
