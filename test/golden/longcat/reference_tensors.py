"""Runs the LongCat-Image reference and records inputs and outputs as reference tensors."""

import os
import re
import types

import diffusers
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.longcat_image import pipeline_longcat_image, pipeline_longcat_image_edit
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

import runs
from inputs import of_case
from qwen.reference_tensors import count_along_axes, packed, vision_inputs
from runs import exactly, unpack
from watch import Watch

from . import specs

BLOCK_TEXT = 24  # number of leading text tokens in block reference tensors
APOSTROPHE = "\ue000"  # stands for an apostrophe between letters
SPLIT = pipeline_longcat_image.split_quotation


def split_quotation(prompt):
    """The pipelines' split_quotation, without its error: of two different words with an apostrophe ("fox's", "it's") it puts
    the first, in the random order of a set, in the place of both."""
    hidden = re.sub(r"[a-zA-Z]+'[a-zA-Z]+", lambda word: word[0].replace("'", APOSTROPHE), prompt)
    return [(part.replace(APOSTROPHE, "'"), quoted) for part, quoted in SPLIT(hidden)]


# a variable, so that the measurement of influence can replace it
quotation = types.SimpleNamespace(split=split_quotation)


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype, with a small image area."""
    for module in (pipeline_longcat_image, pipeline_longcat_image_edit):
        module.split_quotation = lambda prompt: quotation.split(prompt)
    pipeline_longcat_image_edit.calculate_dimensions = lambda _area, ratio: specs.drawn_size(ratio, 1)
    tokenizer = AutoTokenizer.from_pretrained(os.path.join(folder, "tokenizer"))
    pictures = Qwen2VLImageProcessor.from_pretrained(os.path.join(folder, "text_processor"))
    pipe = getattr(diffusers, diffusers.DiffusionPipeline.load_config(folder)["_class_name"])(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        vae=diffusers.AutoencoderKL.from_pretrained(folder, subfolder="vae", dtype=torch.float32),
        text_encoder=Qwen2_5_VLForConditionalGeneration.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
        tokenizer=tokenizer, text_processor=Qwen2VLProcessor(pictures, tokenizer, Qwen2VLVideoProcessor()),
        transformer=diffusers.LongCatImageTransformer2DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32))
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    count_along_axes(pipe.text_encoder)
    return pipe


def edits(pipe):
    return isinstance(pipe, diffusers.LongCatImageEditPipeline)


def resized(pipe, picture):
    """Returns the picture as the pipeline resizes it: (for the vision tower, for the VAE)."""
    width, height = specs.drawn_size(*picture.size)
    drawn = pipe.image_processor.resize(picture, height, width)
    return pipe.image_processor.resize(drawn, height // 2, width // 2), drawn


@torch.no_grad()
def encode(pipe, prompt, pictures=()):
    """Returns the reference tensors of one prompt by the pipeline's own code, and its number of tokens before
    truncation, without the template."""
    given = {}
    keep = pipe.text_encoder.register_forward_pre_hook(lambda _m, _a, kw: given.update(ids=kw["input_ids"][0].int().clone()), with_kwargs=True)
    more = dict(image=resized(pipe, pictures[0])[0]) if edits(pipe) else {}
    hidden = pipe.encode_prompt([prompt], **more)[0][0]
    keep.remove()
    pieces = [list(part) if quoted else [part] for part, quoted in quotation.split(prompt)]
    end = len(pipe.tokenizer(pipe.prompt_template_encode_suffix).input_ids)
    return dict(ids=given["ids"][:-end], hidden=hidden), sum(len(pipe.tokenizer(text).input_ids) for part in pieces for text in part)


@torch.no_grad()
def look(pipe, pictures):
    """Returns the vision tower's input for the image (u8 [H, W, 3]) and its output (rows in raster order)."""
    pixels, seen = vision_inputs(pipe.image_processor_vl, resized(pipe, pictures[0])[0])
    rows = pipe.text_encoder.model.visual(seen["pixel_values"], seen["image_grid_thw"]).pooler_output
    return {"pixels.reference_000": pixels, "seen.reference_000": rows}


def _call(pipe, case, pictures, generator):
    common = dict(prompt=case["prompt"], negative_prompt=case["negative_prompt"] if case["cfg_scale"] > 1 else None,
                  guidance_scale=case["cfg_scale"], num_inference_steps=case["steps"], generator=generator)
    if edits(pipe):
        return pipe, common | dict(image=pictures["reference_000"])
    return pipe, common | dict(height=case["height"], width=case["width"], enable_prompt_rewrite=False)


