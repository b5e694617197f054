"""Runs the WAN reference and records inputs and outputs as reference tensors."""

import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanImageToVideoPipeline, WanPipeline, WanVACEPipeline
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPVisionModel, UMT5EncoderModel

from watch import Watch, relative

TOKENS_MAX = 512
VIDEO = 13  # number of frames in the VAE's reference tensors
LATER = "latent_001"  # input of block reference tensors: case 0's latent after one step


class FlowEuler(FlowMatchEulerDiscreteScheduler):
    """Euler steps over u = 1 ... 1/n, as in other flow pipelines; Wan's pipelines leave the time grid to the
    scheduler."""

    def set_timesteps(self, n, device=None):
        super().set_timesteps(sigmas=np.linspace(1.0, 1 / n, n), device=device)


def load(folder, dtype=torch.float32):
    index = diffusers.DiffusionPipeline.load_config(folder)

    def part(kind, name):
        return kind.from_pretrained(os.path.join(folder, name), dtype=dtype) if index.get(name, [None])[0] else None

    models = dict(
        vae=part(diffusers.AutoencoderKLWan, "vae"), text_encoder=part(UMT5EncoderModel, "text_encoder"),
        transformer=part(getattr(diffusers, index["transformer"][1]), "transformer"), transformer_2=part(diffusers.WanTransformer3DModel, "transformer_2"))
    parts = dict(
        scheduler=getattr(diffusers, index["scheduler"][1]).from_pretrained(folder, subfolder="scheduler"),
        tokenizer=AutoTokenizer.from_pretrained(os.path.join(folder, "tokenizer")))
    if index.get("image_encoder", [None])[0]:
        models["image_encoder"] = part(CLIPVisionModel, "image_encoder")
        parts["image_processor"] = CLIPImageProcessor.from_pretrained(os.path.join(folder, "image_processor"))
    for model in filter(None, models.values()):
        model.requires_grad_(False).eval()
    settings = {name: index[name] for name in ("boundary_ratio", "expand_timesteps") if name in index}
    return getattr(diffusers, index["_class_name"])(**models, **parts, **settings)


def runner_of(pipe, case):
    """Returns the pipeline for the case, with the case's sampler."""
    parts, shift = dict(pipe.components), case["shift"]
    euler = case["sampler"] == "euler" or not case["sampler"] and type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler
    parts["scheduler"] = FlowEuler(shift=shift) if euler else diffusers.UniPCMultistepScheduler.from_config(pipe.scheduler.config, flow_shift=shift)
    kind, settings = type(pipe), dict(boundary_ratio=pipe.config.boundary_ratio)
    if kind is not WanVACEPipeline:
        kind = WanImageToVideoPipeline if case["init"] else WanPipeline
        settings["expand_timesteps"] = pipe.config.expand_timesteps
    if kind is WanPipeline:
        parts = {name: value for name, value in parts.items() if not name.startswith("image_")}
    runner = kind(**parts, **settings)
    runner.set_progress_bar_config(disable=True)
    return runner


@torch.no_grad()
def encode(pipe, prompt):
    """Returns (ids, hidden state) of one prompt, by the pipeline's own code."""
    given = {}
    hook = pipe.text_encoder.register_forward_pre_hook(lambda _m, args: given.update(ids=args[0][0], mask=args[1][0]))
    hidden, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False, max_sequence_length=TOKENS_MAX)
    hook.remove()
    n = int(given["mask"].sum())
    assert not hidden[0, n:].any()
    return given["ids"][:n].int(), hidden[0, :n]


def latents_format(pipe):
    config = pipe.vae.config
    return [torch.tensor(v).view(1, config.z_dim, 1, 1, 1) for v in (config.latents_mean, config.latents_std)]


class Recording:
    def __init__(self, pipe):
        self.pipe, self.steps, self.decoded, self.pixels, self.calls = pipe, [], [], [], []

    def __enter__(self):
        pipe = self.pipe
        self.hooks = [pipe.vae.decoder.register_forward_hook(lambda _m, _i, out: self.decoded.append(out.clone()))]
        for name in ("transformer", "transformer_2"):
            if getattr(pipe, name) is not None:
                self.hooks.append(getattr(pipe, name).register_forward_pre_hook(
                    lambda _m, _a, kw, name=name: self.calls.append((name, kw)), with_kwargs=True))
        if getattr(pipe, "image_encoder", None) is not None:
            self.hooks.append(pipe.image_encoder.register_forward_pre_hook(
                lambda _m, _a, kw: self.pixels.append(kw["pixel_values"].clone()), with_kwargs=True))
        return self

    def on_step(self, _pipe, _i, _t, values):
        self.steps.append(values["latents"].clone())
        return {}

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


