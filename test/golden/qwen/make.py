"""Generates the Qwen-Image fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors.  qwen_image links to components
of qwen_edit_plus.  Images are resized to the small areas of specs.py.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, including the template and an image's repeated pad tokens, up to the last row of hidden; .uncond likewise
  hidden.cond                [T, hidden]: result of encode_prompt: without the template's first tokens, truncated
  sigmas timesteps           n+1 and n values, of the steps that are run
  picture.{init,reference_000,...}   u8 [H, W, 3]: input images
  pixels.reference_000 ...   u8 [H, W, 3]: the vision tower's input, resized twice; seen.reference_000 [tokens, hidden]: its output
  moments.{init,reference_000,...}  [2C, h, w]: mean, then log variance, before clamping
  encoded.{...}              [N, C, h, w]: init sampled from the posterior, references its mean; in the model's scale
  latent_000 latent_001 ... latent decoded picture   as for Flux.1; decoded is not clamped
Cases of kind "text" have ids; the first two also hidden states.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text tokens and
case 0's references (in: latent_001, hidden.cond; batch of one):
  block.t block.temb         timestep / 1000 as passed by the pipeline; [1, dim], with zero_cond_t a second row for timestep 0
  block.dual.{in,out}        [1, tokens, dim], text, image, references: of the block named in expect.json
  block.last.{in,out}        of the last block; out: the image's rows only, as used later
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and packed velocity
  block.velocity             like block.final.out, [1, tokens, 4 C]
  embed.image.{in,out}       packed rows (C, ph, pw);  embed.text.{in,out}: before the norm, and embedded
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]
Fixtures with their own text encoder:
  block.language.{in,out}      [1, T, hidden] of the layer named in expect.json, on all of case 0's tokens
  text.embedding             [T, hidden], including rows of images;  text.positions i32 [3, T];  text.rope [T, head_dim / 2, 2]
  block.tower.{in,out} block.tower_full.{in,out}   [1, tokens, dim] of a block with window attention and of one with full
                             attention, at case 0's first image; rows window by window, within each 2x2 by 2x2
  tower.patches.out tower.positions tower.rope     in that order: embedded patches, i32 [tokens, 2] row and column, [tokens, head_dim / 2, 2]
  tower.merger.{in,out}      before the norm, and a row for each 2x2, in the same order
Encoder and decoder reference tensors: as for Flux.1; decoder.out is not clamped.
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps} from the fixture's scheduler_config.json.
"""

import os

from PIL import Image

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "template", "long", "medium", "empty"]
HIDDEN_TEXTS = 2  # number of text cases with hidden states, besides the first two image cases
TOKENS_MAX = 512


def encode_case(pipe, case, pictures, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt, pictures, case["max_sequence_length"])
        out[f"case{case['index']}.ids.{lane}"] = values["ids"]
        if hidden:
            out[f"case{case['index']}.hidden.{lane}"] = values["hidden"]
        if lane == "cond":
            case["ids_cond"], case["rows_cond"] = uncut, len(values["hidden"])
            case["cut"] = case["rows_cond"] < uncut - pipe.prompt_template_encode_start_idx


def model_numbers(spec):
    mean, deviation = spec.latents_format()
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, layers=spec.layers, channels=spec.channels,
        zero_cond_t=bool(spec.form["zero_cond_t"]), text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads,
        text_sections=spec.text_sections, text_layers=spec.text_layers, text_ffn=spec.text_ffn, tower_dim=spec.tower_dim,
        tower_heads=spec.tower_heads, tower_layers=spec.tower_layers, tower_full=spec.tower_full, tower_ffn=spec.tower_ffn,
        tower_window=spec.tower_window, vae_base=spec.vae_base, vae_times=spec.vae_times, vae_layers=spec.vae_layers, latents_mean=mean,
        latents_std=deviation, pixel_multiple=spec.pixel_multiple, tower_area=specs.PLUS_TOWER if spec.name == "qwen_edit_plus" else specs.PICTURE,
        picture_area=specs.PICTURE, max_sequence_length=TOKENS_MAX)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, TOKENS_MAX, k, wanted) for k, wanted in enumerate(spec.cases)]
    sees = spec.form["processor"]
    if not sees:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases), max_sequence_length=TOKENS_MAX)
    tensors = {}
    for case in cases:
        pictures = inputs.pictures_of(spec, case) if case["kind"] == "image" else {}
        seen = [Image.fromarray(pictures[name]) for name in sorted(pictures)] if sees else []
        encode_case(pipe, case, seen, tensors, hidden=case["index"] in (0, 1) or 0 <= case["index"] - len(spec.cases) < HIDDEN_TEXTS)
        if case["kind"] == "text":
            continue
        values = reference_tensors.run_case(pipe, case, pictures)
        if sees:
            values |= reference_tensors.look(pipe, seen)
        tensors |= inputs.named(case, values)
    block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    tensors |= block
    kept = [(reference_tensors.text_references, (pipe, cases[0], tensors))]
    if sees:
        kept += [(reference_tensors.tower_references, (pipe, cases[0], tensors)), (reference_tensors.encoder_references, (pipe, spec)),
                 (reference_tensors.decoder_references, (pipe, spec))]
    for references, given in kept:
        more, about = references(*given)
        tensors |= more
        blocks |= about
    tensors |= reference_tensors.schedule_references(pipe)
    files.fixture_end(out, spec, tensors, dict(family="qwen", model=model_numbers(spec), cases=cases, blocks=blocks))