@torch.no_grad()
def run_case(pipe, case, pictures):
    config = pipe.vae.config
    # the pipelines accept no callback: steps are recorded as the scheduler returns them
    steps, step = [], pipe.scheduler.step

    def keep_step(*args, **kwargs):
        out = step(*args, **kwargs)
        steps.append(out[0])
        return out

    def call(pipe, case, pictures, generator):
        steps.clear()
        runner, arguments = _call(pipe, case, pictures, generator)
        return _WithoutCallback(runner, steps), arguments

    pipe.scheduler.step = keep_step
    references, _ = runs.run_case(pipe, case, pictures, call, lambda z: (z - config.shift_factor) * config.scaling_factor)
    pipe.scheduler.step = step
    return references


class _WithoutCallback:
    """A pipeline that calls callback_on_step_end afterwards, once for each recorded step."""

    def __init__(self, pipe, steps):
        self.pipe, self.steps, self.scheduler = pipe, steps, pipe.scheduler

    def __call__(self, callback_on_step_end, **arguments):
        out = self.pipe(**arguments)
        for i, latents in enumerate(self.steps):
            callback_on_step_end(self.pipe, i, None, dict(latents=latents))
        return out


def positions(latents, text_tokens):
    """Position ids of text, the drawn image and references, [tokens, 3]."""
    ids = pipeline_longcat_image.prepare_pos_ids
    start = (text_tokens, text_tokens)
    return [ids(0, "text", num_token=text_tokens)] + [
        ids(1 + n, "image", start=start, height=z.shape[2] // 2, width=z.shape[3] // 2) for n, z in enumerate(latents)]


def conditioning_latents(case, known):
    """Returns the latents [1, C, h, w] of references, which follow the image's latent."""
    return [known[f"encoded.reference_{i:03}"][:1] for i in range(len(case["references"]))]


@torch.no_grad()
def velocity_of(pipe, latents, t, hidden):
    """Returns the velocity of all latents' tokens; t: timestep / 1000 in f32."""
    dtype, ids = pipe.transformer.dtype, positions(latents, len(hidden))
    with exactly(pipe.transformer, t * 1000):
        return pipe.transformer(hidden_states=packed(pipe, latents).to(dtype), timestep=t, encoder_hidden_states=hidden[None].to(dtype),
                                txt_ids=ids[0], img_ids=torch.cat(ids[1:]), return_dict=False)[0]


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop from the reference tensors' start; texts: hidden states for each lane. Latents between steps and
    timesteps are f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    references, sigmas, latent = conditioning_latents(case, known), known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocities = [velocity_of(pipe, [latent, *references], t[None] / 1000, hidden)[:, :case["image_tokens"]].to(wide) for hidden in texts]
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
            if not edits(pipe):
                v = v * (velocities[0].norm(dim=-1, keepdim=True) / (v.norm(dim=-1, keepdim=True) + 1e-8)).clamp(max=1)
        latent = latent + (sigmas[i + 1] - sigmas[i]) * unpack(pipe, v, case)
    return latent


@torch.no_grad()
def block_references(pipe, case, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step, with the first text
    tokens."""
    model, out, texts = pipe.transformer, {}, {}
    known = of_case(references, 0)
    latents = [known["latent_001"], *conditioning_latents(case, known)]
    hidden, t = known["hidden.cond"][:BLOCK_TEXT], known["timesteps"][1:2] / 1000
    double, single = len(model.transformer_blocks) - 1, len(model.single_transformer_blocks) // 2
    blocks = {"block.double": model.transformer_blocks[double], "block.single": model.single_transformer_blocks[single]}

    def keep(name):
        def hook(_module, _args, kwargs, result):
            texts[f"{name}.in"] = torch.cat([kwargs["encoder_hidden_states"], kwargs["hidden_states"]], 1)
            texts[f"{name}.out"] = torch.cat(result, 1)
        return hook

    hooks = [block.register_forward_hook(keep(name), with_kwargs=True) for name, block in blocks.items()]
    with Watch({"block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.x_embedder,
                "embed.text": model.context_embedder, "block.temb": model.time_embed}) as watch:
        velocity = velocity_of(pipe, latents, t, hidden)
    for hook in hooks:
        hook.remove()
    seen = watch.tensors
    out |= texts | {k: v for k, v in seen.items() if k.startswith("embed.")}
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, seen["block.temb.out"]))
    out["block.temb"], out["block.t"], out["block.velocity"] = seen["block.temb.out"], t, velocity
    ids = torch.cat(positions(latents, BLOCK_TEXT))
    out["rope"] = torch.stack([r[:, ::2] for r in model.pos_embed(ids)], dim=-1)
    out["rope.ids"] = ids.to(torch.int32)
    return out, {"block": dict(text_tokens=BLOCK_TEXT, double=double, single=single)}


def pictures_of(known):
    """Returns the references of a case's tensors as PIL images."""
    return [Image.fromarray(known[name].numpy()) for name in sorted(known) if name.startswith("picture.reference")]
