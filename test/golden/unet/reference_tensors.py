"""Runs the reference of the UNet pipelines and records inputs and outputs as reference tensors."""

import inspect

import diffusers
import numpy as np
import torch
from PIL import Image

from inputs import of_case
from watch import Watch

# Pipeline classes with img2img and inpainting, which run with the components of the folder's class; key: SDXL or not.
BESIDE = {
    False: dict(text="StableDiffusionPipeline", init="StableDiffusionImg2ImgPipeline", mask="StableDiffusionInpaintPipeline"),
    True: dict(text="StableDiffusionXLPipeline", init="StableDiffusionXLImg2ImgPipeline", mask="StableDiffusionXLInpaintPipeline"),
}

TIMESTEPS = [981.0, 240.5]
SIZES = [(10, 18), (13, 7)]  # latent columns and rows of the UNet's forward passes

DECODED_MOST = 40  # cases of at most this many latent pixels also store the decoded image in f32


def exact_roots():
    """Makes the schedulers' square roots correctly rounded, as in ../samplers.py: PyTorch's (MKL) err in the last bit, depending
    on the processor."""
    power = torch.Tensor.__pow__

    def rounded(x, y):
        is_root = isinstance(y, float) and y == 0.5 and x.dtype == torch.float32
        return x.double().sqrt().float() if is_root else power(x, y)

    torch.Tensor.__pow__ = rounded


exact_roots()


def is_xl(pipe):
    return hasattr(pipe, "text_encoder_2")


def encoders(pipe):
    return [name for name in ("text_encoder", "text_encoder_2") if getattr(pipe, name, None) is not None]


def load(folder):
    name = diffusers.DiffusionPipeline.load_config(folder)["_class_name"]
    pipe = getattr(diffusers, name).from_pretrained(folder, dtype=torch.float32)
    for part in ["unet", "vae", *encoders(pipe)]:
        getattr(pipe, part).requires_grad_(False).eval()
    return pipe


def beside(pipe, what):
    """Returns a pipeline with the same components for text, an image, or an image with a mask."""
    return with_components(pipe, getattr(diffusers, BESIDE[is_xl(pipe)][what]))


def with_components(pipe, kind, **more):
    """Returns a pipeline of this kind with the same components, and more."""
    taken = inspect.signature(kind.__init__).parameters
    given = {**pipe.components, **{k: v for k, v in pipe.config.items() if k in ("force_zeros_for_empty_prompt", "requires_aesthetics_score")}}
    given |= {"requires_safety_checker": False, "add_watermarker": False} | more
    out = kind(**{name: value for name, value in given.items() if name in taken})
    out.set_progress_bar_config(disable=True)
    return out


@torch.no_grad()
def encode(pipe, prompt, negative=False):
    """Returns the reference tensors of one prompt by the pipeline's own code; negative: a negative prompt, which
    may be None."""
    out = {}
    text = (prompt or "") if negative else prompt
    for i, name in enumerate(encoders(pipe)):
        tokenizer = getattr(pipe, name.replace("text_encoder", "tokenizer"))
        assert len(tokenizer(text).input_ids) <= 77, text
        ids = tokenizer(text, padding="max_length", max_length=77, truncation=True).input_ids
        out[f"ids_{i + 1}" if i else "ids"] = torch.tensor(ids, dtype=torch.int32)
    texts = ("fox", prompt) if negative else (prompt, None)
    encoded = beside(pipe, "text").encode_prompt(texts[0], device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=negative,
                                                 negative_prompt=texts[1])
    out["hidden"] = encoded[1 if negative else 0][0]
    if is_xl(pipe):
        out["pooled"] = encoded[3 if negative else 2][0]
    return out


def numbers(pipe, case, negative=False):
    size = [float(case["height"]), float(case["width"])]
    if pipe.config.get("requires_aesthetics_score"):
        return [*size, 0.0, 0.0, 2.5 if negative else 6.0]
    return [*size, 0.0, 0.0, *size]


def beside_text(pipe, pooled, ids):
    """Returns SDXL's added_cond_kwargs, or None for other models."""
    return {"text_embeds": pooled[None], "time_ids": torch.tensor([ids], dtype=pooled.dtype)} if is_xl(pipe) else None


def _call(pipe, case, pictures, generator):
    common = dict(prompt=case["prompt"], negative_prompt=case["negative_prompt"], num_inference_steps=case["steps"],
                  guidance_scale=case["cfg_scale"], generator=generator)
    size = dict(height=case["height"], width=case["width"])
    if case["mask"]:
        return beside(pipe, "mask"), common | size | dict(image=pictures["init"], mask_image=pictures["mask"], strength=case["strength"])
    if case["init"]:
        return beside(pipe, "init"), common | dict(image=pictures["init"], strength=case["strength"])
    return beside(pipe, "text"), common | size


