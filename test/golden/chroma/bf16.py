"""bf16 errors of the Chroma reference, for ../bf16.py.

Timesteps, the approximator's sinusoids and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from flux.bf16 import disguise

from . import reference_tensors as reference


def keep_sinusoids(transformer, dtype):
    """Computes the approximator's input from the f32 timestep; only the result is rounded. A bf16 timestep alone
    changes the latent by a fifth."""
    given = {}
    transformer.register_forward_pre_hook(lambda _module, _args, kwargs: given.update(t=kwargs["timestep"] * 1000), with_kwargs=True)
    transformer.time_text_embed.float().register_forward_pre_hook(lambda _module, _args: (given["t"],))
    transformer.time_text_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    rows = pipe.transformer.time_text_embed.mod_proj
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    pipe.transformer.time_text_embed.mod_proj = rows
    for norm in pipe.transformer.distilled_guidance_layer.norms:
        norm.eps = torch.finfo(torch.float32).eps  # the default is that of the module's dtype
    keep_sinusoids(pipe.transformer, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each transformer block on its input among the reference tensors; returns the outputs by reference tensor
    name."""
    model, rows, out = pipe.transformer, known["block.rows.out"].to(dtype), {}
    doubles, singles, n = len(model.transformer_blocks), len(model.single_transformer_blocks), about["text_tokens"]
    rope = model.pos_embed(known["rope.ids"].float())
    double, single = about["double"], about["single"]
    of_image, of_text = 3 * singles + 6 * double, 3 * singles + 6 * doubles + 6 * double
    hidden = known["block.double.in"].to(dtype)
    text, image = model.transformer_blocks[double](
        hidden_states=hidden[:, n:], encoder_hidden_states=hidden[:, :n], image_rotary_emb=rope,
        temb=torch.cat([rows[:, of_image:of_image + 6], rows[:, of_text:of_text + 6]], 1))
    out["block.double.out"] = torch.cat([text, image], 1)
    out["block.single.out"] = model.single_transformer_blocks[single](
        hidden_states=known["block.single.in"].to(dtype), image_rotary_emb=rope, temb=rows[:, 3 * single:3 * single + 3])
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), rows[:, -2:]))
    out["block.rows.out"] = model.distilled_guidance_layer(known["block.rows.in"].to(dtype))
    out["embed.image.out"] = model.x_embedder(known["embed.image.in"].to(dtype))
    out["embed.text.out"] = model.context_embedder(known["embed.text.in"].to(dtype))
    return out


@torch.no_grad()
def whole(pipe, known, about):
    """Runs the transformer with the reference tensors' inputs."""
    ids, n = known["rope.ids"].float(), about["text_tokens"]
    return pipe.transformer(
        hidden_states=reference.packed(pipe, known["case0.latent_001"]), timestep=known["block.t"],
        encoder_hidden_states=known["case0.hidden.cond"][None, :n], txt_ids=ids[:n], img_ids=ids[n:], return_dict=False)[0]


def cases(pipe, known, expect):
    """Returns the encoded prompts and final latents of every case."""
    out = {}
    for case in expect["cases"]:
        prefix = f"case{case['index']}"
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" in known:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text], case["max_sequence_length"])[0]["hidden"]
        if case["kind"] == "image":
            pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect["blocks"]["block"]
    return {**blocks(pipe, dtype, known, about), "block.velocity": whole(pipe, known, about)} | cases(pipe, known, expect)


def add_names(errors):
    """Adds the entries that the C tests compare in parts."""
    for name in ("single_modulation", "image_modulation", "text_modulation", "final_modulation"):
        errors[f"block.rows {name}"] = errors["block.rows"]


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
