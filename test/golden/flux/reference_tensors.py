"""Runs the Flux.1 reference and records inputs and outputs as reference tensors."""

import contextlib
import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxImg2ImgPipeline, FluxPipeline
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from PIL import Image

import runs
from inputs import of_case
from runs import exactly, unpack
from watch import Watch

from . import redux

SCHEDULE_STEPS = [1, 2, 4, 7, 20, 28, 50]
SCHEDULE_TOKENS = [1, 117, 256, 1024, 1521, 4096, 6032]
SCHEDULE_SHIFTS = [1.0, 3.0]

BLOCK_TEXT = 24  # number of leading text tokens in block reference tensors


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    name = diffusers.DiffusionPipeline.load_config(folder)["_class_name"]
    pipe = getattr(diffusers, name).from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.text_encoder_2, pipe.vae):
        model.requires_grad_(False).eval()
    pipe.redux = redux.load(os.path.join(os.path.dirname(folder), "redux"), pipe)
    return pipe


@torch.no_grad()
def encode(pipe, prompt, tokens_max):
    """Returns the reference tensors of one prompt, padding included, by the pipeline's own code."""
    hidden, pooled, _ = pipe.encode_prompt(prompt, max_sequence_length=tokens_max)
    ids = [t(prompt, padding="max_length", max_length=n, truncation=True).input_ids for t, n in ((pipe.tokenizer, 77), (pipe.tokenizer_2, tokens_max))]
    assert hidden.shape[1] == len(ids[1]) == tokens_max and len(ids[0]) == 77
    uncut = [len(t(prompt).input_ids) for t in (pipe.tokenizer, pipe.tokenizer_2)]
    return dict(ids=torch.tensor(ids[0], dtype=torch.int32), ids_2=torch.tensor(ids[1], dtype=torch.int32), hidden=hidden[0], pooled=pooled[0]), uncut


def img2img(pipe):
    starting = FluxImg2ImgPipeline(**pipe.components)
    starting.set_progress_bar_config(disable=True)
    return starting