def frames_of(vae, decoded):
    """Joins the decoder's outputs of all frames before clamping: [1, 3, F, H, W]."""
    out = torch.cat(decoded, dim=2)
    return unpatchify(out, patch_size=vae.config.patch_size) if vae.config.patch_size is not None else out


def arguments(case, pictures, k):
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], guidance_scale=case["cfg_scale"], guidance_scale_2=case["cfg_scale_low"],
        height=case["height"], width=case["width"], num_frames=case["frames"], num_inference_steps=case["steps"],
        generator=torch.Generator().manual_seed(case["seed"] + k), max_sequence_length=TOKENS_MAX)
    if case["init"]:
        common |= dict(image=pictures["init"])
    if case["last"]:
        common |= dict(last_image=pictures["last"])
    if case.get("control"):
        common |= dict(video=pictures["control"])
    if case["mask"]:
        common |= dict(mask=[pictures["mask"]] * case["frames"])
    if case.get("references"):
        common |= dict(reference_images=[pictures[name] for name in sorted(pictures) if name.startswith("reference")])
    return common


def _conditioned(kept, case, references):
    """Collects the conditioning from input images: concatenated channels or the clean first frame, and vision
    embeddings."""
    inputs, channels = kept.calls[0][1], kept.pipe.vae.config.z_dim
    first = inputs["hidden_states"]
    if "control_hidden_states" in inputs:
        references["concat"] = inputs["control_hidden_states"][0].clone()
    elif first.shape[1] > channels:
        references["concat"] = first[0, channels:].clone()
    elif case["init"]:
        references["encoded.init"] = first[:, :, 0].clone()
    seen = inputs.get("encoder_hidden_states_image")
    for i, name in enumerate([] if seen is None else ["init", "last"][:len(seen)]):
        references[f"seen.{name}"] = seen[i].clone()
        references[f"pixels.{name}"] = kept.pixels[0][i].clone()


def _of_clip(kept, case, k, frame):
    """Returns the initial noise and the final latent of video k; frame: the clean first frame, or None."""
    start = torch.randn([1, *kept.steps[0].shape[1:]], generator=torch.Generator().manual_seed(case["seed"] + k))
    seen, behind = kept.calls[0][1]["hidden_states"][:, :start.shape[1]], 0 if frame is None else 1
    assert torch.equal(seen[:, :, behind:], start[:, :, behind:])
    # the pipeline restores the clean frame after the last step
    return start, kept.steps[-1] if frame is None else torch.cat([frame, kept.steps[-1][:, :, 1:]], dim=2)


def shown(pictures):
    """Converts images to the pipelines' input: PIL images, or lists of frames for videos."""
    return {name: [Image.fromarray(f) for f in p] if p.ndim == 4 else Image.fromarray(p) for name, p in pictures.items()}


