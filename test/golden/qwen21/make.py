"""Generates the Qwen-Image-2.1 fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors.  The models of qwen_image_21 and
qwen_image_21_distilled link to all components of qwen_image_21_ref; qwen_image_21_distilled has no block reference tensors.
A token is one latent pixel, in raster order; the sequence is the prompt with its images' tokens, then the generated image.
References are resized to the small area of specs.py.
Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, including the template and an image's repeated pad tokens; .uncond likewise
  hidden.cond                [T, hidden]: result of encode_prompt: without the template's first tokens; .uncond likewise
  sigmas timesteps           n+1 and n values
  picture.reference_000 ...  u8 [H, W, 3], or [H, W, 4] with an alpha channel: input images
  pixels.reference_000 ...   u8 [H, W, 3]: the vision tower's input, resized and over white
  seen.reference_000 ...     [tokens, 4 hidden]: its output, followed by the deepstack rows
  encoded.reference_000 ...  [N, C, h, w]: the posterior's mean in the model's scale
  latent_000 latent_001 ... latent decoded picture   as for Flux.1; decoded [4, H, W] of case 0 without references, not
                             clamped; picture has an alpha channel
Cases of kind "text" have ids; the first two also hidden states.

Block reference tensors, from one forward at case 0's step 1 (in: latent_001, hidden.cond; batch of one). prefix: number of
tokens before the generated image's
  block.t block.temb block.modulation   timestep / 1000; [2, dim], [2, 4 dim]: row 0 of the timestep, row 1 of timestep 0;
                             modulation: scale, tanh(gate), scale, tanh(gate)
  block.final_scale          [1, dim]
  block.sequence             [1, tokens, dim]: the first block's input
  block.layer.{in,out}       [1, tokens, dim] of the block named in expect.json; .keys .values [prefix, dim]: after norm and rope
  block.last.{in,out}        of the last block; out: the generated image's rows only; the others have no reader
  block.final.{in,out}  block.final_small.{in,out}   generated rows before the last norm, and velocity
  block.velocity             like block.final.out, [1, tokens, C]
  embed.image.{in,out}       latent pixels of references, then of the generated image;  embed.text.{in,out}: all rows of hidden.cond
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3] frame, row, column
  text.embedding             [T, text hidden]: embedded ids.cond, before the images' rows replace those of pad tokens
The towers' blocks are tested in ../qwen3vl, the VAE's in ../vae_qwen21.
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps} from the fixture's scheduler_config.json.
"""

import os

import torch
from PIL import Image

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "template", "long", "empty"]
HIDDEN_TEXTS = 2  # number of text cases with hidden states, besides the image cases


def image_case(spec, k, wanted):
    columns, rows = wanted["grid"]
    return inputs.of_tokens(spec, specs.TEXTS, None, k, wanted) | dict(image_tokens=4 * columns * rows, alpha=wanted.get("alpha", []))


def encode_case(pipe, case, pictures, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values = reference_tensors.encode(pipe, prompt, pictures)
        out[f"case{case['index']}.ids.{lane}"] = values["ids"]
        if hidden:
            out[f"case{case['index']}.hidden.{lane}"] = values["hidden"]
        if lane == "cond":
            case["ids_cond"], case["rows_cond"], case["cut"] = len(values["ids"]), len(values["hidden"]), False


def model_numbers(spec):
    mean, deviation = spec.latents_format()
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, layers=spec.layers, ffn=3 * spec.dim, channels=spec.channels,
        text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads, text_head_dim=spec.text_head_dim,
        text_sections=spec.text_sections, text_layers=spec.text_layers, text_ffn=spec.text_ffn, tower_dim=spec.tower_dim,
        tower_heads=spec.tower_heads, tower_layers=spec.tower_layers, tower_taps=spec.tower_taps, tower_ffn=spec.tower_ffn,
        tower_grid=spec.tower_grid, vae_base=spec.vae_base, decoder_base=spec.decoder_base, vae_times=spec.vae_times, vae_layers=spec.vae_layers,
        latents_mean=mean, latents_std=deviation, pixel_multiple=spec.pixel_multiple, picture_area=specs.RESOLUTION**2,
        sample_sigmas=spec.form["sample_sigmas"])


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [image_case(spec, k, wanted) for k, wanted in enumerate(spec.cases)]
    texts = not any(case["references"] for case in cases) and not spec.form["sample_sigmas"]
    if texts:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        pictures = inputs.pictures_of(spec, case) if case["kind"] == "image" else {}
        seen = [Image.fromarray(pictures[name]) for name in sorted(pictures)]
        encode_case(pipe, case, seen, tensors, hidden=case["index"] < len(spec.cases) + HIDDEN_TEXTS)
        if case["kind"] == "image":
            values = reference_tensors.run_case(pipe, case, pictures) | reference_tensors.look(pipe, seen)
            if case["index"] or seen:
                values.pop("decoded", None)
            tensors |= inputs.named(case, {name: value for name, value in values.items() if not name.startswith("moments.")})
    blocks = {}
    if not spec.form["sample_sigmas"]:
        block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
        tensors |= block
    if texts:
        ids = tensors["case0.ids.cond"].long()
        tensors["text.embedding"] = torch.nn.functional.embedding(ids, pipe.text_encoder.get_input_embeddings().weight)
        tensors |= reference_tensors.schedule_references(pipe)
    files.fixture_end(out, spec, tensors, dict(family="qwen21", model=model_numbers(spec), cases=cases, blocks=blocks))
