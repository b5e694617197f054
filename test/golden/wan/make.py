"""Generates the WAN fixtures, for ../make.py.

Each NAME/ has Flux.1's layout (../flux/make.py): model/, expect.json, reference.safetensors; shared components are links. Case k's reference tensors have the prefix "case{k}.":
  ids.cond                   i32, </s> included, no padding; .uncond likewise
  hidden.cond                [T, hidden] of these ids; the transformer's input is padded with zeros to 512 rows
  sigmas timesteps           n+1 and n values, f32
  picture.{init,last,mask,reference_000,...}   u8 [H, W, 3]: input images;  picture.control [F, H, W, 3]
  pixels.{init,last}         f32 [3, side, side]: the vision encoder's input; seen.{init,last} [tokens, vision]: its output
  concat                     [4 + C, T, h, w]: channels after the noise: mask, then condition; VACE: control channels [2 C + 64, T, h, w]
  encoded.init               [1, C, h, w]: the clean first frame, in the model's scale
  latent_000 latent          [N, C, T, h, w]: noise of video k from seed + k; end of the loop, including the clean frame, without
                             the frames of references, which precede all other latents
  latent_001 ...             after every step, with the sampler's values for clean frames; not for batches
  decoded                    one case only: [F, 3, H, W], not clamped;  picture: u8 [F, H, W, 3] ([N, F, H, W, 3])
Cases of kind "text" have ids; the first two also hidden states.

Block reference tensors, from one forward at case 0's step 1 (in: latent_001, hidden.cond, case 0's image conditioning):
  block.t block.e block.e6   timestep; [rows, dim] and [rows, 6 dim], rows for timestep 0 and t with a clean frame, else for t
  block.layer.{in,out}       [1, tokens, dim] of the block named in expect.json
  block.final.{in,out} block.final_small.{in,out}    before the last norm, and packed velocity (ph, pw, c)
  block.velocity             [1, C, T, h, w]
  embed.image.{in,out}       packed rows (c, ph, pw); embed.text.out: of hidden.cond and one zero row; embed.seen.out: of vision rows
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]: frame, row, column
  transformer.t{0,1,2}.{t,out}   complete forward passes described in expect.json, the third of transformer_2
Fixtures with their own component:
  block.umt5.{in,out} umt5.embedding umt5.distance_bias   of umT5's layer named in expect.json, on case 0's tokens
  block.vision.{in,out} vision.norm.{in,out}   of the vision encoder, on case 0's first image
  video.encoder.{in,out} video.decoder.{in,out}      [1, channels, F, y, x] of 13 frames, whose first 1, 5 and 9 are videos, too
"""

import os

import files
import inputs

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "special", "long", "empty"]
HIDDEN_TEXTS = 2  # number of text cases with hidden states


def clip_case(spec, k, wanted):
    columns, rows = wanted["grid"]
    return inputs.request(spec, specs.TEXTS, k, wanted) | dict(
        frames=wanted["frames"], cfg_scale_low=wanted["low"], seed=wanted["seed"], batch=wanted["batch"], sampler=wanted["sampler"],
        flow_shift=wanted["shift"], shift=wanted["shift"] or spec.form["shift"], channels=spec.channels, init=wanted["init"], last=wanted["last"],
        decoded=wanted["decoded"], control=wanted["control"], mask=wanted["mask"], references=wanted["references"],
        latent_frames=(wanted["frames"] - 1) // 4 + 1, latent_width=2 * columns, latent_height=2 * rows)


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        ids, rows = reference_tensors.encode(pipe, prompt)
        out[f"case{case['index']}.ids.{lane}"] = ids
        if hidden:
            out[f"case{case['index']}.hidden.{lane}"] = rows
    case["cut"] = len(out[f"case{case['index']}.ids.cond"]) == reference_tensors.TOKENS_MAX


def model_numbers(spec):
    mean, deviation = spec.latents_format()
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, layers=spec.layers, ffn=spec.ffn, freq_dim=spec.freq_dim, channels=spec.channels,
        in_channels=spec.in_channels, text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_layers=spec.text_layers,
        vae_base=spec.vae_base, vae_decoder_base=spec.vae_decoder_base, vae_layers=spec.vae_layers, latents_mean=mean, latents_std=deviation,
        vision_dim=spec.vision_dim, vision_tokens=spec.vision_tokens, pixel_multiple=spec.pixel_multiple, shift=spec.form["shift"],
        boundary=spec.form["boundary"])


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [clip_case(spec, k, wanted) for k, wanted in enumerate(spec.cases)]
    own = [part for part in ("text_encoder", "vae", "image_encoder") if part not in spec.form["shares"]]
    if "text_encoder" in own:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors, hidden=case["kind"] == "image" or case["index"] - len(spec.cases) < HIDDEN_TEXTS)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    first = inputs.of_case(tensors, 0)
    kept = [(reference_tensors.block_references, (pipe, cases[0], first)), (reference_tensors.transformer_references, (pipe, cases[0], first))]
    if "text_encoder" in own:
        kept.append((reference_tensors.text_references, (pipe, first)))
    if "image_encoder" in own and spec.form["image_encoder"]:
        kept.append((reference_tensors.vision_references, (pipe, first)))
    if "vae" in own:
        kept.append((reference_tensors.vae_references, (pipe, spec)))
    blocks = {}
    for references, given in kept:
        more, about = references(*given)
        tensors |= more
        blocks |= about
    files.fixture_end(out, spec, tensors, dict(family="wan", model=model_numbers(spec), cases=cases, blocks=blocks))
