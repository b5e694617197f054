"""Generates the Anima fixture, for ../make.py.

It has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; VAE and tokenizers are links.
Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids_2.cond        i32, Qwen's and T5's, truncated to 512, no padding; .uncond likewise; absent for an empty prompt
  hidden.cond                [T5 tokens, width]: prompt_embeds without the rows of zeros up to 512
  moments.init encoded.init  of cases with an input image: mean and log variance; scaled mean
  sigmas timesteps latent_000 latent_001 ... latent decoded picture   as for Flux.1
Cases of kind "text" have ids and hidden.

Block reference tensors, from one forward at case 0's step 1 (in: latent_001; the first block.prompt rows of hidden.cond and
block.zeros rows of padding; batch of one):
  block.t block.time block.shared   timestep / 1000 as passed by the pipeline; [1, dim]; [1, 3 dim]
  block.layer.{in,out}       [1, tokens, dim], the layer named in expect.json
  block.keys block.values    [text rows, dim] of this layer's cross-attention
  block.modulation block.final_modulation   [3, 3 dim] of this layer; [1, 2 dim]
  block.final.{in,out}  block.final_small.{in,out}   rows before the last norm, and velocity in patches (ph, pw, C)
  block.velocity             [1, C, h, w]
  embed.image.{in,out}       patches (C, ph, pw), the padding mask last
  rope                       [tokens, head_dim / 2, 2] cos and sin
  block.text.{in,out}        [1, T, hidden], the layer of Qwen3 named in expect.json; text.embedding [T, hidden]
  source                     [T, hidden]: Qwen3's last hidden state, normed
  block.adapter.{in,out}     [1, T5 tokens, width], the adapter's last layer; adapter.{embedding,out} [T5 tokens, width]
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
            case["cut"], case["cut_2"] = (n > reference_tensors.TOKENS_MAX for n in uncut)


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, layers=spec.layers, low_rank=spec.low_rank, rope_scale=spec.rope_scale,
        channels=spec.channels, adapter_dim=spec.adapter_dim, adapter_heads=spec.adapter_heads, adapter_layers=spec.adapter_layers,
        text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads, text_head_dim=spec.text_head_dim,
        text_layers=spec.text_layers, text_ffn=spec.text_ffn, text_rope_theta=spec.text_theta, text_eps=spec.text_eps,
        pixel_multiple=spec.pixel_multiple, shift=spec.form["shift"])


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
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    block, blocks = reference_tensors.block_references(pipe, tensors)
    text, about = reference_tensors.text_references(pipe, tensors)
    files.fixture_end(out, spec, tensors | block | text, dict(family="anima", model=model_numbers(spec), cases=cases, blocks=blocks | about))
