"""Runs the LTX-2 reference and records inputs and outputs as reference tensors."""

import math
import os

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, LTX2ImageToVideoPipeline, LTX2LatentUpsamplePipeline, LTX2Pipeline
from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel
from diffusers.pipelines.ltx2.pipeline_ltx2 import calculate_shift
from PIL import Image

from watch import Watch, relative

DECODED_MOST = 10**5  # larger frames are stored as bytes alone
SCHEDULE_STEPS, SCHEDULE_TOKENS = (2, 3, 8, 20, 30, 40), (1, 1024, 6144)


def load(folder, dtype=torch.float32):
    pipe = LTX2Pipeline.from_pretrained(folder, dtype=dtype)
    pipe.latent_upsampler = LTX2LatentUpsamplerModel.from_pretrained(os.path.join(folder, "latent_upsampler")).to(dtype)
    for model in (pipe.text_encoder, pipe.connectors, pipe.transformer, pipe.vae, pipe.audio_vae, pipe.vocoder, pipe.latent_upsampler):
        model.requires_grad_(False).eval()
    return pipe


def runner_of(pipe, case):
    """Returns the pipeline for the case. Given sigmas are used without a shift, as the authors do for distilled models."""
    parts = {name: value for name, value in pipe.components.items() if value is not None}
    if case["sigmas"] is not None:
        parts["scheduler"] = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config, use_dynamic_shifting=False, shift_terminal=None)
    runner = (LTX2ImageToVideoPipeline if case["init"] else LTX2Pipeline)(**parts)
    runner._callback_tensor_inputs = [*runner._callback_tensor_inputs, "audio_latents"]
    runner.set_progress_bar_config(disable=True)
    return runner


def ids_of(pipe, prompt):
    """Returns the ids of a prompt without padding, by the pipeline's tokenizer call."""
    given = {}
    hook = pipe.text_encoder.register_forward_pre_hook(lambda _m, _a, kw: given.update(kw), with_kwargs=True)
    pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
    hook.remove()
    return given["input_ids"][0][given["attention_mask"][0].bool()].int()


def unpacked(latent, like):
    """Unpacks tokens [N, F Y X, C] to [N, C, F, Y, X]."""
    frames, rows, columns = like
    return latent.reshape(latent.shape[0], frames, rows, columns, -1).permute(0, 4, 1, 2, 3)


def packed(latent):
    return latent.flatten(2).transpose(1, 2)


def unpacked_sound(latent, bins):
    """Unpacks tokens [N, L, C B] to [N, C, 1, L, B]."""
    return latent.unflatten(2, (-1, bins)).transpose(1, 2).unsqueeze(2)


def packed_sound(latent):
    return latent[:, :, 0].transpose(1, 2).flatten(2)


def bins_of(pipe):
    return pipe.audio_vae.config.mel_bins // pipe.audio_vae_mel_compression_ratio


def grid_of(case, scale=1):
    return case["latent_frames"], scale * case["latent_height"], scale * case["latent_width"]


class Recording:
    """Records one call of a pipeline: its inputs, latents after each step, and decoded results."""

    def __init__(self, runner, grid):
        self.runner, self.grid, self.bins = runner, grid, bins_of(runner)
        self.start, self.latents, self.sounds, self.seen = None, [], [], {}

    def __enter__(self):
        pipe = self.runner

        def keep(name, value):
            self.seen.setdefault(name, value.clone())

        def first_call(_module, _args, kwargs):
            if self.start is None:
                self.start = kwargs
                self.latents.append(unpacked(kwargs["hidden_states"][-1:], self.grid))
                self.sounds.append(unpacked_sound(kwargs["audio_hidden_states"][-1:], self.bins))

        def connected(_module, _args, out):
            keep("hidden", torch.cat([out[0][-1], out[1][-1]], dim=-1))

        self.hooks = [
            pipe.transformer.register_forward_pre_hook(first_call, with_kwargs=True),
            pipe.connectors.register_forward_hook(connected),
            pipe.vae.decoder.register_forward_hook(lambda _m, _a, out: keep("decoded", out[0].transpose(0, 1))),
            pipe.audio_vae.decoder.register_forward_hook(lambda _m, _a, out: keep("mel", rows_of_mel(out))),
            pipe.vocoder.register_forward_hook(lambda _m, _a, out: keep("wave", out[0].T)),
        ]
        return self

    def on_step(self, _pipe, _i, _t, values):
        self.latents.append(unpacked(values["latents"], self.grid))
        self.sounds.append(unpacked_sound(values["audio_latents"], self.bins))
        return {}

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


