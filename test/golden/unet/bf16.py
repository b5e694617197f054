"""bf16 errors of the UNet pipelines' reference, for ../bf16.py.

Timesteps, add_time_ids, the pooled row, their embeddings, and latents between steps stay f32, as in Sluice; the VAE is
not measured.
"""

import types

import torch
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from flux.bf16 import disguise, independent
from watch import Watch

from . import reference_tensors as reference


def keep_conditioning(unet, dtype):
    """Runs timestep, add_time_ids and pooled text embeddings in f32; only the resnets' input is rounded."""
    given = {}

    def remember(_module, args, kwargs):
        given.update(t=torch.as_tensor(args[1] if len(args) > 1 else kwargs["timestep"]).reshape(-1), added=kwargs.get("added_cond_kwargs"))

    def vector(_module, args):
        numbers = unet.add_time_proj(given["added"]["time_ids"].float().flatten()).reshape(len(args[0]), -1)
        return (torch.cat([given["added"]["text_embeds"].float(), numbers], dim=-1),)

    unet.register_forward_pre_hook(remember, with_kwargs=True)
    unet.time_embedding.float().register_forward_pre_hook(
        lambda _module, args: (unet.time_proj(given["t"].float().expand(len(args[0]))).float(), *args[1:]))
    if hasattr(unet, "add_embedding"):
        unet.add_embedding.float().register_forward_pre_hook(vector)
    for module in unet.modules():
        if hasattr(module, "time_emb_proj"):
            module.time_emb_proj.register_forward_pre_hook(lambda _module, args: (args[0].to(dtype),))


def load(folder, dtype):
    pipe = reference.load(folder)
    for part in ["unet", *reference.encoders(pipe)]:
        disguise(getattr(pipe, part), dtype)
    # transformers looks up output recording by class, so the changed class is registered
    for part in reference.encoders(pipe):
        _CAN_RECORD_REGISTRY[getattr(pipe, part)] = getattr(pipe, part)._can_record_outputs
    keep_conditioning(pipe.unet, dtype)
    return pipe


@torch.no_grad()
def blocks(pipe, dtype, known, about):
    """Runs each UNet block on its input among the reference tensors; returns the outputs by reference tensor name."""
    unet, out = pipe.unet, {}
    text, temb = known["case0.hidden.cond"][None].to(dtype), known["block.temb"]
    for name, place in about.items():
        if name not in reference.watched(unet):
            continue
        module, given = unet.get_submodule(place["module"]), known[f"{name}.in"].to(dtype)
        if "resnet" in name:
            out[f"{name}.out"] = module(given, temb)
        elif "transformer" in name:
            out[f"{name}.out"] = module(given, encoder_hidden_states=text, return_dict=False)[0]
        elif name == "block.up":
            out[f"{name}.out"] = module(given, known[f"{name}.out"].shape[2:])
        elif name == "block.out":
            out[f"{name}.out"] = unet.conv_out(unet.conv_act(module(given)))
        else:
            out[f"{name}.out"] = module(given)
    return out


@torch.no_grad()
def text_blocks(pipe, dtype, known, about):
    out = {}
    for i, part in enumerate(reference.encoders(pipe)):
        name, encoder = f"block.clip_{i + 1}" if i else "block.clip", getattr(pipe, part)
        if name not in about:
            continue
        inner = encoder.text_model if hasattr(encoder, "text_model") else encoder
        module = inner.encoder.layers[about[name]["layer"]]
        hook = module.register_forward_pre_hook(
            lambda _module, args, kwargs, name=name: ((known[f"{name}.in"].to(dtype), *args[1:]), kwargs) if args
            else (args, {**kwargs, "hidden_states": known[f"{name}.in"].to(dtype)}), with_kwargs=True)
        with Watch({name: module}) as watch:
            encoder(input_ids=known["case0.ids.cond"].long()[None], output_hidden_states=True)
        hook.remove()
        out[f"{name}.out"] = watch.tensors[f"{name}.out"]
    return out


@torch.no_grad()
def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        prefix = f"case{case['index']}"
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" not in known or not known[f"{prefix}.hidden.{lane}"].any():
                continue
            encoded = reference.encode(pipe, case[text], negative=lane == "uncond")
            for name in ("hidden", "pooled"):
                if name in encoded:
                    out[f"{prefix}.{name}.{lane}"] = encoded[name]
        if case["kind"] == "image":
            pictures = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), pictures)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe = load(folder, dtype)
    texts = reference.of_case(known, 0)
    whole = {f"{call['name']}.out": reference.unet_call(pipe, texts, expect["cases"][0], known[f"{call['name']}.in"], known[f"{call['name']}.t"][0])
             for call in expect["unet"]}
    return blocks(pipe, dtype, known, expect["blocks"]) | whole | text_blocks(pipe, dtype, known, expect["blocks"]) | cases(pipe, known, expect)


def alike(name, known):
    """Returns the number of independent errors as flux/bf16.py does; here both encoders have equally many ids."""
    return independent(name, {k.replace("ids.", "ids_2."): v for k, v in known.items() if ".ids." in k} | {name: known[name]})


family = types.SimpleNamespace(everything=everything, add_names=lambda _errors: None, independent=alike, renamed={})
