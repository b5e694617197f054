"""Generates the Flux.2 fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors.  flux2_klein_base links to all
components of flux2_klein; only model_index.json differs.  Latents are packed: C is four times the VAE's latent channels, and
a token is one latent pixel.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32 [512], the template and padding included; .uncond likewise
  hidden.cond                [512, 3 text_hidden]: result of encode_prompt, including rows of padding; case 0 and the first
                             two cases of kind "text"
  sigmas timesteps           n+1 and n values, of the steps that are run
  picture.{init,mask,reference_000,...}   u8 [H, W, 3]: input images, before cropping
  encoded.{init,reference_000,...}        [N, C, h, w]: the posterior's mean, packed and normalised
  latent_000 latent_001 ... latent decoded picture   as for Flux.1, latents packed
Cases of kind "text" have ids.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text tokens and
case 0's references (in: latent_001, hidden.cond; batch of one):
  block.t block.temb         timestep / 1000 as passed by the pipeline; [1, dim]
  block.modulation.{image,text,single,final}   [1, 6 dim], [1, 6 dim], [1, 3 dim], [1, 2 dim] (scale, shift)
  block.{double,single}.{in,out}   [1, tokens, dim], text, image, references
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and velocity
  block.velocity             like block.final.out, [1, tokens, C], including rows of references
  embed.{image,text}.{in,out}
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 4]
Fixtures with their own text encoder:
  text.ids                   i32 [T]: case 0's tokens with a few of its padding tokens
  text.embedding block.text.{in,out}   [T, hidden]; [1, T, hidden] of the layer named in expect.json, padding masked as key;
                             dev: block.mistral.{in,out}
The VAE's parts are tested in ../vae_flux2.
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps}.
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["empty", "long", "unicode", "template"]
HIDDEN_TEXTS = 2  # number of text cases with hidden states, besides image case 0
TOKENS_MAX = 512


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values, n = reference_tensors.encode(pipe, prompt)
        out[f"case{case['index']}.ids.{lane}"] = values["ids"]
        if hidden:
            out[f"case{case['index']}.hidden.{lane}"] = values["hidden"]
        if lane == "cond":
            case["keys_cond"], case["cut"] = n, reference_tensors.uncut(pipe, prompt) > TOKENS_MAX


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, doubles=spec.doubles, singles=spec.singles,
        channels=spec.channels, guided=spec.form["guided"], distilled=spec.form["distilled"], text_hidden=spec.text_hidden,
        text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads, text_head_dim=spec.text_head_dim, text_layers=spec.text_layers,
        text_read=spec.text_read, text_ffn=spec.text_ffn, vae_channels=spec.vae_channels, decoder_channels=spec.decoder_channels,
        vae_groups=spec.vae_groups, vae_layers=spec.vae_layers, pixel_multiple=spec.pixel_multiple, max_sequence_length=TOKENS_MAX)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, TOKENS_MAX, k, wanted) | dict(
        latent_width=wanted["grid"][0], latent_height=wanted["grid"][1]) for k, wanted in enumerate(spec.cases)]
    alone = not spec.form["share"]
    tensors = {}
    if alone:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases), max_sequence_length=TOKENS_MAX)
    for case in cases:
        encode_case(pipe, case, tensors, hidden=case["index"] == 0 or 0 <= case["index"] - len(spec.cases) < HIDDEN_TEXTS)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    tensors |= block
    if alone:
        more, about = reference_tensors.text_references(pipe, tensors)
        blocks |= about
        tensors |= more | reference_tensors.schedule_references(pipe)
    files.fixture_end(out, spec, tensors, dict(family="flux2", model=model_numbers(spec), cases=cases, blocks=blocks))
