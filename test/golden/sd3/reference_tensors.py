"""Runs the Stable Diffusion 3 reference and records inputs and outputs as reference tensors."""

import contextlib

import diffusers
import torch
from diffusers import StableDiffusion3Img2ImgPipeline, StableDiffusion3InpaintPipeline

import runs
from inputs import of_case
from watch import Watch

BLOCK_TEXT = 24  # number of leading text rows in block reference tensors
TOKENS_MAX = 256  # T5's sequence length
# inputs of forward passes: (latent, step, offset of the timestep), one outside the schedule
CALLS = [("latent_000", 0, 0.0), ("latent_002", 2, 0.371)]
PLACES = ["", "_2", "_3"]  # suffixes of the names of text encoders and tokenizers


def load(folder):
    index = diffusers.DiffusionPipeline.load_config(folder)
    absent = dict.fromkeys(name for name, kind in index.items() if kind == [None, None])
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, dtype=torch.float32, **absent)
    pipe.set_progress_bar_config(disable=True)
    for name in ["transformer", "vae", *encoders(pipe)]:
        getattr(pipe, name).requires_grad_(False).eval()
    return pipe


def encoders(pipe):
    return [f"text_encoder{place}" for place in PLACES if getattr(pipe, f"text_encoder{place}") is not None]