@torch.no_grad()
def run_case(pipe, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix. Video k of a batch is a separate call with seed + k."""
    references, clips = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}, []
    pictures = shown(pictures)
    for k in range(case["batch"]):
        runner = runner_of(pipe, case)
        with Recording(runner) as kept:
            clip = runner(**arguments(case, pictures, k), output_type="np", callback_on_step_end=kept.on_step).frames[0]
        kept.picture = torch.from_numpy((clip * 255).round().astype(np.uint8))
        clips.append(kept)
    _conditioned(clips[0], case, references)
    frame = references["encoded.init"][:, :, None] if "encoded.init" in references else None
    ends = [_of_clip(kept, case, k, frame) for k, kept in enumerate(clips)]
    references["latent_000"], references["latent"] = (torch.cat(latents) for latents in zip(*ends))
    # the latent frames of references precede the video's
    references["latent"] = references["latent"][:, :, len(case.get("references", [])):]
    references["picture"] = torch.stack([kept.picture for kept in clips])
    if case["batch"] == 1:
        references["picture"] = references["picture"][0]
        for i, latent in enumerate(clips[0].steps):
            references[f"latent_{i + 1:03}"] = latent
    if case["decoded"]:
        references["decoded"] = frames_of(pipe.vae, clips[0].decoded)[0].transpose(0, 1)
    references["sigmas"], references["timesteps"] = runner.scheduler.sigmas.float().clone(), runner.scheduler.timesteps.float().clone()
    case["steps_run"] = len(references["timesteps"])
    case["steps_high"] = sum(name == "transformer" for name, _ in clips[0].calls) // (2 if case["cfg_scale"] > 1 else 1)
    return references


def timestep_input(pipe, latent, t, clean_frames):
    """Returns the timestep input as the pipelines do: one number, or one number per token."""
    if not getattr(pipe.config, "expand_timesteps", False):
        return t
    mask = torch.ones(latent.shape[2:])
    mask[:clean_frames] = 0
    return (mask[:, ::2, ::2] * t).flatten()[None]


def padded(hidden):
    return torch.cat([hidden, hidden.new_zeros([TOKENS_MAX - len(hidden), hidden.shape[1]])])[None]


class Conditions:
    """The transformer's conditioning inputs for a case."""

    def __init__(self, pipe, case, known):
        self.pipe, self.clean_frames, self.is_vace = pipe, int(case["init"] and pipe.config.expand_timesteps), isinstance(pipe, WanVACEPipeline)
        self.concat, self.frame = known.get("concat"), known.get("encoded.init")
        self.text = padded(known["hidden.cond"])
        seen = [known[f"seen.{name}"] for name in ("init", "last") if f"seen.{name}" in known]
        self.vision = torch.stack(seen) if seen else None

    @torch.no_grad()
    def velocity(self, latent, t, name="transformer", text=None):
        if self.clean_frames:
            latent = torch.cat([self.frame[:, :, None], latent[:, :, 1:]], dim=2)
        timestep = timestep_input(self.pipe, latent, t, self.clean_frames)
        control = dict(control_hidden_states=self.concat[None]) if self.is_vace else {}
        if self.concat is not None and not self.is_vace:
            latent = torch.cat([latent, self.concat[None]], dim=1)
        return getattr(self.pipe, name)(
            hidden_states=latent, timestep=timestep, encoder_hidden_states=self.text if text is None else text, encoder_hidden_states_image=self.vision,
            return_dict=False, **control)[0]


def _rope(model, latent):
    """Returns rope tables, and the positions from which they were computed."""
    frames, rows, columns = latent.shape[2], latent.shape[3] // 2, latent.shape[4] // 2
    at = torch.stack(torch.meshgrid(torch.arange(frames), torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1).flatten(0, 2)
    cos, sin = model.rope(latent)
    rope = torch.stack([cos[0, :, 0, ::2], sin[0, :, 0, ::2]], dim=-1).float()
    dims = [model.rope.t_dim, model.rope.h_dim, model.rope.w_dim]
    angles = torch.cat([axis[:, None] / 10000 ** (torch.arange(0, d, 2) / d) for axis, d in zip(at.double().unbind(-1), dims)], dim=-1)
    assert torch.allclose(torch.stack([angles.cos(), angles.sin()], dim=-1), rope.double(), atol=1e-5)
    return {"rope": rope, "rope.ids": at.to(torch.int32)}


def _embedded(kept, conditions, known):
    """Records the conditioning embeddings, one row per timestep: of a clean frame (timestep 0), then of the others."""
    rows, (e, e6) = [0, -1] if conditions.clean_frames else [-1], (kept[name].flatten(0, -2) for name in ("e", "e6"))
    n, text = len(known["hidden.cond"]), kept["text"][0]
    assert torch.equal(text[n:], text[n:n + 1].expand(TOKENS_MAX - n, -1))
    out = {"block.e": e[rows], "block.e6": e6[rows], "embed.text.out": text[:n + 1].clone()}
    if conditions.vision is not None:
        out["embed.seen.out"] = kept["image"].flatten(0, -2)
    return out


def packed(latent):
    """Packs a latent's patches as [1, tokens, 4 C], with (c, row, column) per row."""
    patches = latent.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 2, 3, 5, 1, 4, 6)
    return patches.flatten(1, 3).flatten(2)


@torch.no_grad()
def block_references(pipe, case, known):
    """Records one block of each kind in a forward pass of case 0's cond lane at step 1."""
    model, conditions, latent = pipe.transformer, Conditions(pipe, case, known), known[LATER]
    middle, kept = len(model.blocks) // 2, {}
    hook = model.condition_embedder.register_forward_hook(lambda _m, _a, result: kept.update(zip(("e", "e6", "text", "image"), result)))
    modules = {"block.layer": model.blocks[middle], "block.final": model.proj_out, "block.norm_out": model.norm_out,
               "embed.image": model.patch_embedding}
    t = known["timesteps"][1:2].clone()
    with Watch(modules) as watch:
        velocity = conditions.velocity(latent, t)
    hook.remove()
    out, seen = {"block.t": t, "block.velocity": velocity} | _embedded(kept, conditions, known), watch.tensors
    out["block.layer.in"], out["block.layer.out"] = seen["block.layer.in"], seen["block.layer.out"]
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"], seen["block.final.out"]
    shift, scale = (model.scale_shift_table + out["block.e"][-1:, None]).chunk(2, dim=1)
    small = seen["block.norm_out.in"][:, -8:] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small) * (1 + scale) + shift)
    out["embed.image.in"], out["embed.image.out"] = packed(seen["embed.image.in"]), seen["embed.image.out"].flatten(2).transpose(1, 2)
    return out | _rope(model, latent), {"block": dict(layer=middle, given=conditions.clean_frames)}


