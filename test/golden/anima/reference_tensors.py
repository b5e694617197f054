"""Runs the Anima reference and records inputs and outputs as reference tensors."""

import os

import torch
from diffusers import AutoencoderKLQwenImage, ClassifierFreeGuidance, CosmosTransformer3DModel, FlowMatchEulerDiscreteScheduler
from diffusers import AnimaAutoBlocks, AnimaTextConditioner
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep
from transformers import AutoTokenizer, Qwen3Model

import runs
from inputs import of_case
from watch import Watch, without_frame

TOKENS_MAX = 512      # rows of prompt_embeds
BLOCK_PROMPT, BLOCK_ZEROS = 20, 4  # text rows of block reference tensors: first rows of the prompt, rows of padding


class Pipe:
    """The modular pipeline with the interface of diffusers' other pipelines, for ../runs.py."""

    def __init__(self, folder):
        def tokenizer(name):
            return AutoTokenizer.from_pretrained(os.path.join(folder, name))

        self.transformer = CosmosTransformer3DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32)
        self.text_conditioner = AnimaTextConditioner.from_pretrained(folder, subfolder="text_conditioner", dtype=torch.float32)
        self.text_encoder = Qwen3Model.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32)
        self.vae = AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae", dtype=torch.float32)
        self.scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
        self.modular = AnimaAutoBlocks().init_pipeline()
        self.modular.update_components(
            transformer=self.transformer, text_conditioner=self.text_conditioner, text_encoder=self.text_encoder, vae=self.vae,
            scheduler=self.scheduler, tokenizer=tokenizer("tokenizer"), t5_tokenizer=tokenizer("t5_tokenizer"))
        for model in (self.transformer, self.text_conditioner, self.text_encoder, self.vae):
            model.requires_grad_(False).eval()

    def __call__(self, guidance_scale, callback_on_step_end=None, **inputs):
        self.modular.update_components(guider=ClassifierFreeGuidance(guidance_scale=guidance_scale))
        self.modular.set_progress_bar_config(disable=True)
        step = self.scheduler.step

        def step_and_record(*args, **kwargs):
            out = step(*args, **kwargs)
            if callback_on_step_end:
                callback_on_step_end(self, 0, 0, {"latents": out[0]})
            return out

        self.scheduler.step = step_and_record
        state = self.modular(**inputs)
        del self.scheduler.step
        return state


class Images:
    def __init__(self, state):
        self.images = state.get("images")


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    return Pipe(folder)


@torch.no_grad()
def encode(pipe, prompt):
    """Returns the reference tensors of one prompt by the pipeline's own code, without padding, and the numbers of tokens of
    both tokenizers before truncation."""
    modular = pipe.modular
    out = AnimaTextEncoderStep.encode_prompt(modular, prompt, prepare_unconditional_embeds=False, max_sequence_length=TOKENS_MAX)
    t5 = out["t5_input_ids"]
    hidden = pipe.text_conditioner(
        source_hidden_states=out["qwen_prompt_embeds"], target_input_ids=t5, target_attention_mask=out["t5_attention_mask"],
        source_attention_mask=out["qwen_attention_mask"])[0]
    rows, uncut = t5.shape[1], [len(modular.tokenizer(prompt).input_ids), len(modular.t5_tokenizer(prompt).input_ids)]
    assert len(hidden) == TOKENS_MAX and not hidden[rows:].any()
    values = dict(hidden=hidden[:rows].clone())
    if uncut[0]:  # Qwen has no token for an empty prompt; the pipeline then masks one row
        values |= dict(ids=torch.tensor(modular.tokenizer(prompt).input_ids[:TOKENS_MAX], dtype=torch.int32), ids_2=t5[0].to(torch.int32))
    assert bool(uncut[0]) == bool(out["qwen_attention_mask"].any())
    return values, uncut


def _call(pipe, case, pictures, generator):
    def run(output_type, callback_on_step_end):
        started = dict(image=pictures["init"], strength=case["strength"]) if case["init"] else {}
        return Images(pipe(
            case["cfg_scale"], callback_on_step_end, prompt=case["prompt"], negative_prompt=case["negative_prompt"], height=case["height"],
            width=case["width"], num_inference_steps=case["steps"], generator=generator, output_type=output_type, **started))

    run.scheduler = pipe.scheduler
    return run, {}


def run_case(pipe, case, pictures):
    mean, deviation = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in (pipe.vae.config.latents_mean, pipe.vae.config.latents_std))
    return runs.run_case(pipe, case, pictures, _call, lambda z: (z - mean) / deviation)[0]


def padded(hidden, rows=TOKENS_MAX):
    """Returns prompt_embeds [rows, width] of a prompt's rows."""
    return torch.cat([hidden, hidden.new_zeros(rows - len(hidden), hidden.shape[1])])


