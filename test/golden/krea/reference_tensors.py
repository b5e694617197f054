"""Runs the Krea 2 reference and records inputs and outputs as reference tensors."""

import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline
from diffusers.pipelines.krea2.pipeline_krea2 import calculate_shift
from transformers import AutoTokenizer, Qwen3VLModel

import runs
from inputs import of_case
from runs import exactly, unpack
from watch import Watch

SCHEDULE_STEPS = [1, 2, 8, 28]
SCHEDULE_TOKENS = [1, 256, 1521, 4096, 6889]
TOKENS_MAX, DROPPED, SUFFIX = 512, 34, 5  # rows of prompt_embeds; tokens of the template before and after the prompt
BLOCK_TEXT = 20  # number of leading text rows in block reference tensors


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    config = diffusers.DiffusionPipeline.load_config(folder)
    pipe = Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        vae=diffusers.AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae", dtype=torch.float32),
        text_encoder=Qwen3VLModel.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(os.path.join(folder, "tokenizer")),
        transformer=diffusers.Krea2Transformer2DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32),
        text_encoder_select_layers=config["text_encoder_select_layers"], is_distilled=config["is_distilled"])
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    pipe._unpack_latents = lambda packed, height, width, _factor=None: Krea2Pipeline._unpack_latents(pipe, packed, height, width)
    assert (pipe.prompt_template_encode_start_idx, pipe.prompt_template_encode_num_suffix_tokens) == (DROPPED, SUFFIX)
    return pipe


@torch.no_grad()
def encode(pipe, prompt, rows=TOKENS_MAX):
    """Returns the reference tensors of one prompt by the pipeline's own code, without padding, and its number of
    tokens before truncation."""
    given = {}
    keep = pipe.text_encoder.register_forward_pre_hook(
        lambda _m, _a, kw: given.update(ids=kw["input_ids"][0].int().clone(), mask=kw["attention_mask"][0].clone()), with_kwargs=True)
    hidden, mask = pipe.encode_prompt(prompt, max_sequence_length=rows)
    keep.remove()
    uncut = len(pipe.tokenizer(pipe.prompt_template_encode_prefix + prompt).input_ids) + SUFFIX
    return dict(ids=given["ids"][given["mask"]], hidden=hidden[0][mask[0]].flatten(1)), uncut


def _call(pipe, case, _pictures, generator):
    return pipe, dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], guidance_scale=case["cfg_scale"] - 1, height=case["height"],
        width=case["width"], num_inference_steps=case["steps"], generator=generator, max_sequence_length=TOKENS_MAX)


def run_case(pipe, case):
    return runs.run_case(pipe, case, {}, _call, None)[0]


def text_taps(pipe, rows):
    """Returns the transformer's text input [1, T, taps, hidden] of rows [T, taps * hidden]."""
    return rows.reshape(1, len(rows), len(pipe.text_encoder_select_layers), -1)


def positions(latent, text_tokens):
    return Krea2Pipeline.prepare_position_ids(text_tokens, latent.shape[2] // 2, latent.shape[3] // 2, "cpu")


@torch.no_grad()
def velocity_of(pipe, latent, t, text):
    """Returns the packed velocity [1, tokens, 4 C]; t: timestep / 1000 in f32; text: [T, taps * hidden]."""
    dtype = pipe.transformer.dtype
    with exactly(pipe.transformer, t):
        return pipe.transformer(
            hidden_states=pipe._pack_latents(latent, 1, *latent.shape[1:]).to(dtype), encoder_hidden_states=text_taps(pipe, text).to(dtype),
            timestep=t, position_ids=positions(latent, len(text)), return_dict=False)[0]


@torch.no_grad()
def denoise(pipe, case, known, text, steps=None):
    """The pipeline's denoising loop without guidance from the reference tensors' start. Latents between steps and timesteps are
    f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    sigmas, latent = known["sigmas"], known["latent_000"][:1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocity = unpack(pipe, velocity_of(pipe, latent, t[None] / 1000, text), case).to(wide)
        latent = latent + (sigmas[i + 1] - sigmas[i]) * velocity
    return latent


def tap_major(rows):
    """Reorders rows of text fusion [T, taps, C] to [taps * T, C]."""
    return rows.transpose(0, 1).flatten(0, 1)


@torch.no_grad()
def block_references(pipe, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step."""
    model, fusion, out, known = pipe.transformer, pipe.transformer.text_fusion, {}, of_case(references, 0)
    latent, text, t = known["latent_001"], known["hidden.cond"][:BLOCK_TEXT], known["timesteps"][1:2] / 1000
    about = dict(text_tokens=BLOCK_TEXT, layer=len(model.transformer_blocks) - 1, taps=len(fusion.layerwise_blocks) - 1,
                 refiner=len(fusion.refiner_blocks) - 1)
    with Watch({
            "block.temb": model.time_embed, "block.modulation": model.time_mod_proj, "block.taps": fusion.layerwise_blocks[about["taps"]],
            "block.fused": fusion.refiner_blocks[0], "block.refiner": fusion.refiner_blocks[about["refiner"]], "embed.text": model.txt_in,
            "embed.image": model.img_in, "block.layer": model.transformer_blocks[about["layer"]], "block.final_linear": model.final_layer.linear}) as watch:
        velocity = velocity_of(pipe, latent, t, text)
    seen = watch.tensors
    temb = seen["block.temb.out"]
    out |= {"block.t": t, "block.temb": temb[0], "block.modulation": seen["block.modulation.out"][0], "block.velocity": velocity}
    for name in ("block.taps", "block.refiner", "embed.text", "block.layer"):
        out[f"{name}.in"], out[f"{name}.out"] = seen[f"{name}.in"], seen[f"{name}.out"]
    for name in ("block.taps.in", "block.taps.out"):
        out[name] = tap_major(out[name])
    # the input of the projector is the output of the last block over the taps
    out["block.fused"] = seen["block.fused.in"][0]
    out["embed.image.out"] = seen["embed.image.out"]
    rows = seen["block.layer.out"][:, BLOCK_TEXT:]
    # small rows: only these reveal a wrong epsilon of the norms
    for name, part in (("block.final", rows), ("block.final_small", rows[:, :8] * 0.01)):
        out[f"{name}.in"], out[f"{name}.out"] = part.clone(), model.final_layer(part, temb)
    out["embed.small_text.in"] = out["embed.text.in"][:, :8] * 0.01
    out["embed.small_text.out"] = model.txt_in(out["embed.small_text.in"])
    ids = positions(latent, BLOCK_TEXT)
    out["rope"], out["rope.ids"] = torch.stack([r[:, ::2] for r in model.rotary_emb(ids)], dim=-1), ids.to(torch.int32)
    return out, {"block": about}


def schedule_references(pipe):
    """Returns the schedule alone, for several lengths and token counts."""
    out, config = {}, pipe.scheduler.config
    for steps in SCHEDULE_STEPS:
        for tokens in SCHEDULE_TOKENS:
            mu = calculate_shift(tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
            fresh = FlowMatchEulerDiscreteScheduler.from_config(config)
            fresh.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=1.15 if pipe.config.is_distilled else mu)
            name = f"schedule_tokens.{steps}.{tokens}"
            out[f"{name}.sigmas"], out[f"{name}.timesteps"] = fresh.sigmas.clone(), fresh.timesteps.clone()
    return out
