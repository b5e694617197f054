"""bf16 errors of the WAN reference, for ../bf16.py.

Timesteps, their modulation, rope tables and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise
from inputs import of_case
from watch import Watch

from . import reference_tensors as reference
from .influence import tower_of


def keep_conditioning(transformer, dtype):
    """Runs timestep embeddings in f32; only operands of later products are rounded."""
    embedder = transformer.condition_embedder
    embedder.time_embedder.float()
    embedder.timesteps_proj.register_forward_pre_hook(lambda _module, args: (args[0].float(),))
    rope = transformer.rope
    rope.freqs_cos, rope.freqs_sin = rope.kept
    for module in (transformer, *transformer.blocks):
        module.scale_shift_table.data = module.scale_shift_table.data.float()


def keep_timesteps(transformer):
    """Passes timesteps to the transformer in f32, unrounded."""
    f32 = {}
    original = transformer.forward

    def forward(*args, **kwargs):
        f32["t"] = kwargs["timestep"].float()
        return original(*args, **kwargs)

    transformer.forward = forward
    transformer.condition_embedder.register_forward_pre_hook(lambda _module, args: (f32["t"].flatten(), *args[1:]))


def load(folder, dtype):
    pipe = reference.load(folder)
    models = [pipe.transformer, pipe.text_encoder] + [m for m in (pipe.transformer_2, getattr(pipe, "image_encoder", None)) if m is not None]
    for model in models:
        if hasattr(model, "rope"):
            model.rope.kept = model.rope.freqs_cos, model.rope.freqs_sin
        disguise(model, dtype)
        # transformers looks up output recording by class, so the changed class is registered
        if hasattr(model, "_can_record_outputs"):
            _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
        if hasattr(model, "rope"):
            keep_conditioning(model, dtype)
            keep_timesteps(model)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, case, about):
    model, mine, out = pipe.transformer, of_case(known, 0), {}
    text = model.condition_embedder.text_embedder(reference.padded(mine["hidden.cond"]).to(dtype))
    out["embed.text.out"] = text[0, :len(known["embed.text.out"])]
    if "embed.seen.out" in known:
        seen = torch.stack([mine[f"seen.{name}"] for name in ("init", "last") if f"seen.{name}" in mine])
        seen = model.condition_embedder.image_embedder(seen.to(dtype)).flatten(0, -2)
        out["embed.seen.out"] = seen
        text = torch.cat([seen[None], text], dim=1)
    rope = [table.repeat_interleave(2, -1)[None, :, None] for table in known["rope"].unbind(-1)]
    e, e6 = known["block.e"][None], known["block.e6"].unflatten(1, (6, -1))
    if about["given"]:  # with a clean frame: one row per token
        of_frame = (known["rope.ids"][:, 0] > 0).long()
        e, e6 = e[:, of_frame], e6[None, of_frame]
    out["block.layer.out"] = model.blocks[about["layer"]](known["block.layer.in"].to(dtype), text, e6, rope)

    def final(rows, e):
        shift, scale = (model.scale_shift_table[None] + e.unsqueeze(2)).unbind(2)
        return model.proj_out((model.norm_out(rows.float()) * (1 + scale) + shift).to(dtype))

    out["block.final.out"] = final(known["block.final.in"], e)
    out["block.final_small.out"] = final(known["block.final_small.in"], known["block.e"][None, -1:])
    out["embed.image.out"] = torch.nn.functional.linear(
        known["embed.image.in"].to(dtype), model.patch_embedding.weight.flatten(1), model.patch_embedding.bias)
    return out


@torch.no_grad()
def whole(pipe, known, case, about):
    """Runs the transformers with the reference tensors' inputs."""
    conditions = reference.Conditions(pipe, case, of_case(known, 0))
    out = {"block.velocity": conditions.velocity(known[f"case0.{reference.LATER}"], known["block.t"])}
    for call in about:
        out[f"{call['name']}.out"] = conditions.velocity(known[f"case0.{call['latent']}"], known[f"{call['name']}.t"], call["model"])
    return out


@torch.no_grad()
def encoders(pipe, dtype, known, about):
    """Runs a layer of umT5 and of the vision encoder, if the fixture has its own."""
    modules, hooks = {}, []
    if "block.umt5" in about:
        modules["block.umt5"] = pipe.text_encoder.encoder.block[about["block.umt5"]["layer"]]
    if "block.vision" in about:
        modules["block.vision"] = tower_of(pipe).encoder.layers[about["block.vision"]["layer"]]
    for name, module in modules.items():
        hooks.append(module.register_forward_pre_hook(lambda _m, args, kwargs, name=name: ((known[f"{name}.in"].to(dtype), *args[1:]), kwargs) if args
                                                      else (args, {**kwargs, "hidden_states": known[f"{name}.in"].to(dtype)}), with_kwargs=True))
    whole = {"vision.norm": tower_of(pipe).pre_layrnorm} if "block.vision" in about else {}
    with Watch(modules | whole) as watch:
        if "block.umt5" in about:
            pipe.text_encoder(known["case0.ids.cond"].long()[None])
        if "block.vision" in about:
            pipe.image_encoder(known["case0.pixels.init"][None])
    for hook in hooks:
        hook.remove()
    return {f"{name}.out": watch.tensors[f"{name}.out"] for name in modules | whole}


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        prefix, mine = f"case{case['index']}", of_case(known, case["index"])
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"hidden.{lane}" in mine:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text])[1]
        if case["kind"] == "image":
            pictures = {name.removeprefix("picture."): p.numpy() for name, p in mine.items() if name.startswith("picture.")}
            drawn = reference.run_case(pipe, dict(case), pictures)
            out[f"{prefix}.latent"] = drawn["latent"]
            out |= {f"{prefix}.{name}": drawn[name] for name in drawn if name.startswith("seen.")}
    return out


def everything(folder, dtype, known, expect):
    pipe, about, first = load(folder, dtype), expect["blocks"], expect["cases"][0]
    return {**blocks(pipe, dtype, known, first, about["block"]), **whole(pipe, known, first, about["transformer"]),
            **encoders(pipe, dtype, known, about), **cases(pipe, known, expect)}


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={"block.umt5": "block.t5"})
