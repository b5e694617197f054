"""bf16 errors of the Stable Diffusion 3 reference, for ../bf16.py.

Timesteps, the pooled row, conditioning and latents between steps stay f32, as in Sluice; the VAE is not measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise
from inputs import lanes, of_case

from . import reference_tensors as reference


def keep_conditioning(transformer, dtype):
    """Runs timestep and pooled text embeddings in f32; only their result is rounded."""
    given = {}
    transformer.register_forward_pre_hook(
        lambda _module, _args, kwargs: given.update(t=kwargs["timestep"], pooled=kwargs["pooled_projections"].float()), with_kwargs=True)
    transformer.time_text_embed.float().register_forward_pre_hook(lambda _module, _args: (given["t"], given["pooled"]))
    transformer.time_text_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for name in ["transformer", *reference.encoders(pipe)]:
        model = getattr(pipe, name)
        disguise(model, dtype)
        # transformers looks up output recording by class, so the changed class is registered
        if hasattr(model, "_can_record_outputs"):
            _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    model, temb, out = pipe.transformer, known["block.temb"].to(dtype), {}
    n = about["text_tokens"]
    for name, i in reference.kinds(model).items():
        rows = known[f"{name}.in"].to(dtype)
        text, image = model.transformer_blocks[i](hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], temb=temb)
        out[f"{name}.out"] = image if text is None else torch.cat([text, image], 1)
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = reference.final(model, known[f"{name}.in"].to(dtype), temb)
    out["embed.image.out"] = model.pos_embed(known["case0.latent_001"].to(dtype))
    out["embed.text.out"] = model.context_embedder(known["embed.text.in"].to(dtype))
    return out


@torch.no_grad()
def whole(pipe, known, about):
    mine, n = of_case(known, 0), about["block"]["text_tokens"]
    velocity = reference.velocity_of(pipe, mine["latent_001"], known["block.t"], mine["hidden.cond"][:n], mine["pooled.cond"])
    out = {"block.velocity": reference.packed(velocity)}
    for call in about["transformer"]:
        out[f"{call['name']}.out"] = reference.velocity_of(pipe, mine[call["latent"]], known[f"{call['name']}.t"], mine["hidden.cond"],
                                                          mine["pooled.cond"], call["left_out"] or None)
    return out


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        for lane, prompt in lanes(case):
            encoded, _ = reference.encode(pipe, prompt or "")
            out |= {name: encoded[part] for part in ("hidden", "pooled") if (name := f"case{case['index']}.{part}.{lane}") in known}
        if case["kind"] == "image":
            pictures = {name.removeprefix("picture."): p.numpy() for name, p in of_case(known, case["index"]).items() if name.startswith("picture.")}
            out[f"case{case['index']}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about = load(folder, dtype), expect["blocks"]
    return blocks(pipe, dtype, known, about["block"]) | whole(pipe, known, about) | cases(pipe, known, expect)


def add_names(errors):
    """Gives each prompt the largest error of all prompts, because the ratio of largest to RMS error varies from 5.6
    to 13 between prompts."""
    texts = [error for name, error in errors.items() if name.startswith("hidden ")]
    for error in texts:
        error["max"] = max(text["max"] for text in texts)


def independent(name, known):
    """Returns the number of independent errors: rows of equal tokens are equal, padding in particular; zero rows
    have no error."""
    if ".hidden." not in name:
        return {}
    return {"n": int(torch.unique(known[name], dim=0).count_nonzero())}


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=independent, renamed={})
