"""Generates the Chroma fixture, for ../make.py.

chroma_hd/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; text encoder, tokenizer and VAE are
links to those of flux_a. The reference's attention mask is boolean (reference_tensors.mask_keys). Case k's reference tensors
have the prefix "case{k}.":
  ids.cond                   i32, T5's, with one padding token unless 512 tokens are reached; .uncond likewise
  hidden.cond                [T, t5_hidden]: the same rows of encode_prompt, which pads to 512 and masks T5's padding
  sigmas timesteps           n+1 and n values, of the steps that are run
  picture.init               u8 [H, W, 3]: input image
  moments.init encoded.init  as for Flux.1
  latent_000                 [N, C, h, w], start of the loop
  latent_001 ...             after every step but the last; not for batches
  latent decoded picture     as for Z-Image
Cases of kind "text" have ids; the first two cases of each kind and the cut prompt have hidden states.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text tokens
(in: latent_001, hidden.cond, batch of one):
  block.t                    timestep / 1000 as passed by the pipeline
  block.rows.{in,out}        [1, R, 64], [1, R, dim]: the approximator; R = 3 singles + 12 doubles + 2
  block.{double,single}.{in,out}   [1, tokens, dim], text then image
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and packed velocity
  block.velocity             like block.final.out
  embed.{image,text}.{in,out}   packed rows (C, ph, pw)
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]
Without a model: {schedule,schedule_beta}.{steps}.{shift}.{sigmas,timesteps}.
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "long", "special", "empty"]
HIDDEN = 2  # number of leading cases of each kind with hidden states


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt or "", case["max_sequence_length"])
        if not hidden:
            del values["hidden"]
        out |= inputs.named(case, {f"{name}.{lane}": value for name, value in values.items()})
        if lane == "cond":
            case["cut"] = uncut > case["max_sequence_length"]


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, doubles=spec.doubles, singles=spec.singles, rows=spec.rows,
        hidden=spec.hidden, channels=spec.channels, t5_hidden=spec.t5_hidden, vae_channels=spec.vae_channels,
        scaling_factor=spec.scaling_factor, shift_factor=spec.shift_factor, pixel_multiple=spec.pixel_multiple,
        max_sequence_length=spec.form["tokens_max"])


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    tokens_max, tensors = spec.form["tokens_max"], {}
    cases = [inputs.of_tokens(spec, specs.TEXTS, tokens_max, k, wanted) for k, wanted in enumerate(spec.cases)]
    cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases), max_sequence_length=tokens_max)
    for case in cases:
        encode_case(pipe, case, tensors, hidden=case["index"] < HIDDEN or 0 <= case["index"] - len(spec.cases) < HIDDEN)
        if case["kind"] == "image":
            pictures = inputs.pictures_of(spec, case, unit=spec.pixel_multiple)
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, pictures))
    block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    tensors |= block | reference_tensors.schedule_references()
    files.fixture_end(out, spec, tensors, dict(family="chroma", model=model_numbers(spec), cases=cases, blocks=blocks))
