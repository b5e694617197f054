"""bf16 errors of the Flux.2 reference, for ../bf16.py.

Timesteps, guidance, their embeddings before rounding, and latents between steps stay f32, as in Sluice; the VAE is not
measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise
from watch import Watch

from . import reference_tensors as reference


def keep_conditioning(transformer, dtype):
    """Runs timestep and guidance embeddings in f32; only their sum is rounded."""
    given = {}

    def remember(_module, _args, kwargs):
        given["values"] = [value if value is None else value.float() * 1000 for value in (kwargs["timestep"], kwargs["guidance"])]

    transformer.register_forward_pre_hook(remember, with_kwargs=True)
    transformer.time_guidance_embed.float().register_forward_pre_hook(lambda _module, _args: tuple(given["values"]))
    transformer.time_guidance_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    # transformers looks up output recording by class, so the changed class is registered
    _CAN_RECORD_REGISTRY[pipe.text_encoder] = pipe.text_encoder._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, case, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, n, temb = pipe.transformer, about["text_tokens"], known["block.temb"].to(dtype)
    out = {f"block.modulation.{name}": model.get_submodule(path)(temb if name != "final" else torch.nn.functional.silu(temb))
           for name, path in reference.MODULATIONS.items()}
    given = {name: known[f"block.modulation.{name}"].to(dtype) for name in reference.MODULATIONS}
    latents = [known["case0.latent_001"], *reference.reference_latents(case, reference.of_case(known, 0))]
    rope = model.pos_embed(reference.positions(latents, n))
    rows = known["block.double.in"].to(dtype)
    out["block.double.out"] = torch.cat(model.transformer_blocks[about["double"]](
        hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], temb_mod_img=given["image"], temb_mod_txt=given["text"],
        image_rotary_emb=rope), 1)
    out["block.single.out"] = model.single_transformer_blocks[about["single"]](
        hidden_states=known["block.single.in"].to(dtype), encoder_hidden_states=None, temb_mod=given["single"], image_rotary_emb=rope)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), temb))
    out["embed.image.out"] = model.x_embedder(known["embed.image.in"].to(dtype))
    out["embed.text.out"] = model.context_embedder(known["embed.text.in"].to(dtype))
    out["block.velocity"] = reference.velocity_of(pipe, latents, known["block.t"], known["case0.hidden.cond"][:n], about["guidance"])
    return out


@torch.no_grad()
def text_block(pipe, dtype, known, about):
    """Runs a layer of the text encoder on its input among the reference tensors."""
    name = "block.mistral" if "block.mistral" in about else "block.text"
    model = reference.language_model(pipe)
    layer = model.layers[about[name]["layer"]]

    def put(_module, args, kwargs):
        value = known[f"{name}.in"].to(dtype)
        return ((value, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": value})

    hook = layer.register_forward_pre_hook(put, with_kwargs=True)
    ids, first = known["text.ids"], about[name]["first_key"]
    mask = (torch.arange(len(ids)) >= first) & (torch.arange(len(ids)) < first + about[name]["keys"])
    with Watch({name: layer}) as watch:
        model(input_ids=ids[None].long(), attention_mask=mask[None].long(), use_cache=False)
    hook.remove()
    return {f"{name}.out": watch.tensors[f"{name}.out"]}


def cases(pipe, known, expect):
    """Returns the encoded prompts and final latents of every case."""
    out = {}
    for case in expect["cases"]:
        prefix = f"case{case['index']}"
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" in known:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text])[0]["hidden"]
        if case["kind"] == "image":
            pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about, first = load(folder, dtype), expect["blocks"], expect["cases"][0]
    out = blocks(pipe, dtype, known, first, about["block"])
    if "text.ids" in known:
        out |= text_block(pipe, dtype, known, about)
    return out | cases(pipe, known, expect)


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


def independent(name, known):
    """Returns the number of independent errors: dev's rows of padding, on the left, are all equal."""
    if ".hidden." not in name:
        return {}
    rows = known[name]
    return {"n": len(torch.unique(rows, dim=0)) * rows.shape[-1]}


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=independent, renamed={})
