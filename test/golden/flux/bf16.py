"""bf16 errors of the Flux.1 reference, for ../bf16.py.

Timesteps, guidance, conditioning and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from diffusers.utils import BaseOutput
from transformers.utils import ModelOutput
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from watch import Watch

from . import redux
from . import reference_tensors as reference


def cast(value, dtype):
    """Converts all floating-point tensors in a nested value."""
    if torch.is_tensor(value):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (ModelOutput, BaseOutput)):
        return type(value)(**{k: cast(v, dtype) for k, v in value.items()})
    if isinstance(value, dict):
        return {k: cast(v, dtype) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(cast(v, dtype) for v in value)
    return value


def disguise(model, dtype, kept=()):
    """Makes a model compute in this dtype while its callers see f32 inputs and outputs. kept: names of arguments that are
    not converted."""
    model.to(dtype)
    model.__class__ = type(model.__class__.__name__, (model.__class__,), {"dtype": property(lambda _: torch.float32)})

    forward = model.forward
    # replaces forward instead of hooking it: hooks must record the pipeline's values
    model.forward = lambda *args, **kwargs: cast(
        forward(*cast(args, dtype), **{k: v if k in kept else cast(v, dtype) for k, v in kwargs.items()}), torch.float32)


def keep_conditioning(transformer, dtype):
    """Runs timestep, guidance and pooled text embeddings in f32; only their result is rounded."""
    given = {}

    def remember(_module, _args, kwargs):
        given.update(time=kwargs["timestep"] * 1000, guidance=kwargs["guidance"] * 1000 if kwargs.get("guidance") is not None else None,
                     pooled=kwargs["pooled_projections"].float())

    transformer.register_forward_pre_hook(remember, with_kwargs=True)
    transformer.time_text_embed.float().register_forward_pre_hook(
        lambda _module, _args: tuple(given[k] for k in ("time", "guidance", "pooled") if given[k] is not None))
    transformer.time_text_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder, pipe.text_encoder_2):
        disguise(model, dtype)
    if pipe.redux:
        disguise(pipe.redux.image_embedder, dtype)
        disguise(pipe.redux.image_encoder, dtype)
        _CAN_RECORD_REGISTRY[pipe.redux.image_encoder] = pipe.redux.image_encoder._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, temb, out = pipe.transformer, known["block.temb"].to(dtype), {}
    rope, n = model.pos_embed(known["rope.ids"].float()), about["text_tokens"]
    for name, block in (("block.double", model.transformer_blocks[about["double"]]),
                        ("block.single", model.single_transformer_blocks[about["single"]])):
        rows = known[f"{name}.in"].to(dtype)
        text, image = block(hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], temb=temb, image_rotary_emb=rope)
        out[f"{name}.out"] = torch.cat([text, image], 1)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), temb))
    out["embed.image.out"] = model.x_embedder(known["embed.image.in"].to(dtype))
    out["embed.text.out"] = model.context_embedder(known["embed.text.in"].to(dtype))
    return out


@torch.no_grad()
def whole(pipe, known, case, about):
    """Runs the transformer with the reference tensors' inputs."""
    guidance = None if about["guidance"] is None else torch.tensor([about["guidance"]])
    latents = [known["case0.latent_001"]] + [known[f"case0.encoded.reference_{i:03}"] for i in range(len(case["references"]))]
    n = about["text_tokens"]
    ids = known["rope.ids"].float()
    return pipe.transformer(
        hidden_states=reference.packed(pipe, latents, known.get("case0.control")), timestep=known["block.t"], guidance=guidance,
        pooled_projections=known["case0.pooled.cond"][None], encoder_hidden_states=known["case0.hidden.cond"][None, :n],
        txt_ids=ids[:n], img_ids=ids[n:], return_dict=False)[0]


@torch.no_grad()
def text_blocks(pipe, dtype, known, about):
    clip, t5 = pipe.text_encoder, pipe.text_encoder_2
    layers = (clip.text_model if hasattr(clip, "text_model") else clip).encoder.layers
    modules = {"block.clip": layers[about["block.clip"]["layer"]], "block.t5": t5.encoder.block[about["block.t5"]["layer"]]}
    hooks = [module.register_forward_pre_hook(
        lambda _module, args, kwargs, name=name: ((known[f"{name}.in"].to(dtype), *args[1:]), kwargs) if args
        else (args, {**kwargs, "hidden_states": known[f"{name}.in"].to(dtype)}), with_kwargs=True) for name, module in modules.items()]
    with Watch(modules) as watch:
        clip(input_ids=known["case0.ids.cond"].long()[None])
        t5(input_ids=known["case0.ids_2.cond"].long()[None, :about["block.t5"]["tokens"]])
    for hook in hooks:
        hook.remove()
    return {f"{name}.out": watch.tensors[f"{name}.out"] for name in modules}


@torch.no_grad()
def redux_blocks(pipe, dtype, known, about):
    model = pipe.redux.image_encoder
    inner, pixels = getattr(model, "vision_model", model), known["case0.pixels.redux_000"][None].to(dtype)
    layer = inner.encoder.layers[about["block.vision"]["layer"]]
    out = {"vision.patches.out": inner.embeddings.position_embedding.weight + inner.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2),
           "block.vision.out": layer(known["block.vision.in"].to(dtype), attention_mask=None),
           "vision.norm.out": inner.post_layernorm(known["vision.norm.in"].to(dtype))}
    return {name: value[0] if torch.is_tensor(value) and value.dim() > known[name].dim() else value for name, value in out.items()}


def cases(pipe, known, expect):
    """Returns the encoded prompts and final latents of every case."""
    out = {}
    for case in expect["cases"]:
        prefix = f"case{case['index']}"
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.pooled.{lane}" not in known:
                continue
            if lane == "cond" and case.get("redux"):
                pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
                out |= {f"{prefix}.{name}": value for name, value in redux.references(pipe, case, pictures).items()
                        if f"{prefix}.{name}" in known and not name.startswith("pixels") and value.any()}
                continue
            encoded, _ = reference.encode(pipe, case[text], case["max_sequence_length"])
            for name in ("hidden", "pooled"):
                if f"{prefix}.{name}.{lane}" in known:
                    out[f"{prefix}.{name}.{lane}"] = encoded[name]
        if case["kind"] == "image":
            pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect["blocks"]
    if pipe.redux:
        return redux_blocks(pipe, dtype, known, about) | cases(pipe, known, expect)
    out = {**blocks(pipe, dtype, known, about["block"]), "block.velocity": whole(pipe, known, expect["cases"][0], about["block"])}
    if "block.clip.in" in known:
        out |= text_blocks(pipe, dtype, known, about)
    return out | cases(pipe, known, expect)


def add_names(errors):
    """Adds entries under the additional names that the C tests use."""
    if "block.velocity" in errors:
        errors["block.velocity.far"] = errors["block.velocity"]


def independent(name, known):
    """Returns the number of independent errors: rows of equal tokens are equal, padding in particular."""
    if ".hidden." not in name:
        return {}
    return {"n": len(known[name.replace("hidden", "ids_2")].unique()) * known[name].shape[-1]}


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=independent, renamed={})