def _call(pipe, case, pictures, generator):
    """Returns the pipeline for the case and its arguments."""
    common = dict(
        prompt=case["prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
        guidance_scale=case["guidance"] or 0.0, generator=generator, max_sequence_length=case["max_sequence_length"])
    if case.get("redux"):
        hidden, pooled = redux.encode(pipe, case, pictures)
        common |= dict(prompt=None, prompt_embeds=hidden, pooled_prompt_embeds=pooled)
    if not case["mask"]:
        common |= dict(negative_prompt=case["negative_prompt"] if case["cfg_scale"] > 1 else None, true_cfg_scale=case["cfg_scale"])
    if case["mask"]:
        return pipe, common | dict(image=pictures["init"], mask_image=pictures["mask"], strength=case["strength"])
    if case["init"]:
        return img2img(pipe), common | dict(image=pictures["init"], strength=case["strength"])
    if case["references"]:
        return pipe, common | dict(image=pictures["reference_000"], _auto_resize=False, max_area=case["width"] * case["height"])
    if isinstance(pipe, FluxPipeline):
        return pipe, common
    return pipe, common | dict(max_area=case["width"] * case["height"])


@contextlib.contextmanager
def _more_references(pipe, pictures):
    """Adds reference images after the pipeline's only one; each has the next number on the first position axis."""
    prepare = pipe.prepare_latents

    def prepared(image, batch_size, channels, height, width, dtype, device, generator=None, latents=None):
        latents, packed, ids, image_ids = prepare(image, batch_size, channels, height, width, dtype, device, generator, latents)
        for n, name in enumerate(sorted(pictures)[1:], 2):
            more = pipe.image_processor.preprocess(Image.fromarray(pictures[name]))
            _, further, _, further_ids = prepare(more, batch_size, channels, height, width, dtype, device, None, latents)
            further_ids[..., 0] = n
            packed, image_ids = torch.cat([packed, further], dim=1), torch.cat([image_ids, further_ids])
        return latents, packed, ids, image_ids

    if len(pictures) > 1:
        pipe.prepare_latents = prepared
    yield
    pipe.prepare_latents = prepare


@torch.no_grad()
def run_case(pipe, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix (see ../runs.py)."""
    config = pipe.vae.config
    with _more_references(pipe, pictures if case["references"] else {}):
        references, images = runs.run_case(pipe, case, pictures, _call, lambda z: (z - config.shift_factor) * config.scaling_factor)
    if case["mask"]:
        # as [C, h, w]: the masked image's latent, then one channel per pixel under a latent pixel
        mask = unpack(pipe, images[0].inputs[0][..., 8 * case["channels"]:], case)
        references["control"] = torch.cat([images[0].encoded[1], mask], dim=1)[0]
    return references


def packed(pipe, latents, control=None):
    """Packs latents [1, C, h, w] one after another as the transformer's input; Fill's control channels are appended
    to the first latent."""
    rows = [pipe._pack_latents(z, 1, *z.shape[1:]) for z in latents]
    if control is not None:
        channels = latents[0].shape[1]
        beside = [pipe._pack_latents(c[None], 1, *c.shape) for c in (control[:channels], control[channels:])]
        rows[0] = torch.cat([rows[0], *beside], dim=2)
    return torch.cat(rows, dim=1)


def positions(pipe, case, references, text_tokens):
    """Position ids of text, image and references."""
    def of_picture(axis, columns, rows):
        ids = pipe._prepare_latent_image_ids(1, rows, columns, "cpu", torch.float32)
        ids[:, 0] = axis
        return ids

    grids = [(case["latent_width"] // 2, case["latent_height"] // 2), *references]
    return [torch.zeros(text_tokens, 3)] + [of_picture(n, *grid) for n, grid in enumerate(grids)]


def conditioning_latents(case, known, image=0):
    """Returns latents of references and Fill's control channels for an image's latent [1, C, h, w]."""
    references = [known[f"encoded.reference_{i:03}"][:1] for i in range(len(case["references"]))]
    control = None
    if "control" in known:  # control channels of image 0, which all images share
        channels = case["channels"]
        control = torch.cat([known["encoded.masked"][image], known["control"][channels:]])
    return references, control


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop from the reference tensors' start; texts: (hidden, pooled) for each lane.  Latents between steps,
    timesteps and guidance are f32 (f64) whatever the transformer's dtype."""
    model, dtype = pipe.transformer, pipe.transformer.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    references, control = conditioning_latents(case, known, image)
    sigmas, latent = known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    ids = positions(pipe, case, case["references"], texts[0][0].shape[0])
    guidance = [torch.tensor([case["guidance"]]) * 1000] if model.config.guidance_embeds else []
    for i, t in enumerate(known["timesteps"][:steps]):
        rows = packed(pipe, [latent, *references], control).to(dtype)
        velocities = []
        for hidden, pooled in texts:
            with exactly(model, t[None] / 1000 * 1000, *guidance):
                velocity = model(hidden_states=rows, timestep=t[None] / 1000, guidance=guidance[0] / 1000 if guidance else None,
                                 pooled_projections=pooled[None].to(dtype), encoder_hidden_states=hidden[None].to(dtype),
                                 txt_ids=ids[0], img_ids=torch.cat(ids[1:]), return_dict=False)[0]
            velocities.append(unpack(pipe, velocity[:, :case["image_tokens"]], case).to(wide))
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
        latent = latent + (sigmas[i + 1] - sigmas[i]) * v
    return latent


@torch.no_grad()
def block_references(pipe, case, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step, with the first text
    tokens."""
    model, out, about = pipe.transformer, {}, {}
    known = of_case(references, 0)
    text = known["hidden.cond"][None, :BLOCK_TEXT]
    references, control = conditioning_latents(case, known)
    ids = positions(pipe, case, case["references"], BLOCK_TEXT)
    t = known["timesteps"][1:2] / 1000
    guidance = torch.tensor([case["guidance"]]) if model.config.guidance_embeds else None
    double, single = len(model.transformer_blocks) - 1, 1 if len(model.single_transformer_blocks) > 1 else 0
    blocks = {"block.double": model.transformer_blocks[double], "block.single": model.single_transformer_blocks[single]}
    with Watch(blocks | {"block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.x_embedder,
                         "embed.text": model.context_embedder, "block.temb": model.time_text_embed}) as watch:
        texts = {}

        def keep_text(name):
            def hook(_module, _args, kwargs, out):
                texts[f"{name}.in"], texts[f"{name}.out"] = kwargs["encoder_hidden_states"].clone(), out[0].clone()
                texts[f"{name}.image"] = out[1].clone()
            return hook

        hooks = [block.register_forward_hook(keep_text(name), with_kwargs=True) for name, block in blocks.items()]
        velocity = model(hidden_states=packed(pipe, [known["latent_001"], *references], control), timestep=t, guidance=guidance,
                         pooled_projections=known["pooled.cond"][None], encoder_hidden_states=text, txt_ids=ids[0],
                         img_ids=torch.cat(ids[1:]), return_dict=False)[0]
        for hook in hooks:
            hook.remove()
    seen = watch.tensors
    # modules return (text, image); reference tensors join both, text first
    for name in blocks:
        out[f"{name}.in"] = torch.cat([texts[f"{name}.in"], seen[f"{name}.in"]], 1)
        out[f"{name}.out"] = torch.cat([texts[f"{name}.out"], texts[f"{name}.image"]], 1)
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, seen["block.temb.out"]))
    out |= {k: v for k, v in seen.items() if k.startswith("embed.")}
    out["block.temb"], out["block.t"], out["block.velocity"] = seen["block.temb.out"], t, velocity
    rope = model.pos_embed(torch.cat(ids))
    out["rope"], out["rope.ids"] = torch.stack([r[:, ::2] for r in rope], dim=-1), torch.cat(ids).to(torch.int32)
    about["block"] = dict(text_tokens=BLOCK_TEXT, double=double, single=single, guidance=case["guidance"])
    return out, about


@torch.no_grad()
def text_references(pipe, references):
    """Records a middle layer of both text encoders, and T5's distance bias."""
    clip, t5, out, about = pipe.text_encoder, pipe.text_encoder_2, {}, {}
    layers = (clip.text_model if hasattr(clip, "text_model") else clip).encoder.layers
    i, j = (len(layers) - 1) // 2, len(t5.encoder.block) // 2
    with Watch({"block.clip": layers[i], "block.t5": t5.encoder.block[j]}) as watch:
        embedded = clip(input_ids=references["case0.ids.cond"].long()[None], output_hidden_states=True).hidden_states[0]
        # runs on the first tokens only, as layers accept any length
        t5(input_ids=references["case0.ids_2.cond"].long()[None, :2 * BLOCK_TEXT])
    out.update(watch.tensors)
    out["clip.embedding"] = embedded[0]
    out["t5.embedding"] = t5.shared(references["case0.ids_2.cond"].long())
    bias = t5.encoder.block[0].layer[0].SelfAttention.compute_bias(512, 512)[0]
    # by distance (key minus query), starting at -511
    out["t5.distance_bias"] = torch.cat([bias[:, -1, :-1], bias[:, 0, :]], dim=1)
    out["t5.buckets"] = t5.encoder.block[0].layer[0].SelfAttention._relative_position_bucket(torch.arange(-1023, 1024)).to(torch.int32)
    about["block.clip"], about["block.t5"] = dict(layer=i), dict(layer=j, tokens=2 * BLOCK_TEXT)
    return out, about


def schedule_references(spec):
    """Returns the schedule alone: for several lengths and token counts if it is dynamic, for two shifts if not."""
    out = {}

    def keep(name, steps, mu=None, **settings):
        scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, **settings)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
        out[f"{name}.sigmas"], out[f"{name}.timesteps"] = scheduler.sigmas.clone(), scheduler.timesteps.clone()

    for steps in SCHEDULE_STEPS:
        if spec.form["dynamic_shift"]:
            for tokens in SCHEDULE_TOKENS:
                keep(f"schedule_tokens.{steps}.{tokens}", steps, mu=calculate_shift(tokens, 256, 4096, 0.5, 1.15), use_dynamic_shifting=True)
        else:
            for shift in SCHEDULE_SHIFTS:
                keep(f"schedule.{steps}.{shift:g}", steps, shift=shift)
    return out