class _Recording:
    def __init__(self, pipe, runner):
        self.vae, self.runner = pipe.vae, runner
        self.moments, self.encoded, self.latents, self.timesteps, self.decoded, self.start, self.inputs = [], [], [], [], [], [], []

    def __enter__(self):
        encode, prepare = self.vae.encode, self.runner.prepare_latents

        def encode_and_record(picture):
            out = encode(picture)
            self.moments.append(out.latent_dist.parameters[0].clone())
            sample = out.latent_dist.sample

            def keep(generator=None):
                z = sample(generator)
                self.encoded.append(z * self.vae.config.scaling_factor)
                return z

            out.latent_dist.sample = keep
            return out

        def prepare_and_record(*args, **kwargs):
            out = prepare(*args, **kwargs)
            self.start.append((out[0] if isinstance(out, tuple) else out).clone())
            return out

        self.restore = [(self.vae, "encode", encode), (self.runner, "prepare_latents", prepare)]
        self.vae.encode, self.runner.prepare_latents = encode_and_record, prepare_and_record
        self.hooks = [
            self.vae.decoder.register_forward_hook(lambda _m, _i, out: self.decoded.append(out.clone())),
            self.runner.unet.register_forward_pre_hook(lambda _m, args, kw: self.inputs.append(args[0].clone()), with_kwargs=True)]
        return self

    def on_step(self, _pipe, _i, t, values):
        self.latents.append(values["latents"].clone())
        self.timesteps.append(float(t))
        return {}

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()
        for what, name, value in self.restore:
            setattr(what, name, value)


def _of_images(images, case, references):
    names = ["init", "masked"] if case["init"] and len(images[0].encoded) == 2 else ["masked"] if case["mask"] else ["init"] if case["init"] else []
    for i, name in enumerate(names):
        if name == "masked" and images[0].inputs[0].shape[1] != 9:
            continue  # the pipeline encodes the masked image but does not use it
        references[f"moments.{name}"] = images[0].moments[i]
        references[f"encoded.{name}"] = torch.cat([image.encoded[i] for image in images])
    references["latent_000"] = torch.cat([image.start[0] for image in images])
    references["latent"] = torch.cat([image.latents[-1] for image in images])
    references["picture"] = torch.cat([image.picture for image in images])
    if case["batch"] > 1:
        return
    references["picture"] = references["picture"][0]
    if case["latent_width"] * case["latent_height"] <= DECODED_MOST:
        references["decoded"] = images[0].decoded[0][0]
    for i, latent in enumerate(images[0].latents[:-1]):
        references[f"latent_{i + 1:03}"] = latent


@torch.no_grad()
def run_case(pipe, case, pictures, call=_call):
    """Runs one case; returns tensors by name, without the case's prefix.

    Image k of a batch is a separate call with seed + k.  Hooks record encoded and decoded images and the
    start latent, so they are exactly the pipeline's.
    """
    references, images = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}, []
    pictures = {name: Image.fromarray(p) for name, p in pictures.items()}
    for k in range(case["batch"]):
        runner, arguments = call(pipe, case, pictures, torch.Generator().manual_seed(case["seed"] + k))
        with _Recording(pipe, runner) as recording:
            picture = runner(**arguments, output_type="pil", callback_on_step_end=recording.on_step).images[0]
        recording.picture = torch.from_numpy(np.array(picture))[None]
        images.append(recording)
    _of_images(images, case, references)
    scheduler, steps = pipe.scheduler, images[0].timesteps
    references["timesteps"] = torch.tensor(steps)
    if hasattr(scheduler, "sigmas"):
        references["sigmas"] = scheduler.sigmas[len(scheduler.timesteps) - len(steps):].clone()
    if images[0].inputs[0].shape[1] == 9:
        # control: the mask, then the masked image's latent
        references["control"] = images[0].inputs[0][0, 4:].clone()
    case["calls"] = len(steps)
    check_draws(case, references, pipe.unet.config.in_channels)
    return references


def check_draws(case, references, in_channels):
    """Checks the order of random draws that the tests reproduce, per image.  A start without an
    image's part is noise times a number."""
    shape = references["latent_000"][0].shape
    for k in range(case["batch"]):
        generator = torch.Generator().manual_seed(case["seed"] + k)
        if case["init"] and not (in_channels == 9 and case["strength"] == 1):
            # the pipeline draws the posterior's noise even if the image does not affect the start
            torch.randn([1, *shape], generator=generator)
        noise = torch.randn([1, *shape], generator=generator)[0]
        start = references["latent_000"][k]
        if case["init"] and not (case["mask"] and case["strength"] == 1):
            start = start - references["encoded.init"][k] * _share(start, references["encoded.init"][k], noise)
        ratio = start / noise
        assert torch.allclose(ratio, ratio.median().expand_as(ratio), rtol=2e-3, atol=2e-3), case["index"]