@torch.no_grad()
def transformer_references(pipe, case, known):
    """Records complete forward passes at two timesteps, and one of the second expert."""
    out, calls, conditions = {}, [], Conditions(pipe, case, known)
    for n, (name, source, step) in enumerate([("transformer", "latent_000", 0), ("transformer", "latent_002", 2), ("transformer_2", "latent_002", 2)]):
        if getattr(pipe, name, None) is None:
            continue
        # also a timestep outside the schedule that is not an integer
        t = known["timesteps"][step:step + 1] + (0.371 if step else 0.0)
        out[f"transformer.t{n}.t"], out[f"transformer.t{n}.out"] = t, conditions.velocity(known[source], t, name)
        calls.append(dict(name=f"transformer.t{n}", model=name, latent=source, t=float(t)))
    return out, {"transformer": calls}


@torch.no_grad()
def text_references(pipe, known):
    """Records a middle layer of umT5 without padding, and its distance bias."""
    blocks = pipe.text_encoder.encoder.block
    layer, ids = len(blocks) // 2, known["ids.cond"].long()[None]
    with Watch({"block.umt5": blocks[layer], "umt5": pipe.text_encoder.encoder.embed_tokens}) as watch:
        last = pipe.text_encoder(ids).last_hidden_state
    assert relative(last[0], known["hidden.cond"]) < 1e-6  # padding tokens must not change the hidden state
    out = {name: value for name, value in watch.tensors.items() if name.startswith("block.")}
    bias = blocks[layer].layer[0].SelfAttention.compute_bias(TOKENS_MAX, TOKENS_MAX)[0]
    # by distance (key minus query), starting at -511
    out |= {"umt5.embedding": watch.tensors["umt5.out"][0], "umt5.distance_bias": torch.cat([bias[:, -1, :-1], bias[:, 0, :]], dim=1)}
    return out, {"block.umt5": dict(layer=layer, tokens=ids.shape[1])}


@torch.no_grad()
def vision_references(pipe, known):
    """Records a middle layer of the vision encoder on case 0's first image."""
    model, pixels = pipe.image_encoder, known["pixels.init"][None]
    inner = getattr(model, "vision_model", model)
    layer = len(inner.encoder.layers) // 2
    with Watch({"block.vision": inner.encoder.layers[layer], "vision.norm": inner.pre_layrnorm}) as watch:
        seen = model(pixels, output_hidden_states=True).hidden_states[-2]
    assert relative(seen[0], known["seen.init"]) < 1e-6
    return watch.tensors, {"block.vision": dict(layer=layer)}


def decode(vae, z):
    """Decodes a latent without clamping."""
    decoded = []
    hook = vae.decoder.register_forward_hook(lambda _m, _i, out: decoded.append(out.clone()))
    vae.decode(z, return_dict=False)
    hook.remove()
    return frames_of(vae, decoded)


@torch.no_grad()
def vae_references(pipe, spec):
    """Records the causal VAE in both directions on 13 frames; the first 1, 5 and 9 frames are valid videos, too."""
    vae, generator = pipe.vae, torch.Generator().manual_seed(spec.seed % 2**31)
    video = 2 * torch.rand([1, 3, VIDEO, 3 * spec.factor, 2 * spec.factor], generator=generator) - 1
    z = 1.5 * torch.randn([1, spec.channels, (VIDEO - 1) // 4 + 1, 2, 3], generator=generator)
    moments, decoded = vae.encode(video).latent_dist.parameters, decode(vae, z)
    for frames in (1, 5, 9):
        latents = (frames - 1) // 4 + 1
        assert relative(vae.encode(video[:, :, :frames]).latent_dist.parameters, moments[:, :, :latents]) < 5e-6
        assert relative(decode(vae, z[:, :, :latents]), decoded[:, :, :frames]) < 5e-6
    return {"video.encoder.in": video, "video.encoder.out": moments, "video.decoder.in": z, "video.decoder.out": decoded}, {}
