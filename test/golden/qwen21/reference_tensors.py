"""Runs the Qwen-Image-2.1 reference and records inputs and outputs as reference tensors."""

import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache
from diffusers.pipelines.qwenimage21.pipeline_qwenimage21 import calculate_dimensions, calculate_shift
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLForConditionalGeneration, Qwen3VLProcessor, Qwen3VLVideoProcessor

import runs
from inputs import of_case
from runs import exactly, unpack
from watch import Watch

from . import folder as layout
from . import specs

SCHEDULE_STEPS = [2, 4, 7, 20, 40, 50]
SCHEDULE_TOKENS = [1, 256, 1024, 4096, 8192, 16384]

LATER = "latent_001"  # input of block reference tensors: case 0's latent after one step


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    processor = os.path.join(folder, "processor")
    tokenizer = AutoTokenizer.from_pretrained(processor)
    pipe = diffusers.QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        vae=diffusers.AutoencoderKLQwenImage21.from_pretrained(folder, subfolder="vae", dtype=torch.float32),
        text_encoder=Qwen3VLForConditionalGeneration.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
        processor=Qwen3VLProcessor(Qwen2VLImageProcessor.from_pretrained(processor), tokenizer, Qwen3VLVideoProcessor(),
                                   chat_template=layout.CHAT_TEMPLATE),
        transformer=diffusers.QwenImage21Transformer2DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32),
        sample_sigmas=diffusers.DiffusionPipeline.load_config(folder)["sample_sigmas"])
    pipe.set_progress_bar_config(disable=True)
    assert pipe._drop_idx == 14
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    return pipe


def resized(pipe, pictures):
    """Returns the images as the pipeline resizes them, RGBA."""
    out = []
    for picture in pictures:
        width, height, _ = calculate_dimensions(specs.RESOLUTION**2, picture.width / picture.height)
        out.append(pipe.image_processor.resize(picture.convert("RGBA"), height, width))
    return out