def rows_of_mel(mel):
    """Converts a spectrogram [1, channels, T, bins] to rows [T, channels * bins]."""
    return mel[0].transpose(0, 1).flatten(1)


def arguments(case, generator):
    """Returns arguments of the first pass; absent guidance of the sound is that of the video."""
    return dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_frames=case["frames"],
        frame_rate=float(case["fps"]), num_inference_steps=case["steps"], sigmas=case["sigmas"], guidance_scale=case["cfg_scale"],
        stg_scale=case["stg_scale"], modality_scale=case["modality_scale"], guidance_rescale=case["cfg_rescale"],
        audio_guidance_scale=case["audio_cfg_scale"], audio_stg_scale=case["audio_stg_scale"], audio_modality_scale=case["audio_modality_scale"],
        audio_guidance_rescale=case["audio_cfg_rescale"], spatio_temporal_guidance_blocks=case["stg_blocks"] or None, generator=generator,
        callback_on_step_end_tensor_inputs=["latents", "audio_latents"])


def second_pass(pipe, case, first, generator):
    """Enlarges the first pass's latents; returns the recorded second pass, which continues with the same generator."""
    enlarged = LTX2LatentUpsamplePipeline(vae=pipe.vae, latent_upsampler=pipe.latent_upsampler)(
        latents=first[0], height=case["height"], width=case["width"], num_frames=case["frames"], output_type="latent", return_dict=False)[0]
    sigmas = case["upscale_sigmas"]
    runner = runner_of(pipe, case | dict(init=False))
    with Recording(runner, grid_of(case, 2)) as kept:
        runner(**arguments(case, generator) | dict(
            latents=enlarged, audio_latents=first[1], sigmas=sigmas, num_inference_steps=len(sigmas), noise_scale=sigmas[0],
            height=2 * case["height"], width=2 * case["width"], output_type="latent", callback_on_step_end=kept.on_step))
    kept.seen["enlarged"], kept.scheduler = (enlarged - format_of(pipe)[0]) / format_of(pipe)[1], runner.scheduler
    return kept


def format_of(pipe):
    return [t.view(1, -1, 1, 1, 1) for t in (pipe.vae.latents_mean, pipe.vae.latents_std)]


@torch.no_grad()
def run_clip(pipe, case, pictures, k):
    """Runs video k of a case; returns its recordings: first pass, and second pass or None."""
    runner, generator = runner_of(pipe, case), torch.Generator().manual_seed(case["seed"] + k)
    given = arguments(case, generator)
    if case["init"]:
        given |= dict(image=Image.fromarray(pictures["init"]), image_crf=0)
    with Recording(runner, grid_of(case)) as kept:
        out = runner(**given, output_type="np" if case["decoded"] else "latent", return_dict=False, callback_on_step_end=kept.on_step)
    if case["decoded"]:
        kept.seen["picture"] = torch.from_numpy((out[0][0] * 255).round().astype(np.uint8))
    kept.scheduler = runner.scheduler
    return kept, second_pass(pipe, case, out, generator) if case["upscale_sigmas"] else None


def _noise(case, shapes, k):
    generator = torch.Generator().manual_seed(case["seed"] + k)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@torch.no_grad()
