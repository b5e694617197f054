"""bf16 errors of the Qwen-Image reference, for ../bf16.py.

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
        given["t"] = torch.cat([t, t * 0]) if transformer.zero_cond_t else t

    transformer.register_forward_pre_hook(remember, with_kwargs=True)
    transformer.time_text_embed.float().register_forward_pre_hook(lambda _module, args: (given["t"], args[1].float(), *args[2:]))
    transformer.time_text_embed.register_forward_hook(lambda _module, _args, out: out.to(dtype))


def load(folder, dtype):
    pipe = reference.load(folder)
    for model in (pipe.transformer, pipe.text_encoder):
        disguise(model, dtype)
    # transformers looks up output recording by class, so the changed class is registered
    _CAN_RECORD_REGISTRY[pipe.text_encoder] = pipe.text_encoder._can_record_outputs
    keep_conditioning(pipe.transformer, dtype)
    return pipe


def case_latents(known, case):
    return [known[f"case0.{reference.LATER}"], *reference.reference_latents(case, reference.of_case(known, 0))]


@torch.no_grad()
def blocks(pipe, dtype, known, case, about):
    model, temb, out = pipe.transformer, known["block.temb"].to(dtype), {}
    latents, n = case_latents(known, case), about["text_tokens"]
    rope = model.pos_embed(reference.shapes(latents), max_txt_seq_len=n, device=torch.device("cpu"))
    drawn = case["image_tokens"]
    for name in ("dual", "last"):
        rows = known[f"block.{name}.in"].to(dtype)
        index = torch.tensor([[0] * drawn + [1] * (rows.shape[1] - n - drawn)], dtype=torch.int) if model.zero_cond_t else None
        text, pictures = model.transformer_blocks[about[name]](
            hidden_states=rows[:, n:], encoder_hidden_states=rows[:, :n], encoder_hidden_states_mask=None, temb=temb, image_rotary_emb=rope,
            modulate_index=index)
        out[f"block.{name}.out"] = torch.cat([text, pictures], 1) if name == "dual" else pictures[:, :drawn]
    for name in ("block.final", "block.final_small"):
        out[f"{name}.out"] = model.proj_out(model.norm_out(known[f"{name}.in"].to(dtype), temb[:1]))
    out["embed.image.out"] = model.img_in(known["embed.image.in"].to(dtype))
    out["embed.text.out"] = model.txt_in(model.txt_norm(known["embed.text.in"].to(dtype)))
    out["block.velocity"] = pipe.transformer(hidden_states=reference.packed(pipe, latents), timestep=known["block.t"],
                                             encoder_hidden_states=known["case0.hidden.cond"][None, :n],
                                             img_shapes=reference.shapes(latents), return_dict=False)[0][:, :drawn]
    return out


def pictures_of(known, index):
    own = reference.of_case(known, index)
    return [Image.fromarray(own[name].numpy()) for name in sorted(own) if name.startswith("picture.reference")]


@torch.no_grad()
def text_blocks(pipe, dtype, known, case, about):
    """Runs a layer of the language model, and the recorded parts of the vision tower."""
    model = pipe.text_encoder.model
    modules = {"block.language": model.language_model.layers[about["block.language"]["layer"]]}
    if "block.tower" in about:
        modules |= {name: model.visual.blocks[about[name]["layer"]] for name in ("block.tower", "block.tower_full")}
        modules["tower.merger"] = model.visual.merger

    def put(_module, args, kwargs, name):
        value = known[f"{name}.in"].to(dtype)
        return ((value if name == "block.language" else value[0]), *args[1:]), kwargs

    hooks = [module.register_forward_pre_hook(lambda m, a, kw, name=name: put(m, a, kw, name), with_kwargs=True) for name, module in modules.items()]
    pictures = pictures_of(known, 0)
    out = {}
    with Watch(modules | {"tower.patches": model.visual.patch_embed}) as watch:
        if pictures:  # block inputs of the first image only: a block processes one image at a time
            seen = pipe.processor.image_processor(images=[next(reference.resized(pipe, pictures))[0]], return_tensors="pt")
            model.visual(seen["pixel_values"].to(dtype), seen["image_grid_thw"])
            out = {f"{name}.out": watch.tensors[f"{name}.out"][None] for name in modules if name != "block.language"}
            out["tower.patches.out"] = reference.walked(model.visual, seen["image_grid_thw"], watch.tensors["tower.patches.out"])
    for hook in hooks[1:]:
        hook.remove()
    with Watch({"block.language": modules["block.language"]}) as watch:
        reference.encode(pipe, case["prompt"], pictures, case["max_sequence_length"])
    hooks[0].remove()
    return out | {"block.language.out": watch.tensors["block.language.out"]}


def cases(pipe, known, expect):
    out = {}
    for case in expect["cases"]:
        prefix, pictures = f"case{case['index']}", pictures_of(known, case["index"])
        for lane, text in (("cond", "prompt"), ("uncond", "negative_prompt")):
            if f"{prefix}.hidden.{lane}" in known:
                out[f"{prefix}.hidden.{lane}"] = reference.encode(pipe, case[text], pictures, case["max_sequence_length"])[0]["hidden"]
        if pictures:
            out |= {f"{prefix}.{name}": rows for name, rows in reference.look(pipe, pictures).items() if name.startswith("seen.")}
        if case["kind"] == "image":
            given = {k.removeprefix(f"{prefix}.picture."): v.numpy() for k, v in known.items() if k.startswith(f"{prefix}.picture.")}
            out[f"{prefix}.latent"] = reference.run_case(pipe, dict(case), given)["latent"]
    return out


def everything(folder, dtype, known, expect):
    pipe, about, first = load(folder, dtype), expect["blocks"], expect["cases"][0]
    return {**blocks(pipe, dtype, known, first, about["block"]), **text_blocks(pipe, dtype, known, first, about), **cases(pipe, known, expect)}


def add_names(errors):
    """Adds no entries: the C tests use no additional names."""


family = types.SimpleNamespace(everything=everything, add_names=add_names, independent=lambda _name, _known: {}, renamed={})