@torch.no_grad()
def encode(pipe, prompt, pictures=()):
    """Returns the reference tensors of one prompt by the pipeline's own code."""
    given = {}
    keep = pipe.text_encoder.register_forward_pre_hook(lambda _m, _a, kw: given.update(ids=kw["input_ids"][0].int().clone()), with_kwargs=True)
    hidden, mask, pads = pipe.encode_prompt(prompt, image=resized(pipe, pictures) or None)
    keep.remove()
    assert mask is None and len(given["ids"]) == pipe._drop_idx + len(hidden[0])
    assert int(pads.sum()) == sum(p.width // 32 * (p.height // 32) for p in resized(pipe, pictures))
    return dict(ids=given["ids"], hidden=hidden[0])


@torch.no_grad()
def look(pipe, pictures):
    """Returns the vision tower's inputs for each image (u8 [H, W, 3], over white) and outputs in raster order: rows of
    the merger, followed by those of each deepstack merger."""
    out = {}
    for i, picture in enumerate(resized(pipe, pictures)):
        white = Image.new("RGB", picture.size, (255, 255, 255))
        white.paste(picture, mask=picture.getchannel("A"))
        seen = pipe.processor.image_processor(images=[white], return_tensors="pt")
        assert seen["image_grid_thw"][0].tolist() == [1, picture.height // 16, picture.width // 16]
        values = pipe.text_encoder.model.visual(seen["pixel_values"], seen["image_grid_thw"])
        out[f"pixels.reference_{i:03}"] = torch.from_numpy(np.array(white))
        out[f"seen.reference_{i:03}"] = torch.cat([values.pooler_output, *values.deepstack_features], dim=-1)
    return out


def latents_format(pipe):
    config = pipe.vae.config
    return [torch.tensor(v).view(1, config.z_dim, 1, 1, 1) for v in (config.latents_mean, config.latents_std)]


def _call(pipe, case, pictures, generator):
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"] if case["cfg_scale"] > 1 else None, true_cfg_scale=case["cfg_scale"],
        height=case["height"], width=case["width"], num_inference_steps=case["steps"], generator=generator, output_resolution=specs.RESOLUTION)
    return pipe, common | (dict(image=[pictures[name] for name in sorted(pictures)]) if pictures else {})


@torch.no_grad()
def run_case(pipe, case, pictures):
    mean, deviation = latents_format(pipe)
    references, images = runs.run_case(pipe, case, pictures, _call, lambda z: (z - mean) / deviation)
    case["reference_grids"] = [[z.shape[-1], z.shape[-2]] for z in images[0].encoded]
    return references


def packed(latents):
    return torch.cat([z.flatten(2).transpose(1, 2) for z in latents], dim=1)


def shapes(latents):
    return [[(1, *z.shape[2:]) for z in latents]]


def reference_latents(case, known):
    """Returns the latents [1, C, h, w] of references, which precede the image's latent."""
    return [known[f"encoded.reference_{i:03}"][:1] for i in range(len(case["references"]))]


def image_mask(pipe, ids, drawn):
    """Returns img_mask [1, T]: true at the prompt's image tokens, then one true per 2x2 latent pixels of the generated image."""
    pads = ids[pipe._drop_idx:] == pipe._img_token_id
    return torch.cat([pads, torch.ones(drawn // 4, dtype=torch.bool)])[None]


@torch.no_grad()
def velocity_of(pipe, latents, t, hidden, ids, cache=None):
    """Returns the velocity of all tokens; the generated image's latent is the last one. t: timestep / 1000 in f32."""
    dtype = pipe.transformer.dtype
    with exactly(pipe.transformer, torch.cat([t, t * 0])):
        return pipe.transformer(
            hidden_states=packed(latents).to(dtype), timestep=t, encoder_hidden_states=hidden[None].to(dtype), img_shapes=shapes(latents),
            img_mask=image_mask(pipe, ids, latents[-1][0, 0].numel()), kv_cache=cache, kv_cache_mode="extract" if cache else None, return_dict=False)[0]


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop from the reference tensors' start, without the cache of keys and values. texts: (hidden states, ids) for
    each lane. Latents between steps and timesteps are f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    references, sigmas, latent = reference_latents(case, known), known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocities = [velocity_of(pipe, [*references, latent], t[None] / 1000, *text)[:, -case["image_tokens"]:].to(wide) for text in texts]
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
        latent = latent + (sigmas[i + 1] - sigmas[i]) * unpack(pipe, v, case)
    return latent


def positions(pipe, ids, latents):
    """Returns i32 [tokens, 3]: frame, row and column of each token of the sequence."""
    rows, at, number, pads = [], 0, 0, (ids[pipe._drop_idx:] == pipe._img_token_id).tolist()
    for z in latents:
        h, w = z.shape[2:]
        while at < len(pads) and not pads[at]:
            rows.append([number] * 3)
            at, number = at + 1, number + 1
        rows += [[number, y - (h - h // 2), x - (w - w // 2)] for y in range(h) for x in range(w)]
        at, number = at + h * w // 4, number + max(h, w)
    return torch.tensor(rows, dtype=torch.int32)


@torch.no_grad()
def block_references(pipe, case, references):
    """Records the last two blocks in a complete forward pass, after case 0's first step."""
    model, known = pipe.transformer, of_case(references, 0)
    latents = [*reference_latents(case, known), known[LATER]]
    ids, t = known["ids.cond"], known["timesteps"][1:2] / 1000
    last, drawn, cache = len(model.transformer_blocks) - 1, case["image_tokens"], QwenImage21KVCache(len(model.transformer_blocks))
    modules = {"block.first": model.transformer_blocks[0], "block.layer": model.transformer_blocks[last - 1], "block.last": model.transformer_blocks[last],
               "block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.img_in, "embed.text": model.txt_in,
               "block.condition": model.time_text_embed, "block.modulated": model.modulation}
    kept = {}
    hook = model.pos_embed.register_forward_hook(lambda _m, _a, result: kept.update(rope=result))
    with Watch(modules) as watch:
        velocity = velocity_of(pipe, latents, t, known["hidden.cond"], ids, cache)
    hook.remove()
    seen, temb, prefix = watch.tensors, watch.tensors["block.condition.out"], velocity.shape[1] - drawn
    out = {name: seen[name] for name in ("block.layer.in", "block.layer.out", "block.last.in", "embed.image.in", "embed.image.out",
                                         "embed.text.in", "embed.text.out")}
    scale1, gate1, scale2, gate2 = seen["block.modulated.out"].chunk(4, dim=-1)
    out |= {"block.t": t, "block.temb": temb, "block.modulation": torch.cat([scale1, gate1.tanh(), scale2, gate2.tanh()], -1),
            "block.final_scale": model.norm_out.linear(torch.nn.functional.silu(temb[:1])), "block.velocity": velocity[:, -drawn:],
            "block.sequence": seen["block.first.in"], "block.last.out": seen["block.last.out"][:, -drawn:],
            "block.layer.keys": cache.get_layer(last - 1).k[0].flatten(1), "block.layer.values": cache.get_layer(last - 1).v[0].flatten(1)}
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"][:, -drawn:], seen["block.final.out"][:, -drawn:]
    small = seen["block.norm_out.in"][:, -8:] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, temb[:1]))
    out["rope"], out["rope.ids"] = torch.view_as_real(kept["rope"]), positions(pipe, ids, latents)
    check_rope(model, out)
    return out, {"block": dict(layer=last - 1, last=last, prefix=prefix, text_tokens=len(known["hidden.cond"]), drop=pipe._drop_idx)}


def check_rope(model, out):
    """Checks that the rope table corresponds to these positions."""
    angles = torch.cat([axis[:, None] / 10000 ** (torch.arange(0, d, 2) / d) for axis, d in
                        zip(out["rope.ids"].double().unbind(-1), model.pos_embed.axes_dim)], dim=-1)
    assert torch.allclose(torch.stack([angles.cos(), angles.sin()], dim=-1), out["rope"].double(), atol=1e-4)


def schedule_references(pipe):
    """Returns the schedule alone, for several lengths and token counts."""
    out, config = {}, pipe.scheduler.config
    for steps in SCHEDULE_STEPS:
        for tokens in SCHEDULE_TOKENS:
            mu = calculate_shift(tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
            fresh = FlowMatchEulerDiscreteScheduler.from_config(config)
            fresh.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
            name = f"schedule_tokens.{steps}.{tokens}"
            out[f"{name}.sigmas"], out[f"{name}.timesteps"] = fresh.sigmas.clone(), fresh.timesteps.clone()
    return out
