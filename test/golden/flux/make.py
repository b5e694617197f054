"""Generates the Flux.1 fixtures, for ../make.py.

Each NAME/ has Z-Image's layout (../make.py): model/, expect.json, reference.safetensors.  flux_kontext,
flux_fill and flux_redux (redux.py) link to components of flux_a.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids_2.cond        i32, CLIP's (77) and T5's (max_sequence_length), padding included; .uncond likewise
  hidden.cond pooled.cond    [T, t5_hidden], [clip_hidden]: results of encode_prompt
  sigmas timesteps           n+1 and n values, of the steps that are run
  picture.{init,mask,reference_000,...}   u8 [H, W, 3]: input images
  moments.{init,masked,reference_000,...}  [2C, h, w], of image 0: mean, then log variance, before clamping
  encoded.{...}              [N, C, h, w]: init and masked sampled from the posterior, references its mean; after
                             scale and shift.  Image k draws from seed + k: noise of init, of the start, of masked
  control                    [C + factor^2, h, w], image 0, Fill only: the masked image's latent, the mask
  latent_000                 [N, C, h, w], start of the loop
  latent_001 ...             after every step but the last; not for batches
  latent decoded picture     as for Z-Image
Cases of kind "text" have ids and pooled; the first two cases of each kind have hidden states.

Block reference tensors, from one forward at case 0's step 1 with the first block.text_tokens text tokens and
case 0's references (in: latent_001, hidden.cond, pooled.cond, batch of one):
  block.t block.temb         timestep / 1000 as passed by the pipeline; [1, dim]
  block.{double,single}.{in,out}   [1, tokens, dim], text then image (then references)
  block.final.{in,out}  block.final_small.{in,out}   image rows before the last norm, and packed velocity
  block.velocity             like block.final.out, [1, tokens, 4 C], including rows of references
  embed.{image,text}.{in,out}   packed rows (C, ph, pw); Fill: latent, masked, mask
  rope rope.ids              [tokens, head_dim / 2, 2] cos and sin; i32 [tokens, 3]
  block.clip.{in,out} block.t5.{in,out}   [1, T, hidden] of the layers named in expect.json
  clip.embedding t5.embedding   [T, hidden] of case 0's ids (clip's with positions)
  t5.distance_bias t5.buckets   [heads, 1023] for 512 tokens, key minus query starting at -511; i32 [2047] starting at -1023
Encoder reference tensors: encoder.{in,out}, [1, 3, H, W] to moments [1, 2C, h, w]; encoder.{resnet,downsampler,mid}.{in,out}.
Decoder reference tensors: as for Z-Image.
Without a model: schedule_tokens.{steps}.{tokens}.{sigmas,timesteps} (flux_a), schedule.{steps}.{shift}... (flux_b).
"""

import os

import autoencoders
import files
import inputs
import reference_tensors as zimage_references

from . import folder, redux, reference_tensors, specs

TEXT_CASES = ["unicode", "long", "special", "empty"]
HIDDEN_TEXTS = 2  # number of text cases with hidden states, besides the first two image cases


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        if prompt is None:  # images alone
            continue
        values, uncut = reference_tensors.encode(pipe, prompt, case["max_sequence_length"])
        if not hidden:
            del values["hidden"]
        for name, value in values.items():
            out[f"case{case['index']}.{name}.{lane}"] = value
        if lane == "cond":
            case["ids_cond"], case["ids_2_cond"] = uncut
            case["cut"] = uncut[0] > 77
            case["cut_2"] = uncut[1] > case["max_sequence_length"]


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, doubles=spec.doubles, singles=spec.singles,
        channels=spec.channels, clip_hidden=spec.clip_hidden, clip_heads=spec.clip_heads, clip_layers=spec.clip_layers, clip_ffn=spec.clip_ffn,
        t5_hidden=spec.t5_hidden, t5_heads=spec.t5_heads, t5_head_dim=spec.t5_head_dim, t5_layers=spec.t5_layers, t5_ffn=spec.t5_ffn,
        vae_channels=spec.vae_channels, vae_groups=spec.vae_groups, vae_layers=spec.vae_layers, scaling_factor=spec.scaling_factor,
        shift_factor=spec.shift_factor, pixel_multiple=spec.pixel_multiple, guided=spec.form["guided"], fills=spec.form["fills"],
        max_sequence_length=spec.form["tokens_max"])


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [inputs.of_tokens(spec, specs.TEXTS, spec.form["tokens_max"], k, wanted) | redux.of_case(wanted) for k, wanted in enumerate(spec.cases)]
    alone = not spec.form["share"]
    tensors = {}
    if alone:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases), max_sequence_length=spec.form["tokens_max"])
    for case in cases:
        text = case["kind"] == "text"
        encode_case(pipe, case, tensors, hidden=case["index"] in (0, 1) or 0 <= case["index"] - len(spec.cases) < HIDDEN_TEXTS)
        if not text:
            pictures = inputs.pictures_of(spec, case, unit=spec.pixel_multiple) | redux.pictures_of(spec, case)
            if case.get("redux"):
                made = redux.references(pipe, case, pictures)
                if case["index"] not in (0, 1):
                    del made["hidden.cond"]
                tensors |= inputs.named(case, made)
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, pictures))
    if spec.form.get("redux"):  # the transformer's blocks are flux_a's
        block, blocks = redux.block_references(pipe, redux.pictures_of(spec, cases[0]))
    else:
        block, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    tensors |= block
    if alone:
        for more, about in (reference_tensors.text_references(pipe, tensors), autoencoders.encoder_references(pipe, spec), zimage_references.decoder_references(pipe, spec)):
            tensors |= more
            blocks |= about
        tensors |= reference_tensors.schedule_references(spec)
    files.fixture_end(out, spec, tensors, dict(family="flux", model=model_numbers(spec), cases=cases, blocks=blocks))
