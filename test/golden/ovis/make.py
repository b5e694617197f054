"""Generates the Ovis-Image fixture, for ../make.py.

It has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; VAE and scheduler are links to flux_a.
Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, template included, truncated to 284, no padding; .uncond likewise
  hidden.cond                [T, hidden]: prompt_embeds without the rows of zeros up to 256: the first 28 tokens are dropped
  sigmas timesteps latent_000 latent_001 ... latent decoded picture   as for Flux.1
Cases of kind "text" have ids and hidden.

Block reference tensors, from one forward at case 0's step 1 (in: latent_001; the first block.prompt rows of hidden.cond and
block.zeros rows of padding; batch of one):
  block.t block.temb         timestep / 1000 as passed by the pipeline; [1, dim]
  block.{double,single}.{in,out}   [1, tokens, dim], text then image
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and packed velocity
  block.velocity             like block.final.out, [1, tokens, 4 C]
  embed.image.{in,out}       packed rows (C, ph, pw);  embed.text.{in,out}: before the norm, and embedded
  embed.small_text.{in,out}  [8, hidden] and [8, dim], rows times 0.01
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]
  block.text.{in,out}        [1, T, hidden], the layer named in expect.json; text.embedding [T, hidden]
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "long", "template", "empty"]


def encode_case(pipe, case, out):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt)
        out |= inputs.named(case, {f"{name}.{lane}": value for name, value in values.items()})
        if lane == "cond":
            case["cut"] = uncut > len(values["ids"])


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, doubles=spec.doubles, singles=spec.singles, channels=spec.channels,
        text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads, text_head_dim=spec.text_head_dim,
        text_layers=spec.text_layers, text_ffn=spec.text_ffn, text_rope_theta=spec.text_theta, text_eps=spec.text_eps,
        pixel_multiple=spec.pixel_multiple)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, reference_tensors.TOKENS_MAX, k, wanted) for k, wanted in enumerate(spec.cases)]
    cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case))
    block, blocks = reference_tensors.block_references(pipe, tensors)
    text, about = reference_tensors.text_references(pipe, tensors)
    files.fixture_end(out, spec, tensors | block | text, dict(family="ovis", model=model_numbers(spec), cases=cases, blocks=blocks | about))