@torch.no_grad()
def velocity_of(pipe, latent, t, text):
    """Returns the velocity [1, C, h, w]; t: timestep / 1000 in f32; text: [rows, width], with padding."""
    dtype = pipe.transformer.dtype
    mask = latent.new_zeros(1, 1, *latent.shape[2:])
    return without_frame(pipe.transformer(
        hidden_states=latent[:, :, None].to(dtype), timestep=t, encoder_hidden_states=text[None].to(dtype), padding_mask=mask.to(dtype),
        return_dict=False)[0])


@torch.no_grad()
def denoise(pipe, known, text, steps=None):
    """The pipeline's denoising loop without guidance from the reference tensors' start. Latents between steps and timesteps are
    f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    sigmas, latent = known["sigmas"], known["latent_000"][:1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        latent = latent + (sigmas[i + 1] - sigmas[i]) * velocity_of(pipe, latent, t[None] / 1000, padded(text)).to(wide)
    return latent


def block_text(known):
    """Returns the text rows [BLOCK_PROMPT + BLOCK_ZEROS, width] of block reference tensors."""
    return padded(known["hidden.cond"][:BLOCK_PROMPT], BLOCK_PROMPT + BLOCK_ZEROS)


@torch.no_grad()
def block_references(pipe, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step."""
    model, known = pipe.transformer, of_case(references, 0)
    latent, text, t = known["latent_001"], block_text(known), known["timesteps"][1:2] / 1000
    number = len(model.transformer_blocks) - 1
    layer = model.transformer_blocks[number]
    with Watch({"block.layer": layer, "block.final": model.norm_out, "block.proj_out": model.proj_out, "embed.image": model.patch_embed.proj,
                "block.keys": layer.attn2.norm_k, "block.values": layer.attn2.to_v}) as watch:
        velocity = velocity_of(pipe, latent, t, text)
    seen = watch.tensors
    shared, time = model.time_embed(seen["embed.image.out"], t)
    out = {name: seen[name] for name in ("block.layer.in", "block.layer.out", "block.final.in")}
    out |= {name: seen[name].flatten(0, 3) for name in ("embed.image.in", "embed.image.out")}
    out |= {"block.t": t, "block.time": time, "block.shared": shared, "block.velocity": velocity, "block.final.out": seen["block.proj_out.out"]}
    out["block.keys"] = seen["block.keys.out"][0].transpose(0, 1).flatten(1)  # heads come first there
    out["block.values"] = seen["block.values.out"][0]
    # small rows: only these reveal a wrong epsilon of the norm
    small = out["block.final.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, time, shared))
    norms = [layer.norm1, layer.norm2, layer.norm3]
    parts = [norm.linear_2(norm.linear_1(norm.activation(time))) + shared for norm in norms]
    last = model.norm_out
    out["block.modulation"] = torch.cat(parts)
    out["block.final_modulation"] = last.linear_2(last.linear_1(last.activation(time))) + shared[:, :2 * time.shape[1]]
    cosine, sine = model.rope(latent[:, :, None])
    half = cosine.shape[1] // 2
    out["rope"] = torch.stack([cosine[:, :half], sine[:, :half]], dim=-1)
    return out, {"block": dict(prompt=BLOCK_PROMPT, zeros=BLOCK_ZEROS, layer=number)}


@torch.no_grad()
def text_references(pipe, references):
    """Records a middle layer of Qwen3 and the last layer of the adapter on case 0's tokens, without padding."""
    ids, t5 = (references[f"case0.{name}.cond"].long()[None] for name in ("ids", "ids_2"))
    number, adapter = (len(pipe.text_encoder.layers) - 1) // 2, pipe.text_conditioner
    last = len(adapter.blocks) - 1
    with Watch({"block.text": pipe.text_encoder.layers[number], "block.adapter": adapter.blocks[last], "adapter": adapter.embed}) as watch:
        states = pipe.text_encoder(input_ids=ids, output_hidden_states=True).hidden_states
        source = pipe.text_encoder(input_ids=ids).last_hidden_state
        whole = adapter(source_hidden_states=source, target_input_ids=t5)[0, :t5.shape[1]]
    out = {name: watch.tensors[name] for name in ("block.text.in", "block.text.out", "block.adapter.in", "block.adapter.out")}
    out |= {"text.embedding": states[0][0], "adapter.embedding": watch.tensors["adapter.out"][0], "source": source[0], "adapter.out": whole}
    return out, {"block.text": dict(layer=number, name=f"layers.{number}", tokens=ids.shape[1]),
                 "block.adapter": dict(layer=last, tokens=t5.shape[1])}