def _share(start, picture, noise):
    """Returns the factor of the image in a mixture of image and noise."""
    return torch.linalg.lstsq(torch.stack([picture.flatten(), noise.flatten()], 1), start.flatten()).solution[0]


@torch.no_grad()
def unet_call(pipe, known, case, latent, t, lane="cond"):
    """Runs one forward pass of the UNet; the latent [1, C, h, w] includes concatenated channels."""
    pooled = known.get(f"pooled.{lane}")
    return pipe.unet(latent, t, encoder_hidden_states=known[f"hidden.{lane}"][None],
                     added_cond_kwargs=beside_text(pipe, pooled, numbers(pipe, case)), return_dict=False)[0]


@torch.no_grad()
def unet_references(pipe, spec, cases, references):
    """Records complete forward passes at two timesteps and two sizes, with case 0's text; concatenated channels are
    noise."""
    out, about = {}, []
    known = of_case(references, 0)
    for i, (columns, rows) in enumerate(SIZES):
        for k, t in enumerate(TIMESTEPS):
            name = f"unet.{2 * i + k}"
            generator = torch.Generator().manual_seed(spec.seed % 2**31 + 2 * i + k)
            latent = torch.randn([1, spec.form["in_channels"], rows, columns], generator=generator)
            out[f"{name}.in"], out[f"{name}.t"] = latent, torch.tensor([t])
            out[f"{name}.out"] = unet_call(pipe, known, cases[0], latent, torch.tensor(t))
            about.append(dict(name=name, t=t, numbers=numbers(pipe, cases[0])[:spec.form["vector"] or 0]))
    return out, about


def watched(unet):
    """Returns the paths of the modules with reference tensors, by reference tensor name."""
    levels = len(unet.down_blocks)
    attending = [i for i in range(levels) if hasattr(unet.down_blocks[i], "attentions")]
    return {
        "block.conv_in": "conv_in",
        "block.resnet": "down_blocks.1.resnets.0",           # a resnet whose input and output channels differ
        "block.resnet_plain": "mid_block.resnets.1",
        "block.resnet_joined": f"up_blocks.{levels - 1}.resnets.1",
        "block.transformer": f"down_blocks.{attending[0]}.attentions.1",
        "block.transformer_mid": "mid_block.attentions.0",
        "block.down": "down_blocks.0.downsamplers.0",
        "block.up": f"up_blocks.{levels - 2}.upsamplers.0",    # an upsampler to an odd size
        "block.out": "conv_norm_out",
        "block.conv_out": "conv_out",
    }


@torch.no_grad()
def block_references(pipe, case, references):
    """Records one block of each kind in a complete forward pass, at the last but one size and timestep."""
    unet, known = pipe.unet, of_case(references, 0)
    names = watched(unet)
    given = {}
    hook = unet.mid_block.resnets[1].register_forward_pre_hook(lambda _m, args: given.update(temb=args[1].clone()))
    with Watch({name: unet.get_submodule(path) for name, path in names.items()}) as watch:
        unet_call(pipe, known, case, references["unet.2.in"], references["unet.2.t"][0])
    hook.remove()
    out = watch.tensors
    del out["block.out.out"]
    out["block.out.out"] = out.pop("block.conv_out.out")
    del out["block.conv_out.in"]
    out["block.temb"] = given["temb"]
    return out, {name: dict(module=path) for name, path in names.items() if name != "block.conv_out"}


@torch.no_grad()
def text_references(pipe, references):
    """Records a middle layer of each text encoder, and the input of its first layer."""
    out, about = {}, {}
    for i, name in enumerate(encoders(pipe)):
        encoder, end = getattr(pipe, name), f"_{i + 1}" if i else ""
        inner = encoder.text_model if hasattr(encoder, "text_model") else encoder
        layer = (len(inner.encoder.layers) - 1) // 2
        with Watch({f"block.clip{end}": inner.encoder.layers[layer]}) as watch:
            embedded = encoder(input_ids=references[f"case0.ids{end}.cond"].long()[None], output_hidden_states=True).hidden_states[0]
        out |= watch.tensors
        out[f"clip{end}.embedding"] = embedded[0]
        about[f"block.clip{end}"] = dict(layer=layer)
    return out, about
