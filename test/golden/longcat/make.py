"""Generates the LongCat-Image fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors.  longcat_image links to components
of longcat_image_edit.  Prompts are not rewritten (enable_prompt_rewrite off).  Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32: input_ids of the text encoder: template, prompt, padding up to 512, without the end of the template,
                             on which no row depends; .uncond likewise
  hidden.cond                [T, hidden]: result of encode_prompt: 512 rows, with an image its rows and two markers before them
  picture.reference_000      u8 [H, W, 3]: the input image
  pixels.reference_000       u8 [H, W, 3]: the vision tower's input, resized three times; seen.reference_000 [tokens, hidden]: its output
  sigmas timesteps moments.reference_000 encoded.reference_000 latent_000 latent_001 ... latent decoded picture   as for Flux.1
Cases of kind "text" have ids. Only the first two image cases have hidden states.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text tokens and case 0's
reference (in: latent_001, hidden.cond, batch of one): as for Flux.1.
"""

import os

from PIL import Image

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "template", "unbalanced", "long", "empty"]
TOKENS_MAX = 512


def encode_case(pipe, case, pictures, out):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt, pictures)
        out[f"case{case['index']}.ids.{lane}"] = values["ids"]
        if case["kind"] == "image" and case["index"] < 2:
            out[f"case{case['index']}.hidden.{lane}"] = values["hidden"]
        if lane == "cond":
            case["ids_cond"], case["rows_cond"], case["cut"] = uncut, len(values["hidden"]), uncut > TOKENS_MAX


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, doubles=spec.doubles, singles=spec.singles,
        channels=spec.channels, text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads,
        text_sections=spec.text_sections, text_layers=spec.text_layers, text_ffn=spec.text_ffn, tower_dim=spec.tower_dim,
        tower_heads=spec.tower_heads, tower_layers=spec.tower_layers, tower_full=spec.tower_full, tower_ffn=spec.tower_ffn,
        tower_window=spec.tower_window, vae_channels=spec.vae_channels, vae_groups=spec.vae_groups, vae_layers=spec.vae_layers,
        scaling_factor=spec.scaling_factor, shift_factor=spec.shift_factor, pixel_multiple=spec.pixel_multiple,
        picture_area=specs.PICTURE, max_sequence_length=TOKENS_MAX)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, TOKENS_MAX, k, wanted) for k, wanted in enumerate(spec.cases)]
    if not reference_tensors.edits(pipe):
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases), max_sequence_length=TOKENS_MAX)
    tensors = {}
    for case in cases:
        pictures = inputs.pictures_of(spec, case) if case["kind"] == "image" else {}
        seen = [Image.fromarray(pictures[name]) for name in sorted(pictures)]
        encode_case(pipe, case, seen, tensors)
        if case["kind"] == "text":
            continue
        values = reference_tensors.run_case(pipe, case, pictures)
        if seen:
            values |= reference_tensors.look(pipe, seen)
        tensors |= inputs.named(case, values)
    block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    files.fixture_end(out, spec, tensors | block, dict(family="longcat_image", model=model_numbers(spec), cases=cases, blocks=blocks))
