"""Generates the fixtures of Stable Diffusion 3 and 3.5, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; sd35_medium and sd35_large link to
components of sd3_medium, and each lacks one text encoder. Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids_2.cond ids_3.cond   i32, CLIP-L's and CLIP-G's (77), T5's (256), padding included; .uncond likewise
  hidden.cond pooled.cond    [333, columns], [columns]: L | G | zeros above, T5's rows (or zeros) below; L | G.  Zeros replace
                             an absent CLIP-L
  sigmas timesteps           n+1 and n values, of the steps that are run
  picture.{init,mask}        u8 [H, W, 3]: input images
  moments.init encoded.init  [2C, h, w], of image 0: mean, then log variance, before clamping; [N, C, h, w]: sampled from it, scaled.  Image k
                             draws from seed + k: noise of init, of the start
  latent_000                 [N, C, h, w], start of the loop
  latent_001 ...             after every step but the last; not for batches
  latent decoded picture     as for Z-Image
Cases of kind "text" have ids and pooled; the first two cases of each kind have hidden states.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text rows (in: latent_001,
hidden.cond, pooled.cond, batch of one):
  block.t block.temb         the timestep; [1, dim]
  block.{joint,second,last}.{in,out}   [1, tokens, dim], text then image; second: with a second attention; last: outputs the image's rows only
  block.final.{in,out}  block.final_small.{in,out}   before the last norm, and packed velocity (c, ph, pw)
  block.velocity             [1, tokens, 4 C], packed likewise
  embed.image.{in,out}       packed rows (c, ph, pw), with position embeddings;  positions [tokens, dim]: the table's centre
  embed.text.{in,out}        [1, block.text_tokens, columns], [1, block.text_tokens, dim]
  transformer.t{0,1,2}.{t,out}   complete forward passes described in expect.json, the third without some blocks
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "special", "long", "empty"]
HIDDEN = 2  # number of leading cases of each kind with hidden states


def image_case(spec, k, wanted):
    slg = wanted.get("slg") or dict(layers=[], scale=None, start=None, end=None)
    return inputs.of_tokens(spec, specs.TEXTS, reference_tensors.TOKENS_MAX, k, wanted) | {f"slg_{name}": value for name, value in slg.items()}


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        values, uncut = reference_tensors.encode(pipe, prompt or "")
        if not hidden:
            del values["hidden"]
        out |= inputs.named(case, {f"{name}.{lane}": value for name, value in values.items()})
        if lane == "cond":
            case |= {f"cut{place}": n > len(values[f"ids{place}"]) for place, n in uncut.items()}


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, layers=spec.layers, side=spec.side, context=spec.context, pooled=spec.pooled,
        channels=spec.channels, normed=spec.form["normed"], second=spec.form["second"], absent=spec.form["absent"], clips=spec.clips,
        t5_hidden=spec.t5_hidden, t5_layers=spec.t5_layers, vae_channels=spec.vae_channels, vae_groups=spec.vae_groups,
        vae_layers=spec.vae_layers, scaling_factor=spec.scaling_factor, shift_factor=spec.shift_factor, pixel_multiple=spec.pixel_multiple)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [image_case(spec, k, wanted) for k, wanted in enumerate(spec.cases)]
    if not spec.form["share"]:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        image = case["kind"] == "image"
        encode_case(pipe, case, tensors, hidden=case["index"] - (0 if image else len(spec.cases)) < HIDDEN)
        if image:
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    block, blocks = reference_tensors.block_references(pipe, tensors)
    whole, calls = reference_tensors.transformer_references(pipe, cases[0], tensors)
    files.fixture_end(out, spec, tensors | block | whole, dict(family="sd3", model=model_numbers(spec), cases=cases, blocks=blocks | calls))
