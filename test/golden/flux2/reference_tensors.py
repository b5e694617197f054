"""Runs the Flux.2 reference and records inputs and outputs as reference tensors."""

import math
import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinInpaintPipeline
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu, format_input
from transformers import Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

import runs
from inputs import of_case
from runs import unpack
from watch import Watch

SCHEDULE_STEPS = [1, 2, 4, 7, 20, 28, 50]
SCHEDULE_TOKENS = [1, 117, 256, 1024, 4096, 4300, 4301, 8160]  # the shift jumps behind 4300

BLOCK_TEXT = 24  # number of leading text tokens in block reference tensors
BLOCK_PADDING = 3  # number of padding tokens in the text encoder's block reference tensors


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    name = diffusers.DiffusionPipeline.load_config(folder)["_class_name"]
    if name == "Flux2Pipeline":
        # without torchvision, transformers has no PixtralProcessor; for texts it only calls the tokenizer
        pipe = diffusers.Flux2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
            vae=diffusers.AutoencoderKLFlux2.from_pretrained(folder, subfolder="vae", dtype=torch.float32),
            text_encoder=Mistral3ForConditionalGeneration.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
            tokenizer=PreTrainedTokenizerFast.from_pretrained(os.path.join(folder, "tokenizer")),
            transformer=diffusers.Flux2Transformer2DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32))
    else:
        pipe = getattr(diffusers, name).from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    return pipe


@torch.no_grad()
def encode(pipe, prompt):
    """Returns the reference tensors of one prompt by the pipeline's own code, padding included, and its number of tokens
    before truncation."""
    given = {}
    keep = pipe.text_encoder.register_forward_pre_hook(
        lambda _m, _a, kw: given.update(ids=kw["input_ids"][0].int().clone(), n=int(kw["attention_mask"].sum())), with_kwargs=True)
    hidden, _ = pipe.encode_prompt(prompt)
    keep.remove()
    assert len(given["ids"]) == len(hidden[0]) == pipe.tokenizer_max_length
    return dict(ids=given["ids"], hidden=hidden[0]), given["n"]


def uncut(pipe, prompt):
    """Returns the number of tokens before truncation."""
    if hasattr(pipe, "system_message"):
        return len(pipe.tokenizer.apply_chat_template(format_input([prompt], pipe.system_message)[0], tokenize=True, return_dict=False))
    return len(pipe.tokenizer(pipe.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=False)).input_ids)


def statistics(pipe):
    """Returns mean and deviation of the packed latent's channels."""
    bn = pipe.vae.bn
    return bn.running_mean.view(1, -1, 1, 1), torch.sqrt(bn.running_var.view(1, -1, 1, 1) + pipe.vae.config.batch_norm_eps)


def inpaint(pipe):
    filling = Flux2KleinInpaintPipeline(**pipe.components, is_distilled=pipe.config.is_distilled)
    filling.set_progress_bar_config(disable=True)
    return filling


