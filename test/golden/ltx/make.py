"""Generates the LTX-2 fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; shared components are links. Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, <bos> included, no padding; .uncond likewise
  hidden.cond                case 0: [1024, V + A]: the connectors' output, video and sound side by side
  sigmas timesteps           n+1 and n values, f32; sigmas_2: of the second pass
  picture.init               u8 [H, W, 3]: input image;  encoded.init [1, C, h, w]: the clean first frame, in the denoiser's scale
  latent_000 latent          [N, C, T, h, w]: noise of video k from seed + k; end of the last pass, including the clean frame
  sound_000 sound            [N, C, 1, L, B]: the same of the sound, whose noise follows the video's
  latent_001 sound_001 ...   after every step; then start and steps of the second pass; not for batches and input images
  enlarged                   [1, C, T, 2h, 2w]: output of the upscaler, in the denoiser's scale
  decoded                    one case only: [F, 3, H, W], not clamped;  picture: u8 [F, H, W, 3]
  mel wave                   the same case: spectrogram [T, channels * bins]; samples [n, channels]
Cases of kind "text" have ids. Guidance in expect.json has the names of the request's fields; a null for the sound is the video's value.
upscale_sigmas: sigmas of the second pass, which has twice the width and height; upscale_dumps: number of its latents.

Block reference tensors, from one forward at case 0's second timestep (in: block.latent, block.sound, hidden.cond):
  block.t block.e block.sound_e   timestep; embedded timesteps [rows, V] and [rows, A]; rows for timestep 0 and t with a clean frame, else for t
  block.modulation block.cross block.gate block.prompt block.sound_...   rows of the embedding networks, before a block's tables
  block.layer.{in,out} block.layer.sound.{in,out}    [1, tokens, width] of the block named in expect.json
  block.final.{in,out} block.final.sound.{in,out}    before the last norm, and velocity
  block.velocity block.sound_velocity
  embed.image.{in,out} embed.sound.{in,out}; embed.text.out embed.sound_text.out: the first 40 rows
  rope rope.sound rope.cross rope.cross_sound     [tokens, width / 2, 2] cos and sin, heads one after the other
  transformer.t{0,1,2,3}.{t,out,sound}   complete forward passes described in expect.json
  gemma.states               [n, states * hidden], state-major: of case 0's prompt
  projection.out             [n, V + A], LTX-2.0 [n, V]
  sound.decoder.{in,out}     latent in the denoiser's scale to a spectrogram;  vocoder.{in,out}: spectrogram to samples
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps} from the fixture's scheduler_config.json.
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "special", "long", "empty", "space"]


def clip_case(spec, k, wanted):
    columns, rows = wanted["grid"]
    guidance = {name: wanted[key][i] for key, names in (("cfg", ("cfg_scale", "audio_cfg_scale")), ("stg", ("stg_scale", "audio_stg_scale")),
                                                        ("modality", ("modality_scale", "audio_modality_scale")),
                                                        ("rescale", ("cfg_rescale", "audio_cfg_rescale"))) for i, name in enumerate(names)}
    case = inputs.request(spec, specs.TEXTS, k, wanted | dict(cfg=wanted["cfg"][0])) | guidance
    return case | dict(
        stg_blocks=wanted["blocks"], frames=wanted["frames"], fps=wanted["fps"], seed=wanted["seed"], batch=wanted["batch"], sigmas=wanted["sigmas"],
        upscale_sigmas=wanted["upscale"], upscale_dumps=len(wanted["upscale"]) + 1 if wanted["upscale"] else 0, init=wanted["init"], mask=False,
        decoded=wanted["decoded"], channels=spec.channels, latent_frames=(wanted["frames"] - 1) // 8 + 1, latent_width=columns, latent_height=rows)


def lanes(case):
    guided = case["cfg_scale"] != 1 or case.get("audio_cfg_scale") not in (None, 1)
    return [("cond", case["prompt"])] + ([("uncond", case["negative_prompt"] or "")] if guided else [])


def encode_case(pipe, case, out):
    for lane, prompt in lanes(case):
        out[f"case{case['index']}.ids.{lane}"] = reference_tensors.ids_of(pipe, prompt)
    case["cut"] = len(out[f"case{case['index']}.ids.cond"]) == 1024


def model_numbers(spec):
    mean, deviation = spec.latents_format("vae", spec.channels)
    return dict(
        dim=spec.dim, audio_dim=spec.audio_dim, heads=spec.heads, head_dim=spec.head_dim, layers=spec.layers, channels=spec.channels,
        audio_channels=spec.audio_channels, audio_bins=spec.audio_bins, mel_bins=spec.mel_bins, text_hidden=spec.text_hidden,
        text_layers=spec.text_layers, connector_dims=spec.connector_dims, connector_layers=spec.connector_layers, registers=spec.registers,
        latents_mean=mean, latents_std=deviation, pixel_multiple=spec.pixel_multiple)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [clip_case(spec, k, wanted) for k, wanted in enumerate(spec.cases)]
    own = [part for part in ("text_encoder", "audio_vae", "latent_upsampler") if part not in spec.form["shares"]]
    if "text_encoder" in own:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    first = inputs.of_case(tensors, 0)
    kept = [(reference_tensors.block_references, (pipe, cases[0], first)), (reference_tensors.transformer_references, (pipe, cases[0], first)),
            (reference_tensors.projection_references, (pipe, first | dict(prompt=cases[0]["prompt"]))),
            (reference_tensors.vocoder_references, (pipe, spec))]
    if "text_encoder" in own:
        kept += [(reference_tensors.text_references, (pipe, first)), (reference_tensors.sound_references, (pipe, spec))]
        tensors |= reference_tensors.schedule_references(pipe.scheduler.config)
    blocks = {}
    for references, given in kept:
        more, about = references(*given)
        tensors |= more
        blocks |= about
    files.fixture_end(out, spec, tensors, dict(family="ltx2", model=model_numbers(spec), cases=cases, blocks=blocks))
