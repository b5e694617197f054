"""bf16 errors of the Krea 2 reference, for ../bf16.py.

Timesteps, conditioning and latents between steps stay f32, as in Sluice; norms and the VAE are not rounded.
"""

import types

import torch

from flux.bf16 import disguise
from inputs import lanes, of_case

from . import reference_tensors as reference


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    given, model = {}, pipe.transformer
    for module in model.modules():
        if type(module).__name__ == "Krea2RMSNorm":
            module.float()  # as diffusers loads them: 1 + weight would round weights near 0
    # the timestep embedding and the shared modulation are computed in f32; only their results are rounded
    model.register_forward_pre_hook(lambda _module, _args, kwargs: given.update(t=kwargs["timestep"].float()), with_kwargs=True)
    for part in (model.time_embed, model.time_mod_proj):
        part.float()
    model.time_embed.register_forward_pre_hook(lambda _module, _args, _kwargs: ((given["t"],), dict(dtype=torch.float32)), with_kwargs=True)
    model.time_mod_proj.register_forward_hook(lambda _module, _args, out: out.to(dtype))
    model.final_layer.register_forward_pre_hook(lambda _module, args: (args[0], args[1].to(dtype)))
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, fusion, out = pipe.transformer, pipe.transformer.text_fusion, {}
    temb, modulation = known["block.temb"][None].to(dtype), known["block.modulation"][None].to(dtype)
    T = about["text_tokens"]
    taps = known["block.taps.in"].to(dtype).unflatten(0, (-1, T)).transpose(0, 1).contiguous()
    taps = fusion.layerwise_blocks[about["taps"]](taps)
    out["block.taps.out"] = reference.tap_major(taps)
    taps = known["block.taps.out"].to(dtype).unflatten(0, (-1, T))
    out["block.fused"] = fusion.projector(taps.permute(1, 2, 0)).squeeze(-1)
    out["block.refiner.out"] = fusion.refiner_blocks[about["refiner"]](known["block.refiner.in"].to(dtype))
    rope = model.rotary_emb(known["rope.ids"].float())
    out["block.layer.out"] = model.transformer_blocks[about["layer"]](known["block.layer.in"].to(dtype), modulation, rope)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.final_layer(known[f"{name}.in"].to(dtype), temb)
    mine = of_case(known, 0)
    for name in ("embed.text", "embed.small_text"):
        out[f"{name}.out"] = model.txt_in(known[f"{name}.in"].to(dtype))
    out["embed.image.out"] = model.img_in(pipe._pack_latents(mine["latent_001"], 1, *mine["latent_001"].shape[1:]).to(dtype))
    out["block.velocity"] = reference.velocity_of(pipe, mine["latent_001"], known["block.t"], mine["hidden.cond"][:T])
    return out


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        for lane, prompt in lanes(case):
            if f"case{case['index']}.hidden.{lane}" in known:
                out[f"case{case['index']}.hidden.{lane}"] = reference.encode(pipe, prompt)[0]["hidden"]
        if case["kind"] == "image":
            out[f"case{case['index']}.latent"] = reference.run_case(pipe, dict(case))["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect.get("blocks")
    return (blocks(pipe, dtype, known, about["block"]) if about else {}) | cases(pipe, known, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
