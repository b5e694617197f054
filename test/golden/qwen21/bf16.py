"""bf16 errors of the Qwen-Image-2.1 reference, for ../bf16.py.

Timesteps, their embeddings before rounding, and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from PIL import Image
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise
from watch import Watch

from . import reference_tensors as reference


def keep_conditioning(transformer, dtype):
    """Runs timestep embeddings in f32; only their result is rounded."""
    given = {}

    def remember(_module, _args, kwargs):
        t = kwargs["timestep"].float()
        given["t"] = torch.cat([t, t.new_zeros(1)])

    transformer.register_forward_pre_hook(remember, with_kwargs=True)
    transformer.time_text_embed.float().register_forward_pre_hook(lambda _module, args: (given["t"], args[1].float()))
    transformer.time_text_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    frequencies = pipe.transformer.time_text_embed.time_proj.freqs
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    # transformers looks up output recording by class, so the changed class is registered
    _CAN_RECORD_REGISTRY[pipe.text_encoder] = pipe.text_encoder._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    pipe.transformer.time_text_embed.time_proj.freqs = frequencies
    return pipe


def pictures_of(known, index):
    own = reference.of_case(known, index)
    return [Image.fromarray(own[name].numpy()) for name in sorted(own) if name.startswith("picture.reference")]


def forced(pipe, known, case, values, cache=None):
    """Runs the whole transformer with some modules' inputs replaced; returns all recorded tensors. values: {name: (module,
    input)}; cache: receives the prefix's keys and values."""
    latents = [*reference.reference_latents(case, reference.of_case(known, 0)), known[f"case0.{reference.LATER}"]]
    hooks = []
    for module, value in values.values():
        def put(_module, args, kwargs, value=value):
            return (args, kwargs | {"hidden_states": value}) if "hidden_states" in kwargs else ((value, *args[1:]), kwargs)

        hooks.append(module.register_forward_pre_hook(put, with_kwargs=True))
    with Watch({"block.first": pipe.transformer.transformer_blocks[0]} | {name: module for name, (module, _) in values.items()}) as watch:
        reference.velocity_of(pipe, latents, known["block.t"], known["case0.hidden.cond"], known["case0.ids.cond"], cache)
    for hook in hooks:
        hook.remove()
    return watch.tensors


@torch.no_grad()
def blocks(pipe, dtype, known, case, about):
    model, temb, drawn = pipe.transformer, known["block.temb"].to(dtype), case["image_tokens"]
    scale1, gate1, scale2, gate2 = known["block.modulation"].chunk(4, dim=-1)
    modulation = torch.cat([scale1, gate1.atanh(), scale2, gate2.atanh()], -1).to(dtype)
    scale1, gate1, scale2, gate2 = model.modulation(temb).chunk(4, dim=-1)
    out = {"block.modulation": torch.cat([scale1, gate1.tanh(), scale2, gate2.tanh()], -1),
           "block.final_scale": model.norm_out.linear(torch.nn.functional.silu(temb[:1]))}
    layer, last = model.transformer_blocks[about["layer"]], model.transformer_blocks[about["last"]]
    cache = reference.QwenImage21KVCache(len(model.transformer_blocks))
    hook = model.modulation.register_forward_hook(lambda _module, _args, _out: modulation)
    seen = forced(pipe, known, case, {name: (module, known[f"{name}.in"].to(dtype)) for name, module in
                                      (("block.layer", layer), ("block.last", last), ("embed.text", model.txt_in), ("embed.image", model.img_in))}, cache)
    hook.remove()
    out |= {"block.layer.out": seen["block.layer.out"], "block.last.out": seen["block.last.out"][:, -drawn:], "embed.text.out": seen["embed.text.out"],
            "block.sequence": seen["block.first.in"], "block.layer.keys": cache.get_layer(about["layer"]).k[0].flatten(1),
            "block.layer.values": cache.get_layer(about["layer"]).v[0].flatten(1)}
    scale = known["block.final_scale"].to(dtype)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out.norm(known[f"{name}.in"].to(dtype)) * (1 + scale))
    latents = [*reference.reference_latents(case, reference.of_case(known, 0)), known[f"case0.{reference.LATER}"]]
    out["block.velocity"] = reference.velocity_of(pipe, latents, known["block.t"], known["case0.hidden.cond"], known["case0.ids.cond"])[:, -drawn:]
    return out


@torch.no_grad()
def cases(pipe, known, expect):
    """Returns the encoded prompts, vision tokens and final latents of every case."""
    out = {}
    for case in expect["cases"]:
        prefix, pictures = f"case{case['index']}", pictures_of(known, case["index"])
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" in known:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text], pictures)["hidden"]
        out |= {f"{prefix}.{name}": rows for name, rows in reference.look(pipe, pictures).items() if name.startswith("seen.")}
        if case["kind"] == "image":
            given = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), given)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe = load(folder, dtype)
    out = blocks(pipe, dtype, known, expect["cases"][0], expect["blocks"]["block"]) if expect["blocks"] else {}
    return out | cases(pipe, known, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
