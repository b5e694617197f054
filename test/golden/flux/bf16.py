"""What bf16 costs the reference on Flux.1's rings (../bf16.py)."""

import torch

from watch import Watch

from . import rings


class Forced:
    """Inside, modules compute on these inputs, in their own type, whatever they are called with."""

    def __init__(self, inputs):
        self.inputs, self.hooks = inputs, []

    def __enter__(self):
        for module, value in self.inputs:
            self.hooks.append(module.register_forward_pre_hook(
                lambda module, args, kwargs, value=value: value(next(module.parameters()).dtype, args, kwargs), with_kwargs=True))

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


def first(known, name):
    return lambda dtype, args, kwargs: ((known[name].to(dtype), *args[1:]), kwargs)


def block(known, name, text_tokens):
    """A block's hidden states, text first, and its conditioning."""
    def force(dtype, args, kwargs):
        value = known[f"{name}.in"].to(dtype)
        return args, kwargs | dict(encoder_hidden_states=value[:, :text_tokens], hidden_states=value[:, text_tokens:], temb=known["block.temb"].to(dtype))
    return force


@torch.no_grad()
def blocks(pipe, known, expect):
    """Each block on its ring's input; the whole forward on its own."""
    model, about, case = pipe.transformer, expect["blocks"]["block"], expect["cases"][0]
    dtype, case_rings, out = model.dtype, rings.of_case(known, 0), {}
    references, control = rings.given(case, case_rings)
    text = case_rings["hidden.cond"][None, :about["text_tokens"]].to(dtype)
    ids = rings.positions(pipe, case, case["references"], about["text_tokens"])
    told = [torch.tensor([case["guidance"]]) * 1000] if model.config.guidance_embeds else []
    joined = {"block.double": model.transformer_blocks[about["double"]], "block.single": model.single_transformer_blocks[about["single"]]}
    watched = {"embed.image": model.x_embedder, "embed.text": model.context_embedder, "block.temb": model.time_text_embed}
    texts = {}

    def keep(name):
        def hook(_module, _args, _kwargs, parts):
            texts[name] = torch.cat(parts, dim=1).clone()
        return hook

    def forward():
        with rings.exactly(model, known["block.t"] * 1000, *told):
            return model(hidden_states=rings.packed(pipe, [case_rings["latent_001"], *references], control).to(dtype), timestep=known["block.t"],
                         guidance=told[0] / 1000 if told else None, pooled_projections=case_rings["pooled.cond"][None].to(dtype),
                         encoder_hidden_states=text, txt_ids=ids[0], img_ids=torch.cat(ids[1:]), return_dict=False)[0]

    out["block.velocity"] = forward()
    inputs = [(module, block(known, name, about["text_tokens"])) for name, module in joined.items()]
    with Forced(inputs), Watch(watched) as watch:
        hooks = [module.register_forward_hook(keep(name), with_kwargs=True) for name, module in joined.items()]
        forward()
        for hook in hooks:
            hook.remove()
    out |= {f"{name}.out": value for name, value in texts.items()}
    out |= {"block.temb": watch.seen["block.temb.out"], "embed.image.out": watch.seen["embed.image.out"], "embed.text.out": watch.seen["embed.text.out"]}
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), known["block.temb"].to(dtype)))
    return out


@torch.no_grad()
def text_blocks(pipe, known, expect):
    clip, t5, about = pipe.text_encoder, pipe.text_encoder_2, expect["blocks"]
    layers = (clip.text_model if hasattr(clip, "text_model") else clip).encoder.layers
    modules = {"block.clip": layers[about["block.clip"]["layer"]], "block.t5": t5.encoder.block[about["block.t5"]["layer"]]}
    with Forced([(module, first(known, f"{name}.in")) for name, module in modules.items()]), Watch(modules) as watch:
        clip(input_ids=known["case0.ids.cond"].long()[None])
        t5(input_ids=known["case0.ids_2.cond"].long()[None, :about["block.t5"]["tokens"]])
    return {f"{name}.out": watch.seen[f"{name}.out"] for name in modules}


def everything(folder, dtype, known, expect):
    """Every ring that bf16 has a part in, computed in that type: texts by the pipeline, latents by its loop from their starts."""
    pipe, out = rings.load(folder), {}
    for part in (pipe.transformer, pipe.text_encoder, pipe.text_encoder_2):
        part.to(dtype)
    out |= blocks(pipe, known, expect)
    if "block.clip.in" in known:
        out |= text_blocks(pipe, known, expect)
    for case in expect["cases"]:
        prefix, texts = f"case{case['index']}", []
        for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
            if f"{prefix}.pooled.{lane}" not in known:
                continue
            values, _ = rings.encode(pipe, prompt, case["max_sequence_length"])
            texts.append((values["hidden"], values["pooled"]))
            out |= {f"{prefix}.{name}.{lane}": values[name] for name in ("hidden", "pooled") if f"{prefix}.{name}.{lane}" in known}
        if case["kind"] == "image":
            out[f"{prefix}.latent"] = torch.cat([rings.denoise(pipe, case, rings.of_case(known, case["index"]), texts, k) for k in range(case["batch"])])
    return out
