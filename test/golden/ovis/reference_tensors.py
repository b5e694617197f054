"""Runs the Ovis-Image reference and records inputs and outputs as reference tensors."""

import torch
from diffusers import OvisImagePipeline

import runs
from inputs import of_case
from runs import unpack
from watch import Watch

TOKENS_MAX, DROPPED = 256, 28  # rows of prompt_embeds; leading tokens of the template that are dropped
BLOCK_PROMPT, BLOCK_ZEROS = 20, 4  # text rows of block reference tensors: first rows of the prompt, rows of padding


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    pipe = OvisImagePipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    assert pipe.user_prompt_begin_id == DROPPED
    return pipe


@torch.no_grad()
def encode(pipe, prompt):
    """Returns the reference tensors of one prompt by the pipeline's own code, without padding, and its number of
    tokens before truncation."""
    uncut = pipe.tokenizer(pipe._get_messages(prompt)[0], add_special_tokens=False).input_ids
    ids = uncut[:TOKENS_MAX + DROPPED]
    hidden, _, positions, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=TOKENS_MAX)
    assert torch.equal(positions, text_positions(TOKENS_MAX))
    rows = len(ids) - DROPPED
    assert hidden.shape[1] == TOKENS_MAX and not hidden[0, rows:].any() and hidden[0, :rows].any(dim=1).all()
    return dict(ids=torch.tensor(ids, dtype=torch.int32), hidden=hidden[0, :rows].clone()), len(uncut)


def _call(pipe, case, _pictures, generator):
    return pipe, dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], guidance_scale=case["cfg_scale"], height=case["height"],
        width=case["width"], num_inference_steps=case["steps"], generator=generator, max_sequence_length=TOKENS_MAX)


def run_case(pipe, case):
    return runs.run_case(pipe, case, {}, _call, None)[0]


def padded(hidden, rows=TOKENS_MAX):
    """Returns prompt_embeds [rows, hidden] of a prompt's rows."""
    return torch.cat([hidden, hidden.new_zeros(rows - len(hidden), hidden.shape[1])])


def text_positions(rows):
    i = torch.arange(rows, dtype=torch.float32)
    return torch.stack([i * 0, i, i], dim=1)


def image_positions(pipe, latent):
    return pipe._prepare_latent_image_ids(1, latent.shape[2] // 2, latent.shape[3] // 2, "cpu", torch.float32)


class exactly:
    """Context in which the timestep embedder receives this timestep's sinusoids unrounded, whatever its dtype."""

    def __init__(self, model, timestep):
        self.model, self.timestep = model, timestep

    def __enter__(self):
        dtype = next(self.model.timestep_embedder.parameters()).dtype
        value = self.model.time_proj.forward(self.timestep).to(dtype)
        self.hook = self.model.timestep_embedder.register_forward_pre_hook(lambda _module, _args: (value,))

    def __exit__(self, *_):
        self.hook.remove()


@torch.no_grad()
def velocity_of(pipe, latent, t, text):
    """Returns the packed velocity [1, tokens, 4 C]; t: timestep / 1000 in f32; text: [rows, hidden], with padding."""
    dtype = pipe.transformer.dtype
    with exactly(pipe.transformer, t * 1000):
        return pipe.transformer(
            hidden_states=pipe._pack_latents(latent, 1, *latent.shape[1:]).to(dtype), timestep=t, encoder_hidden_states=text[None].to(dtype),
            txt_ids=text_positions(len(text)), img_ids=image_positions(pipe, latent), return_dict=False)[0]


@torch.no_grad()
def denoise(pipe, case, known, text, steps=None):
    """The pipeline's denoising loop without guidance from the reference tensors' start. Latents between steps and timesteps are
    f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    sigmas, latent = known["sigmas"], known["latent_000"][:1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocity = unpack(pipe, velocity_of(pipe, latent, t[None] / 1000, padded(text)), case).to(wide)
        latent = latent + (sigmas[i + 1] - sigmas[i]) * velocity
    return latent


def block_text(known):
    """Returns the text rows [BLOCK_PROMPT + BLOCK_ZEROS, hidden] of block reference tensors."""
    return padded(known["hidden.cond"][:BLOCK_PROMPT], BLOCK_PROMPT + BLOCK_ZEROS)


@torch.no_grad()
def block_references(pipe, references):
    """Records one block of each kind in a complete forward pass, after case 0's first step."""
    model, out, kept, known = pipe.transformer, {}, {}, of_case(references, 0)
    latent, text, t = known["latent_001"], block_text(known), known["timesteps"][1:2] / 1000
    numbers = dict(double=len(model.transformer_blocks) - 1, single=1)
    blocks = dict(double=model.transformer_blocks[numbers["double"]], single=model.single_transformer_blocks[numbers["single"]])

    def keep(name):
        def hook(_module, _args, kwargs, result):
            kept[f"block.{name}.in"] = torch.cat([kwargs["encoder_hidden_states"], kwargs["hidden_states"]], 1)
            kept[f"block.{name}.out"] = torch.cat(result, 1)
        return hook

    hooks = [block.register_forward_hook(keep(name), with_kwargs=True) for name, block in blocks.items()]
    with Watch({"block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.x_embedder,
                "embed.text": model.context_embedder, "embed.norm": model.context_embedder_norm, "block.temb": model.timestep_embedder}) as watch:
        velocity = velocity_of(pipe, latent, t, text)
    for hook in hooks:
        hook.remove()
    seen = watch.tensors
    temb = seen["block.temb.out"]
    out |= kept | {"block.t": t, "block.temb": temb, "block.velocity": velocity}
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, temb))
    out["embed.image.in"], out["embed.image.out"] = seen["embed.image.in"], seen["embed.image.out"]
    out["embed.text.in"], out["embed.text.out"] = seen["embed.norm.in"], seen["embed.text.out"]
    # small rows: only these reveal a wrong epsilon of the norm
    small_text = text[:8] * 0.01
    out["embed.small_text.in"], out["embed.small_text.out"] = small_text, model.context_embedder(model.context_embedder_norm(small_text))
    ids = torch.cat([text_positions(len(text)), image_positions(pipe, latent)])
    out["rope"], out["rope.ids"] = torch.stack([r[:, ::2] for r in model.pos_embed(ids)], dim=-1), ids.to(torch.int32)
    return out, {"block": dict(prompt=BLOCK_PROMPT, zeros=BLOCK_ZEROS, **numbers)}


@torch.no_grad()
def text_references(pipe, references):
    """Records a middle layer of the text encoder on case 0's tokens, without padding."""
    layer, ids = (len(pipe.text_encoder.layers) - 1) // 2, references["case0.ids.cond"].long()[None]
    with Watch({"block.text": pipe.text_encoder.layers[layer]}) as watch:
        states = pipe.text_encoder(input_ids=ids, output_hidden_states=True).hidden_states
    return watch.tensors | {"text.embedding": states[0][0]}, {"block.text": dict(layer=layer, name=f"layers.{layer}", tokens=ids.shape[1])}
