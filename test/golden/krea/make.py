"""Generates the Krea 2 fixtures, for ../make.py.

They have Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; the VAE is a link to qwen_edit_plus.
krea2_turbo has the weights of krea2 (links) and is_distilled. Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, template included, truncated before its last 5 tokens, no padding; .uncond likewise
  hidden.cond                [T, taps * hidden]: prompt_embeds without padding: the first 34 tokens are dropped; of the first
                             two cases
  sigmas timesteps latent_000 latent_001 ... latent decoded picture   as for Flux.1
Cases of kind "text" have ids.

Block reference tensors, from one forward at case 0's step 1 (in: latent_001; the first block.text_tokens rows of hidden.cond;
batch of one):
  block.t block.temb block.modulation   timestep / 1000 as passed by the pipeline; [1, dim]; [1, 6 dim]
  block.taps.{in,out}        [taps * T, hidden], tap by tap
  block.fused                [T, hidden], the sum of the taps
  block.refiner.{in,out}     [1, T, hidden]
  block.layer.{in,out}       [1, tokens, dim], text then image
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and packed velocity
  block.velocity             like block.final.out, [1, tokens, 4 C]
  embed.text.{in,out}        [1, T, hidden] and [1, T, dim];  embed.small_text: the first rows times 0.01
  embed.image.out            [1, tokens, dim]
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps}.
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["template", "unicode", "long", "empty"]
HIDDEN_CASES = 2  # number of image cases with hidden states


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt)
        if not hidden:
            del values["hidden"]
        out |= inputs.named(case, {f"{name}.{lane}": value for name, value in values.items()})
        if lane == "cond":
            case["cut"] = uncut > len(values["ids"])


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, key_heads=spec.key_heads, head_dim=spec.head_dim, axes=spec.axes, layers=spec.layers, ffn=spec.ffn,
        channels=spec.channels, fusion_heads=spec.fusion_heads, fusion_key_heads=spec.fusion_key_heads, taps=spec.taps,
        text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads, text_layers=spec.text_layers,
        text_ffn=spec.text_ffn, pixel_multiple=spec.pixel_multiple)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, reference_tensors.TOKENS_MAX, k, wanted) for k, wanted in enumerate(spec.cases)]
    alone = spec.name == "krea2"
    if alone:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors, case["index"] < HIDDEN_CASES)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case))
    about = dict(family="krea2", model=model_numbers(spec), cases=cases, blocks={})
    if alone:
        block, about["blocks"] = reference_tensors.block_references(pipe, tensors)
        tensors |= block
    files.fixture_end(out, spec, tensors | reference_tensors.schedule_references(pipe), about)
