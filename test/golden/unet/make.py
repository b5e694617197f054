"""Generates the fixtures of UNet pipelines, for ../make.py.

Each NAME/ has Z-Image's layout (../make.py): model/, expect.json, reference.safetensors.  sd2, inpaint and refiner link
to components of sd1 and sdxl.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids_2.cond        i32 [77] of each text encoder, padding included; .uncond likewise
  hidden.cond pooled.cond    [77, context], [columns]: results of encode_prompt; .uncond: also without a negative prompt
  timesteps                  one per call of the UNet, from the scheduler
  sigmas                     one more; only of schedulers that have sigmas
  picture.{init,mask}        u8 [H, W, 3]: input images
  moments.{init,masked}      [2C, h, w], of image 0: mean, then log variance, before clamping
  encoded.{init,masked}      [N, C, h, w]: sampled from the posterior, scaled; masked: only of 9-channel models.  Image k draws from
                             seed + k: noise of init (except at strength 1 with 9 channels), of the start, of masked
  control                    [5, h, w], image 0, 9-channel models: the mask, the masked image's latent
  latent_000                 [N, C, h, w], start of the loop; latents are in the scheduler's scale
  latent_001 ...             after every call but the last; not for batches
  latent decoded picture     as for Z-Image; decoded only of small images
Cases of kind "text" have ids; they and the first two images also have hidden and pooled.

UNet reference tensors: unet.{0..3}.{in,t,out}, [1, C, h, w], with case 0's text and add_time_ids: two sizes, two timesteps.
Block reference tensors, from unet.2's forward, [1, C, h, w]; expect.json has their locations:
  block.temb                 [1, width]: embedding of the timestep, for SDXL also of add_time_ids and the pooled row
  block.{conv_in,resnet,resnet_plain,resnet_joined,transformer,transformer_mid,down,up}.{in,out}
  block.out.{in,out}         from the last norm's input to the output
  block.clip{,_2}.{in,out}   [1, 77, hidden] of the layer named in expect.json; clip{,_2}.embedding [77, hidden]
Encoder and decoder reference tensors: as for Flux.
"""

import os

import autoencoders
import files
import inputs
import reference_tensors as zimage_references

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "special", "empty"]
HIDDEN_IMAGES = 2  # number of image cases with hidden states


def image_case(spec, k, wanted):
    columns, rows = wanted["grid"]
    return inputs.request(spec, specs.TEXTS, k, wanted) | dict(
        seed=wanted["seed"], batch=wanted.get("batch", 1), init=wanted.get("init", False), mask=wanted.get("mask", False),
        strength=wanted.get("strength"), latent_width=columns, latent_height=rows)


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        encoded = reference_tensors.encode(pipe, prompt, negative=lane == "uncond")
        read = bool(encoded["hidden"].any())  # zero embeddings, as for an absent negative prompt, have no ids
        for name, value in encoded.items():
            if read if name.startswith("ids") else hidden:
                out[f"case{case['index']}.{name}.{lane}"] = value
    case["ids_cond"] = max(len(getattr(pipe, name.replace("text_encoder", "tokenizer"))(case["prompt"]).input_ids)
                           for name in reference_tensors.encoders(pipe))


def model_numbers(spec):
    return dict(levels=spec.levels, groups=spec.groups, clips=spec.clips, context=spec.context, time_width=spec.time_width, channels=spec.channels,
                in_channels=spec.form["in_channels"], vae_channels=spec.vae_channels, vae_groups=spec.vae_groups, vae_layers=spec.vae_layers,
                scaling_factor=spec.scaling_factor, pixel_multiple=spec.pixel_multiple)


def scheduler_of(spec):
    """Returns the scheduler's class name, or the name of another class with the same behaviour."""
    form = spec.form if "scheduler" in spec.form else specs.FORMS[spec.form["share"]]
    return form["scheduler"]["_class_name"]


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    folder.write(spec, os.path.join(target, "model"), scheduler_of(spec))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases = [image_case(spec, k, wanted) for k, wanted in enumerate(spec.cases)]
    own_texts = not any(part.startswith("text_encoder") for part in spec.form["shares"])
    if own_texts:
        cases += inputs.of_texts([specs.TEXTS[name] for name in TEXT_CASES], len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors, hidden=case["kind"] == "text" or case["index"] < HIDDEN_IMAGES)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case, inputs.pictures_of(spec, case)))
    more, calls = reference_tensors.unet_references(pipe, spec, cases, tensors)
    tensors |= more
    more, blocks = reference_tensors.block_references(pipe, cases[0], tensors)
    tensors |= more
    kept = [(reference_tensors.text_references, (pipe, tensors))] if own_texts else []
    if "vae" not in spec.form["shares"]:
        kept += [(autoencoders.encoder_references, (pipe, spec)), (zimage_references.decoder_references, (pipe, spec))]
    for references, given in kept:
        more, about = references(*given)
        tensors |= more
        blocks |= about
    files.fixture_end(out, spec, tensors, dict(family="unet", model=model_numbers(spec), cases=cases, unet=calls, blocks=blocks))
