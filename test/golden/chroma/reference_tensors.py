"""Runs the Chroma reference and records inputs and outputs as reference tensors."""

import numpy as np
import torch
from diffusers import ChromaImg2ImgPipeline, ChromaPipeline, FlowMatchEulerDiscreteScheduler

import runs
from inputs import of_case
from runs import unpack
from watch import Watch

SCHEDULE_STEPS = [1, 7, 16, 35]
SCHEDULE_SHIFTS = [1.0, 3.0]

BLOCK_TEXT = 9  # number of leading text tokens in block reference tensors


def mask_keys(pipe):
    """Makes the attention mask boolean. diffusers 0.42.1 passes ones and zeros as floats, which attention adds to the
    scores: nothing is masked (huggingface/diffusers issues 12116 and 13619)."""
    prepare = pipe._prepare_attention_mask
    pipe._prepare_attention_mask = lambda **kwargs: None if kwargs["attention_mask"] is None else prepare(**kwargs).bool()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    pipe = mask_keys(ChromaPipeline.from_pretrained(folder, dtype=torch.float32))
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    return pipe


@torch.no_grad()
def encode(pipe, prompt, tokens_max):
    """Returns the reference tensors of one prompt by the pipeline's own code, and the number of tokens of the uncut
    prompt. Only rows that the attention mask selects: the tokens and, if the prompt is shorter than tokens_max, one padding row."""
    hidden, _, mask, *_ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=tokens_max)
    ids = pipe.tokenizer(prompt, padding="max_length", max_length=tokens_max, truncation=True).input_ids
    rows, uncut = int(mask.sum()), len(pipe.tokenizer(prompt).input_ids)
    assert mask[0, :rows].all() and rows == min(uncut + 1, tokens_max)
    return dict(ids=torch.tensor(ids[:rows], dtype=torch.int32), hidden=hidden[0, :rows]), uncut


def _call(pipe, case, pictures, generator):
    """Returns the pipeline for the case and its arguments."""
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"],
        num_inference_steps=case["steps"], guidance_scale=case["cfg_scale"], generator=generator,
        max_sequence_length=case["max_sequence_length"])
    if not case["init"]:
        return pipe, common
    components = {k: v for k, v in pipe.components.items() if v is not None}
    return mask_keys(ChromaImg2ImgPipeline(**components)), common | dict(image=pictures["init"], strength=case["strength"])


def run_case(pipe, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix (see ../runs.py)."""
    config = pipe.vae.config
    return runs.run_case(pipe, case, pictures, _call, lambda z: (z - config.shift_factor) * config.scaling_factor)[0]


def packed(pipe, latent):
    return pipe._pack_latents(latent, 1, *latent.shape[1:])


def positions(pipe, case, text_tokens):
    """Position ids of text and image."""
    image = pipe._prepare_latent_image_ids(1, case["latent_height"] // 2, case["latent_width"] // 2, "cpu", torch.float32)
    return torch.zeros(text_tokens, 3), image


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop from the reference tensors' start, over the unmasked rows of the texts of each lane. Latents
    between steps are f32 (f64) whatever the transformer's dtype."""
    model, dtype = pipe.transformer, pipe.transformer.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sigmas, latent = known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocities = []
        for hidden in texts:
            text_ids, image_ids = positions(pipe, case, len(hidden))
            velocity = model(hidden_states=packed(pipe, latent).to(dtype), timestep=t[None] / 1000, encoder_hidden_states=hidden[None].to(dtype),
                             txt_ids=text_ids, img_ids=image_ids, return_dict=False)[0]
            velocities.append(unpack(pipe, velocity, case).to(wide))
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
        latent = latent + (sigmas[i + 1] - sigmas[i]) * v
    return latent


@torch.no_grad()
def block_references(pipe, case, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step, with the first text
    tokens."""
    model, out, texts = pipe.transformer, {}, {}
    known = of_case(references, 0)
    ids = positions(pipe, case, BLOCK_TEXT)
    t = known["timesteps"][1:2] / 1000
    double, single = len(model.transformer_blocks) - 1, 1 if len(model.single_transformer_blocks) > 1 else 0

    def keep_text(_module, _args, kwargs, out):
        texts["in"], texts["out"], texts["image"] = kwargs["encoder_hidden_states"].clone(), out[0].clone(), out[1].clone()

    hook = model.transformer_blocks[double].register_forward_hook(keep_text, with_kwargs=True)
    with Watch({"block.double": model.transformer_blocks[double], "block.single": model.single_transformer_blocks[single],
                "block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.x_embedder,
                "embed.text": model.context_embedder, "block.rows": model.distilled_guidance_layer}) as watch:
        velocity = model(hidden_states=packed(pipe, known["latent_001"]), timestep=t, encoder_hidden_states=known["hidden.cond"][None, :BLOCK_TEXT],
                         txt_ids=ids[0], img_ids=ids[1], return_dict=False)[0]
    hook.remove()
    seen = watch.tensors
    # double blocks return (text, image); reference tensors join both, text first
    out["block.double.in"] = torch.cat([texts["in"], seen["block.double.in"]], 1)
    out["block.double.out"] = torch.cat([texts["out"], texts["image"]], 1)
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"] = small
    out["block.final_small.out"] = model.proj_out(model.norm_out(small, seen["block.rows.out"][:, -2:]))
    out |= {k: v for k, v in seen.items() if k.startswith(("embed.", "block.rows.", "block.single."))}
    out["block.t"], out["block.velocity"] = t, velocity
    rope = model.pos_embed(torch.cat(ids))
    out["rope"], out["rope.ids"] = torch.stack([r[:, ::2] for r in rope], dim=-1), torch.cat(ids).to(torch.int32)
    return out, dict(block=dict(text_tokens=BLOCK_TEXT, double=double, single=single))


def schedule_references():
    """Returns the schedule alone, with the published schedulers' shift of 3 (HD) and 1 (Flash) and with beta sigmas (Base)."""
    out = {}
    for steps in SCHEDULE_STEPS:
        for shift in SCHEDULE_SHIFTS:
            for name, beta in (("schedule", False), ("schedule_beta", True)):
                scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift, use_beta_sigmas=beta)
                scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
                name = f"{name}.{steps}.{shift:g}"
                out[f"{name}.sigmas"], out[f"{name}.timesteps"] = scheduler.sigmas.clone(), scheduler.timesteps.clone()
    return out