def run_case(pipe, case, pictures):
    """Runs one case; returns tensors by name, without the case's prefix. Video k of a batch is a separate call with seed + k."""
    references, starts, ends = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}, [], []
    for k in range(case["batch"]):
        first, second = run_clip(pipe, case, pictures, k)
        latent, sound = first.latents[0], first.sounds[0]
        start = _noise(case, [latent.shape, sound[:, :, 0].shape], k)
        clean = int(case["init"])
        assert torch.equal(start[0][:, :, clean:], latent[:, :, clean:]) and torch.equal(start[1], sound[:, :, 0])
        starts.append((start[0], sound))
        ends.append(((second or first).latents[-1], (second or first).sounds[-1]))
        if k == 0:
            kept, later = first, second
    if case["init"]:
        references["encoded.init"] = kept.latents[0][:, :, 0].clone()
    for name, pairs in (("_000", starts), ("", ends)):
        references[f"latent{name}"], references[f"sound{name}"] = (torch.cat(values) for values in zip(*pairs))
    if case["batch"] == 1 and not case["init"]:
        for i, (latent, sound) in enumerate(zip(kept.latents[1:] + (later.latents if later else []), kept.sounds[1:] + (later.sounds if later else []))):
            references[f"latent_{i + 1:03}"], references[f"sound_{i + 1:03}"] = latent, sound
    if later:
        references |= dict(enlarged=later.seen["enlarged"], sigmas_2=later.scheduler.sigmas.float().clone())
    references |= {name: kept.seen[name] for name in ("decoded", "mel", "wave", "picture") if name in kept.seen}
    if references.get("decoded", torch.empty(0)).numel() > DECODED_MOST:
        del references["decoded"]
    if case["index"] == 0:
        references["hidden.cond"] = kept.seen["hidden"]
    references["sigmas"], references["timesteps"] = kept.scheduler.sigmas.float().clone(), kept.scheduler.timesteps.float().clone()
    return references


class Conditions:
    """The transformer's inputs for a case: prompt rows, positions and the clean frame."""

    def __init__(self, pipe, case, known, hidden):
        model, n = pipe.transformer, pipe.connectors.config.video_connector_num_attention_heads * pipe.connectors.config.video_connector_attention_head_dim
        self.pipe, self.case, self.frame, self.text, self.sound_text = pipe, case, known.get("encoded.init"), hidden[None, :, :n], hidden[None, :, n:]
        self.coords = model.rope.prepare_video_coords(1, *grid_of(case), torch.device("cpu"), fps=float(case["fps"]))
        self.sound_coords = model.audio_rope.prepare_audio_coords(1, known["sound_000"].shape[3], torch.device("cpu"))

    @torch.no_grad()
    def velocity(self, latent, sound, t, stg_blocks=None, isolated=False):
        """Returns the velocities of video [1, C, F, Y, X] and sound [1, C, 1, L, B]."""
        dtype, timestep = self.pipe.transformer.dtype, t
        if self.frame is not None:
            latent = torch.cat([self.frame[:, :, None], latent[:, :, 1:]], dim=2)
            frames, rows, columns = grid_of(self.case)
            timestep = (t * (torch.arange(frames) > 0)).repeat_interleave(rows * columns)[None]
        video, out = self.pipe.transformer(
            hidden_states=packed(latent).to(dtype), audio_hidden_states=packed_sound(sound).to(dtype), encoder_hidden_states=self.text.to(dtype),
            audio_encoder_hidden_states=self.sound_text.to(dtype), timestep=timestep, audio_timestep=t, sigma=t, video_coords=self.coords,
            audio_coords=self.sound_coords, num_frames=grid_of(self.case)[0], height=grid_of(self.case)[1], width=grid_of(self.case)[2],
            audio_num_frames=sound.shape[3], fps=float(self.case["fps"]), isolate_modalities=isolated, spatio_temporal_guidance_blocks=stg_blocks,
            use_cross_timestep=True, return_dict=False)
        return unpacked(video, grid_of(self.case)), unpacked_sound(out, bins_of(self.pipe))