def _call(pipe, case, pictures, generator):
    """Returns the pipeline for the case and its arguments."""
    common = dict(prompt=case["prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], generator=generator)
    if pipe.transformer.config.guidance_embeds:
        common["guidance_scale"] = case["guidance"]
    else:
        common["guidance_scale"] = case["cfg_scale"]
        if case["cfg_scale"] > 1:  # the pipeline's own negative prompt is "", others are embeddings
            common["negative_prompt_embeds"] = pipe.encode_prompt(case["negative_prompt"])[0]
    references = [pictures[name] for name in sorted(pictures) if name.startswith("reference")]
    if not case["mask"]:
        return pipe, common | dict(image=references or None)
    return inpaint(pipe), common | dict(
        image=pictures["init"], mask_image=pictures["mask"], image_reference=references or None, strength=case["strength"])


@torch.no_grad()
def run_case(pipe, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix (see ../runs.py)."""
    mean, deviation = statistics(pipe)
    references, images = runs.run_case(pipe, case, pictures, _call, lambda z: (pipe._patchify_latents(z) - mean) / deviation)
    case["reference_grids"] = [[z.shape[-1], z.shape[-2]] for z in images[0].encoded]
    return {name: value for name, value in references.items() if not name.startswith("moments.")}


def packed(pipe, latents):
    """Returns latents [1, C, h, w] one after another as the transformer's input."""
    return torch.cat([pipe._pack_latents(z) for z in latents], dim=1)


def positions(latents, text_tokens):
    """Returns position ids [tokens, 4] of text, image and references: picture, row, column, text token."""
    text = torch.nn.functional.pad(torch.arange(text_tokens)[:, None], (3, 0))
    grids = [torch.cartesian_prod(torch.tensor([10 * i]), torch.arange(z.shape[2]), torch.arange(z.shape[3]), torch.tensor([0]))
             for i, z in enumerate(latents)]
    return torch.cat([text, *grids])


def reference_latents(case, known):
    """Returns the latents [1, C, h, w] that follow the image's latent."""
    names = (["init"] if case["mask"] else []) + [f"reference_{i:03}" for i in range(len(case["references"]))]
    return [known[f"encoded.{name}"][:1] for name in names]


@torch.no_grad()
def velocity_of(pipe, latents, t, hidden, guidance=None):
    """Returns the velocity of all latents' tokens; t: timestep / 1000; timestep and guidance are f32 whatever the
    transformer's dtype."""
    model = pipe.transformer
    ids = positions(latents, len(hidden))
    given = [guidance if guidance is None else torch.tensor([guidance]) * 1000]
    exact = model.time_guidance_embed.register_forward_pre_hook(lambda _module, _args: (t * 1000, *given))
    out = model(hidden_states=packed(pipe, latents).to(model.dtype), timestep=t, guidance=None if guidance is None else given[0] / 1000,
                encoder_hidden_states=hidden[None].to(model.dtype), txt_ids=ids[:len(hidden)], img_ids=ids[len(hidden):], return_dict=False)[0]
    exact.remove()
    return out


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop without mask, from the reference tensors' start; texts: hidden states for each lane.
    Latents between steps are f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    references, sigmas, latent = reference_latents(case, known), known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocities = [velocity_of(pipe, [latent, *references], t[None] / 1000, hidden, case["guidance"])[:, :case["image_tokens"]].to(wide)
                      for hidden in texts]
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
        latent = latent + (sigmas[i + 1] - sigmas[i]) * unpack(pipe, v, case)
    return latent


MODULATIONS = {"image": "double_stream_modulation_img", "text": "double_stream_modulation_txt", "single": "single_stream_modulation",
               "final": "norm_out.linear"}


@torch.no_grad()
def block_references(pipe, case, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step, with the first text
    tokens."""
    model, out, kept = pipe.transformer, {}, {}
    known = of_case(references, 0)
    latents = [known["latent_001"], *reference_latents(case, known)]
    hidden, t = known["hidden.cond"][:BLOCK_TEXT], known["timesteps"][1:2] / 1000
    double, single = len(model.transformer_blocks) - 1, min(1, len(model.single_transformer_blocks) - 1)

    def keep_double(_module, _args, kwargs, result):
        kept["block.double.in"] = torch.cat([kwargs["encoder_hidden_states"], kwargs["hidden_states"]], 1)
        kept["block.double.out"] = torch.cat(result, 1)

    hook = model.transformer_blocks[double].register_forward_hook(keep_double, with_kwargs=True)
    modules = {f"block.modulation.{name}": model.get_submodule(path) for name, path in MODULATIONS.items()}
    modules |= {"block.single": model.single_transformer_blocks[single], "block.final": model.proj_out, "block.norm_out": model.norm_out,
                "embed.image": model.x_embedder, "embed.text": model.context_embedder, "block.temb": model.time_guidance_embed}
    with Watch(modules) as watch:
        velocity = velocity_of(pipe, latents, t, hidden, case["guidance"])
    hook.remove()
    seen = watch.tensors
    out |= kept | {f"block.modulation.{name}": seen[f"block.modulation.{name}.out"] for name in MODULATIONS}
    out |= {name: value for name, value in seen.items() if name.startswith(("block.single.", "embed."))}
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, seen["block.temb.out"]))
    out |= {"block.temb": seen["block.temb.out"], "block.t": t, "block.velocity": velocity}
    ids = positions(latents, BLOCK_TEXT)
    out["rope"] = torch.stack([r[:, ::2] for r in model.pos_embed(ids)], dim=-1)
    out["rope.ids"] = ids.to(torch.int32)
    return out, {"block": dict(text_tokens=BLOCK_TEXT, double=double, single=single, guidance=case["guidance"])}


def language_model(pipe):
    model = pipe.text_encoder.model
    return getattr(model, "language_model", model)


@torch.no_grad()
def text_references(pipe, references):
    """Records a middle layer of the text encoder on case 0's tokens with some of its padding."""
    known, left = of_case(references, 0), pipe.tokenizer.padding_side == "left"
    model, name = language_model(pipe), "block.mistral" if left else "block.text"
    layer = len(model.layers) // 2
    real = known["ids.cond"] != pipe.tokenizer.pad_token_id
    n = int(real.sum())
    part = slice(-n - BLOCK_PADDING, None) if left else slice(n + BLOCK_PADDING)
    ids, mask = known["ids.cond"][part], real[part]
    with Watch({name: model.layers[layer]}) as watch:
        state = model(input_ids=ids[None].long(), attention_mask=mask[None].long(), output_hidden_states=True, use_cache=False).hidden_states
    # a row of padding depends on the prompt and its own position alone; rounding grows in about 30 layers
    read = torch.cat([state[k][0] for k in ((10, 20, 30) if left else (9, 18, 27))], dim=1)
    assert torch.allclose(read, known["hidden.cond"][part], atol=2e-4)
    out = watch.tensors | {"text.embedding": state[0][0], "text.ids": ids.clone()}
    return out, {name: dict(layer=layer, name=f"layers.{layer}", first_key=int(mask.int().argmax()), keys=n)}


def schedule_references(pipe):
    """Returns the schedule alone, for several lengths and token counts."""
    out = {}
    for steps in SCHEDULE_STEPS:
        for tokens in SCHEDULE_TOKENS:
            scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config)
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=compute_empirical_mu(tokens, steps))
            name = f"schedule_tokens.{steps}.{tokens}"
            out[f"{name}.sigmas"], out[f"{name}.timesteps"] = scheduler.sigmas.clone(), scheduler.timesteps.clone()
    assert all(math.isfinite(v) for t in out.values() for v in t.tolist())
    return out
