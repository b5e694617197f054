"""bf16 errors of the Ovis-Image reference, for ../bf16.py.

Timesteps, conditioning and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch

from flux.bf16 import disguise
from inputs import lanes, of_case
from watch import Watch

from . import reference_tensors as reference


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    given, model = {}, pipe.transformer
    # the embedder reads unrounded sinusoids in f32; only its result is rounded
    model.register_forward_pre_hook(lambda _module, _args, kwargs: given.update(t=kwargs["timestep"].float() * 1000), with_kwargs=True)
    model.timestep_embedder.float().register_forward_pre_hook(lambda module, _args: (model.time_proj(given["t"]),))
    model.timestep_embedder.register_forward_hook(lambda _module, _args, out: out.to(dtype))
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, temb, out = pipe.transformer, known["block.temb"].to(dtype), {}
    rope, n = model.pos_embed(known["rope.ids"].float()), about["prompt"] + about["zeros"]
    for name, block in (("double", model.transformer_blocks[about["double"]]), ("single", model.single_transformer_blocks[about["single"]])):
        rows = known[f"block.{name}.in"].to(dtype)
        out[f"block.{name}.out"] = torch.cat(
            block(hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], temb=temb, image_rotary_emb=rope), 1)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), temb))
    out["embed.image.out"] = model.x_embedder(known["embed.image.in"].to(dtype))
    for name in ("embed.text", "embed.small_text"):
        out[f"{name}.out"] = model.context_embedder(model.context_embedder_norm(known[f"{name}.in"].to(dtype)))
    mine = of_case(known, 0)
    out["block.velocity"] = reference.velocity_of(pipe, mine["latent_001"], known["block.t"], reference.block_text(mine))
    return out


@torch.no_grad()
def text_block(pipe, dtype, known, about):
    layer = pipe.text_encoder.layers[about["layer"]]
    hook = layer.register_forward_pre_hook(lambda _module, args, kwargs: ((known["block.text.in"].to(dtype), *args[1:]), kwargs), with_kwargs=True)
    with Watch({"block.text": layer}) as watch:
        pipe.text_encoder(input_ids=known["case0.ids.cond"].long()[None])
    hook.remove()
    return {"block.text.out": watch.tensors["block.text.out"]}


def cases(pipe, expect):
    out = {}
    for case in expect["cases"]:
        for lane, prompt in lanes(case):
            out[f"case{case['index']}.hidden.{lane}"] = reference.encode(pipe, prompt)[0]["hidden"]
        if case["kind"] == "image":
            out[f"case{case['index']}.latent"] = reference.run_case(pipe, dict(case))["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect["blocks"]
    return blocks(pipe, dtype, known, about["block"]) | text_block(pipe, dtype, known, about["block.text"]) | cases(pipe, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