def _rope(model, conditions):
    """Returns rope tables of each attention [tokens, width / 2, 2], heads one after the other."""
    tables = {
        "rope": model.rope(conditions.coords), "rope.sound": model.audio_rope(conditions.sound_coords),
        "rope.cross": model.cross_attn_rope(conditions.coords[:, :1]), "rope.cross_sound": model.cross_attn_audio_rope(conditions.sound_coords[:, :1])}
    return {name: torch.stack([t[0].transpose(0, 1).flatten(1) for t in table], dim=-1).float() for name, table in tables.items()}


# Modulation rows, which the transformer's embedding networks return.
MODULATIONS = {
    "time_embed": "block.modulation", "audio_time_embed": "block.sound_modulation", "av_cross_attn_video_scale_shift": "block.cross",
    "av_cross_attn_audio_scale_shift": "block.sound_cross", "av_cross_attn_video_a2v_gate": "block.gate", "av_cross_attn_audio_v2a_gate": "block.sound_gate",
    "prompt_adaln": "block.prompt", "audio_prompt_adaln": "block.sound_prompt"}


@torch.no_grad()
def block_references(pipe, case, known):
    """Records one block of each kind in a forward pass of case 0's cond lane at its second timestep."""
    model, middle, rows = pipe.transformer, len(pipe.transformer.transformer_blocks) // 2, {}
    conditions = Conditions(pipe, case, known, known["hidden.cond"])
    latent, sound = (known[f"{name}_001"] if f"{name}_001" in known else known[name] for name in ("latent", "sound"))
    t = known["timesteps"][1:2].clone()

    def layer(_module, _args, kwargs, out):
        rows["block.layer.in"], rows["block.layer.sound.in"] = kwargs["hidden_states"].clone(), kwargs["audio_hidden_states"].clone()
        rows["block.layer.out"], rows["block.layer.sound.out"] = out[0].clone(), out[1].clone()

    def modulation(name):
        def keep(_module, _args, out):
            rows[name] = out[0].clone()
            if name in ("block.modulation", "block.sound_modulation"):
                rows[name.replace("modulation", "e")] = out[1].clone()
        return keep

    hooks = [model.transformer_blocks[middle].register_forward_hook(layer, with_kwargs=True)]
    hooks += [getattr(model, part).register_forward_hook(modulation(name)) for part, name in MODULATIONS.items() if hasattr(model, part)]
    modules = {"embed.image": model.proj_in, "embed.sound": model.audio_proj_in, "norm_out": model.norm_out, "audio_norm_out": model.audio_norm_out,
               "block.final": model.proj_out, "block.final.sound": model.audio_proj_out}
    if hasattr(model, "caption_projection"):
        modules |= {"embed.text": model.caption_projection, "embed.sound_text": model.audio_caption_projection}
    with Watch(modules) as watch:
        velocity, sound_velocity = conditions.velocity(latent, sound, t)
    for hook in hooks:
        hook.remove()
    seen = watch.tensors
    out = {"block.t": t, "block.latent": latent.clone(), "block.sound": sound.clone(), "block.velocity": velocity, "block.sound_velocity": sound_velocity}
    out |= {name: value for name, value in rows.items() if name.startswith("block.layer")}
    # one row per timestep: 0 for clean frames, then t
    for name, value in rows.items():
        if not name.startswith("block.layer"):
            value = value.reshape(-1, value.shape[-1])
            out[name] = value[[0, -1] if len(value) > 1 else [-1]]
    out |= {name: seen[name] for name in ("embed.image.in", "embed.image.out", "embed.sound.in", "embed.sound.out")}
    # the rows of captions: the first 40 of 1024
    out |= {name: seen[name].flatten(0, -2)[:40].clone() for name in ("embed.text.out", "embed.sound_text.out") if name in seen}
    out |= {"block.final.in": seen["norm_out.in"], "block.final.out": seen["block.final.out"],
            "block.final.sound.in": seen["audio_norm_out.in"], "block.final.sound.out": seen["block.final.sound.out"]}
    return out | _rope(model, conditions), {"block": dict(layer=middle, given=int(case["init"]))}


