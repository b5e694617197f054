"""bf16 errors of the Anima reference, for ../bf16.py.

Timesteps, their embedding, rope's frequencies and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch

from flux.bf16 import disguise
from inputs import lanes, of_case
from watch import Watch

from . import reference_tensors as reference


def load(folder, dtype):
    pipe = reference.load(folder)
    model, rotary = pipe.transformer, pipe.text_conditioner.rotary_emb
    frequencies = rotary.inv_freq.clone()
    for part in (model, pipe.text_conditioner, pipe.text_encoder):
        disguise(part, dtype)
    rotary.inv_freq = frequencies
    given = {}
    # the embedder reads unrounded timesteps in f32; only its result is rounded
    model.register_forward_pre_hook(lambda _module, _args, kwargs: given.update(t=kwargs["timestep"].float()), with_kwargs=True)
    model.time_embed.float().register_forward_pre_hook(lambda _module, args: (args[0].float(), given["t"]))
    model.time_embed.register_forward_hook(lambda _module, _args, out: tuple(t.to(dtype) for t in out))
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, mine = pipe.transformer, of_case(known, 0)
    time, shared = known["block.time"].to(dtype), known["block.shared"].to(dtype)
    text = reference.block_text(mine)
    rope = model.rope(mine["latent_001"][:, :, None])
    out = {"block.layer.out": model.transformer_blocks[about["layer"]](
        known["block.layer.in"].to(dtype), text[None].to(dtype), time, shared, image_rotary_emb=rope)}
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), time, shared))
    out["embed.image.out"] = model.patch_embed.proj(known["embed.image.in"].to(dtype))
    out["block.velocity"] = reference.velocity_of(pipe, mine["latent_001"], known["block.t"], text)
    return out


@torch.no_grad()
def text_blocks(pipe, dtype, known, about):
    """Runs a layer of each text encoder on its input among the reference tensors, and the whole adapter."""
    layers = {"block.text": pipe.text_encoder.layers[about["block.text"]["layer"]], "block.adapter": pipe.text_conditioner.blocks[about["block.adapter"]["layer"]]}
    ids, t5 = (known[f"case0.{name}.cond"].long()[None] for name in ("ids", "ids_2"))

    def adapted():
        return pipe.text_conditioner(source_hidden_states=known["source"][None], target_input_ids=t5)[0, :t5.shape[1]]

    out = {"adapter.out": adapted()}
    hooks = [layer.register_forward_pre_hook(lambda _module, args, kwargs, name=name: ((known[f"{name}.in"].to(dtype), *args[1:]), kwargs), with_kwargs=True)
             for name, layer in layers.items()]
    with Watch(layers) as watch:
        pipe.text_encoder(input_ids=ids)
        adapted()
    for hook in hooks:
        hook.remove()
    return out | {f"{name}.out": watch.tensors[f"{name}.out"] for name in layers}


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        for lane, prompt in lanes(case):
            out[f"case{case['index']}.hidden.{lane}"] = reference.encode(pipe, prompt)[0]["hidden"]
        if case["kind"] == "image":
            mine = of_case(known, case["index"])
            pictures = {name.removeprefix("picture."): p.numpy() for name, p in mine.items() if name.startswith("picture.")}
            out[f"case{case['index']}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect["blocks"]
    return blocks(pipe, dtype, known, about["block"]) | text_blocks(pipe, dtype, known, about) | cases(pipe, known, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
