"""Makes the fixtures with a UNet; ../make.py is the program.

Each NAME/ is as Z-Image's (../make.py): model/, expect.json, reference.safetensors.  sd2, inpaint and refiner link
to what they share with sd1 and sdxl.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids_2.cond        i32 [77] of each text encoder, pads included; .uncond likewise
  hidden.cond pooled.cond    [77, context], [columns]: what encode_prompt gives; .uncond: of no negative prompt, too
  timesteps                  one a call of the UNet, as the scheduler gave them
  sigmas                     one more, of schedulers that have them
  picture.{init,mask}        u8 [H, W, 3]: what goes in
  moments.{init,masked}      [2C, h, w], of image 0: mean, then log variance, before clamping
  encoded.{init,masked}      [N, C, h, w]: drawn from the posterior, scaled; masked of models of 9 channels.  Image k draws from
                             seed + k: init's noise (but at strength 1 with 9 channels), the start's, masked's
  control                    [5, h, w], image 0, of a model of 9 channels: the mask, the masked picture's latent
  latent_000                 [N, C, h, w], what the loop starts from; latents are as the scheduler has them
  latent_001 ...             after every call but the last; not in a batch
  latent decoded picture     as Z-Image's; decoded of small ones alone
Cases of kind "text" have ids; they and the first two images have hidden and pooled, too.

UNet reference tensors: unet.{0..3}.{in,t,out}, [1, C, h, w], of case 0's text and numbers: two sizes, two timesteps.
Block reference tensors, from unet.2's forward, [1, C, h, w]; where they sit says expect.json:
  block.temb                 [1, width]: of the timestep, and of SDXL the numbers and the pooled row
  block.{conv_in,resnet,resnet_plain,resnet_joined,transformer,transformer_mid,down,up}.{in,out}
  block.out.{in,out}         from the last norm to the output
  block.clip{,_2}.{in,out}   [1, 77, hidden] of the layer that expect.json names; clip{,_2}.embedding [77, hidden]
Encoder and decoder reference tensors: as Flux's.
"""

import os

import autoencoders
import files
import inputs
import reference_tensors as zimage_references

from . import folder, reference_tensors, specs

TEXT_CASES = ["unicode", "special", "empty"]
HIDDEN_IMAGES = 2  # of these cases there are hidden states, too


def image_case(spec, k, wanted):
    columns, rows = wanted["grid"]
    return inputs.request(spec, specs.TEXTS, k, wanted) | dict(
        seed=wanted["seed"], batch=wanted.get("batch", 1), init=wanted.get("init", False), mask=wanted.get("mask", False),
        strength=wanted.get("strength"), latent_width=columns, latent_height=rows)


def encode_case(pipe, case, out, hidden):
    for lane, prompt in inputs.lanes(case):
        encoded = reference_tensors.encode(pipe, prompt, negative=lane == "uncond")
        read = bool(encoded["hidden"].any())  # zeros are no encoder's
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
    """The class's name, its own or that of whom it shares it with."""
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