@torch.no_grad()
def transformer_references(pipe, case, known):
    """Records complete forward passes: two timesteps, without self-attention in one block, and without attention between the streams."""
    out, calls, conditions = {}, [], Conditions(pipe, case, known, known["hidden.cond"])
    for n, (source, step, more) in enumerate([("_000", 0, {}), ("", 1, {}), ("_000", 1, dict(stg_blocks=[1])), ("_000", 1, dict(isolated=True))]):
        # also a timestep outside the schedule that is not an integer
        t = known["timesteps"][step:step + 1] + (0.371 if step else 0.0)
        name = f"transformer.t{n}"
        out[f"{name}.t"] = t
        out[f"{name}.out"], out[f"{name}.sound"] = conditions.velocity(known[f"latent{source}"][:1], known[f"sound{source}"][:1], t, **more)
        calls.append(dict(name=name, latent=f"latent{source}", sound=f"sound{source}", t=float(t), stg_blocks=more.get("stg_blocks", []),
                          isolated=more.get("isolated", False)))
    return out, {"transformer": calls}


@torch.no_grad()
def text_references(pipe, known):
    """Records all hidden states of Gemma on case 0's tokens without padding."""
    ids = known["ids.cond"].long()[None]
    states = pipe.text_encoder(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True).hidden_states
    return {"gemma.states": torch.cat([state[0] for state in states], dim=-1)}, {}


@torch.no_grad()
def projection_references(pipe, known):
    """Records the projection of the prompt's tokens [n, V + A], or [n, V] if both streams share it."""
    given, names = {}, [n for n in ("text_proj_in", "video_text_proj_in", "audio_text_proj_in") if hasattr(pipe.connectors, n)]
    with Watch({name: getattr(pipe.connectors, name) for name in names}) as watch:
        hook = pipe.connectors.register_forward_pre_hook(lambda _m, args: given.update(mask=args[1]))
        embeds, mask, _, _ = pipe.encode_prompt(known["prompt"], do_classifier_free_guidance=False)
        video, audio, _ = pipe.connectors(embeds, mask, padding_side="left")
        hook.remove()
    rows = given["mask"][0].bool()
    assert relative(torch.cat([video[0], audio[0]], dim=-1), known["hidden.cond"]) < 1e-6
    return {"projection.out": torch.cat([watch.tensors[f"{name}.out"][0][rows] for name in names], dim=-1)}, {}


@torch.no_grad()
def sound_references(pipe, spec):
    """Records the sound decoder on a latent in the denoiser's scale."""
    generator, vae = torch.Generator().manual_seed(spec.seed % 2**31 + 1), pipe.audio_vae
    latent = torch.randn([1, spec.audio_channels, 1, 5, spec.audio_bins], generator=generator)
    packed_latent = packed_sound(latent) * vae.latents_std + vae.latents_mean
    z = unpacked_sound(packed_latent, spec.audio_bins)[:, :, 0]
    return {"sound.decoder.in": latent, "sound.decoder.out": rows_of_mel(vae.decode(z, return_dict=False)[0])}, {}


@torch.no_grad()
def vocoder_references(pipe, spec):
    """Records the vocoder on 9 rows of a spectrogram."""
    generator, vocoder = torch.Generator().manual_seed(spec.seed % 2**31 + 2), pipe.vocoder
    mel = torch.randn([1, 2, 9, spec.mel_bins], generator=generator)
    return {"vocoder.in": rows_of_mel(mel), "vocoder.out": vocoder(mel)[0].T}, {}


def schedule_references(config):
    out = {}
    for steps in SCHEDULE_STEPS:
        for tokens in SCHEDULE_TOKENS:
            mu = calculate_shift(tokens, *(config[key] for key in ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")))
            fresh, name = FlowMatchEulerDiscreteScheduler.from_config(config), f"schedule_tokens.{steps}.{tokens}"
            fresh.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
            out[f"{name}.sigmas"], out[f"{name}.timesteps"] = fresh.sigmas.clone(), fresh.timesteps.clone()
    assert all(math.isfinite(v) for t in out.values() for v in t.tolist())
    return out