def _without_clip_l(pipe, prompt):
    """Encodes a prompt like the pipeline; zeros replace the columns and the pooled row of the absent CLIP-L."""
    ids = pipe.tokenizer_2(prompt, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
    given = pipe.text_encoder_2(ids, output_hidden_states=True)
    tokens, pooled = given.hidden_states[-2], given[0]
    t5 = pipe._get_t5_prompt_embeds(prompt, dtype=torch.float32)
    left = pipe.transformer.config.pooled_projection_dim - pooled.shape[1]
    tokens = torch.nn.functional.pad(tokens, (left, t5.shape[2] - left - tokens.shape[2]))
    return torch.cat([tokens, t5], dim=1), torch.nn.functional.pad(pooled, (left, 0))


@torch.no_grad()
def embeddings(pipe, prompt):
    """Returns the embeddings ([1, rows, columns], [1, columns]) of one prompt."""
    if pipe.text_encoder is None:
        return _without_clip_l(pipe, prompt)
    tokens, _, pooled, _ = pipe.encode_prompt(prompt, None, None, do_classifier_free_guidance=False)
    return tokens, pooled


def encode(pipe, prompt):
    """Returns the reference tensors of one prompt, padding included, and each encoder's number of tokens before
    truncation."""
    hidden, pooled = embeddings(pipe, prompt)
    out, uncut = dict(hidden=hidden[0], pooled=pooled[0]), {}
    for place in PLACES:
        tokenizer = getattr(pipe, f"tokenizer{place}")
        if tokenizer is None:
            continue
        ids = tokenizer(prompt, padding="max_length", max_length=TOKENS_MAX if place == "_3" else 77, truncation=True).input_ids
        out[f"ids{place}"], uncut[place] = torch.tensor(ids, dtype=torch.int32), len(tokenizer(prompt).input_ids)
    return out, uncut


def _runner(pipe, case):
    """Returns a pipeline with the same components for text, an image, or an image with a mask."""
    kind = StableDiffusion3InpaintPipeline if case["mask"] else StableDiffusion3Img2ImgPipeline if case["init"] else type(pipe)
    runner = kind(**pipe.components)
    runner.set_progress_bar_config(disable=True)
    return runner


def call(pipe, case, pictures, generator):
    arguments = dict(height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["cfg_scale"],
                     generator=generator)
    if pipe.text_encoder is None:  # the pipelines require a CLIP-L encoder
        arguments["prompt_embeds"], arguments["pooled_prompt_embeds"] = embeddings(pipe, case["prompt"])
        if case["cfg_scale"] > 1:
            arguments["negative_prompt_embeds"], arguments["negative_pooled_prompt_embeds"] = embeddings(pipe, case["negative_prompt"] or "")
    else:
        arguments |= dict(prompt=case["prompt"], negative_prompt=case["negative_prompt"])
    if case["init"]:
        arguments |= dict(image=pictures["init"], strength=case["strength"])
    if case["mask"]:
        arguments["mask_image"] = pictures["mask"]
    if case["slg_layers"]:
        arguments |= dict(skip_guidance_layers=case["slg_layers"], skip_layer_guidance_scale=case["slg_scale"],
                          skip_layer_guidance_start=case["slg_start"], skip_layer_guidance_stop=case["slg_end"])
    return _runner(pipe, case), arguments


@contextlib.contextmanager
def _shifted(vae, case):
    """Works around diffusers' inpainting pipeline, which decodes without the shift factor that it subtracted."""
    decode = vae.decode
    if case["mask"]:
        vae.decode = lambda z, **more: decode(z + vae.config.shift_factor, **more)
    yield
    vae.decode = decode


def run_case(pipe, case, pictures):
    config = pipe.vae.config
    with _shifted(pipe.vae, case):
        references, _ = runs.run_case(pipe, case, pictures, call, lambda z: (z - config.shift_factor) * config.scaling_factor)
    if case["mask"]:  # the pipeline encodes the masked image but does not use it
        del references["moments.masked"], references["encoded.masked"]
    return references


@torch.no_grad()
def velocity_of(pipe, latent, t, hidden, pooled, skipped=None):
    """Returns the velocity [1, C, h, w] of a latent [1, C, h, w]; t: timestep in f32."""
    model = pipe.transformer
    with runs.exactly(model, t):
        return model(hidden_states=latent.to(model.dtype), timestep=t, encoder_hidden_states=hidden[None].to(model.dtype),
                     pooled_projections=pooled[None].to(model.dtype), skip_layers=skipped, return_dict=False)[0]


def kinds(model):
    """Returns the index of a block of each kind in the transformer, by reference tensor name."""
    out = {"block.last": len(model.transformer_blocks) - 1}
    for i, block in reversed(list(enumerate(model.transformer_blocks[:-1]))):
        out.setdefault("block.second" if block.use_dual_attention else "block.joint", i)
    return out


def packed(z):
    """Packs a latent [1, C, h, w] as [1, tokens, 4 C], with (c, row, column) per row."""
    return z.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def final(model, rows, temb):
    """Returns the packed velocity, channels first in each row, from the input of the last norm."""
    return model.proj_out(model.norm_out(rows, temb)).unflatten(2, (2, 2, -1)).permute(0, 1, 4, 2, 3).flatten(2)


class _Streams:
    """Records the text and image streams before and after blocks, joined with the text first."""

    def __init__(self, model, blocks):
        self.tensors = {}
        self.hooks = [model.transformer_blocks[i].register_forward_hook(self.hook(name), with_kwargs=True) for name, i in blocks.items()]

    def hook(self, name):
        def keep(_module, _args, kwargs, out):
            text, image = out
            self.tensors[f"{name}.in"] = torch.cat([kwargs["encoder_hidden_states"], kwargs["hidden_states"]], dim=1)
            self.tensors[f"{name}.out"] = (image if text is None else torch.cat([text, image], dim=1)).clone()
        return keep

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


@torch.no_grad()
def block_references(pipe, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step, with the first text
    rows."""
    model, known = pipe.transformer, of_case(references, 0)
    t, blocks = known["timesteps"][1:2].clone(), kinds(model)
    modules = {"block.final": model.norm_out, "embed.image": model.pos_embed, "embed.text": model.context_embedder,
               "block.temb": model.time_text_embed}
    with Watch(modules) as watch, _Streams(model, blocks) as streams:
        velocity = velocity_of(pipe, known["latent_001"], t, known["hidden.cond"][:BLOCK_TEXT], known["pooled.cond"])
    seen, out = watch.tensors, streams.tensors
    for name, rows in (("block.final", seen["block.final.in"]), ("block.final_small", seen["block.final.in"][:, :8] * 0.01)):
        out[f"{name}.in"], out[f"{name}.out"] = rows, final(model, rows, seen["block.temb.out"])
    out |= {"embed.image.in": packed(seen["embed.image.in"]), "embed.image.out": seen["embed.image.out"],
            "embed.text.in": seen["embed.text.in"], "embed.text.out": seen["embed.text.out"]}
    out["positions"] = model.pos_embed.cropped_pos_embed(*known["latent_001"].shape[2:])[0].clone()
    out["block.temb"], out["block.t"], out["block.velocity"] = seen["block.temb.out"], t, packed(velocity)
    return out, {"block": dict(text_tokens=BLOCK_TEXT) | {name.removeprefix("block."): i for name, i in blocks.items()}}


def transformer_references(pipe, case, references):
    """Records complete forward passes at two timesteps, and one without the blocks that skip-layer guidance skips."""
    known, out, calls = of_case(references, 0), {}, []
    for source, step, off in CALLS:
        for skipped in [None] + [case["slg_layers"]] * bool(case["slg_layers"] and step):
            name, t = f"transformer.t{len(calls)}", known["timesteps"][step:step + 1] + off
            out[f"{name}.t"] = t
            out[f"{name}.out"] = velocity_of(pipe, known[source], t, known["hidden.cond"], known["pooled.cond"], skipped)
            calls.append(dict(name=name, latent=source, t=float(t), left_out=skipped or []))
    return out, {"transformer": calls}
