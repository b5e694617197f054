"""Runs of transformers that read a latent as tokens of 2x2 pixels (Flux.1, Qwen-Image, Stable Diffusion 3), and what is kept of them."""

import numpy as np
import torch
from PIL import Image

from watch import without_frame


def unpack(pipe, packed, case):
    """Not every pipeline packs."""
    if packed.dim() == 4:
        return packed
    return without_frame(pipe._unpack_latents(packed, case["height"], case["width"], pipe.vae_scale_factor))


class Kept:
    """Everything that passes by while the pipeline runs; scaled: brings what is encoded to the model's scale."""

    def __init__(self, pipe, case, scaled):
        self.pipe, self.case, self.scaled = pipe, case, scaled
        self.steps, self.decoded, self.seen, self.encoded, self.moments = [], [], [], [], []

    def __enter__(self):
        self.encode = self.pipe.vae.encode

        def encode_kept(picture):
            out = self.encode(picture)
            self.moments.append(without_frame(out.latent_dist.parameters)[0].clone())
            sample, mode = out.latent_dist.sample, out.latent_dist.mode

            def keep(z):
                self.encoded.append(without_frame(self.scaled(z)))
                return z

            out.latent_dist.sample = lambda generator=None: keep(sample(generator))
            out.latent_dist.mode = lambda: keep(mode())
            return out

        self.pipe.vae.encode = encode_kept
        self.hooks = [
            self.pipe.vae.decoder.register_forward_hook(lambda _m, _i, out: self.decoded.append(without_frame(out).clone())),
            self.pipe.transformer.register_forward_pre_hook(lambda _m, _a, kw: self.seen.append(kw["hidden_states"].clone()), with_kwargs=True)]
        return self

    def on_step(self, _pipe, _i, _t, values):
        self.steps.append(unpack(self.pipe, values["latents"], self.case).clone())
        return {}

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()
        self.pipe.vae.encode = self.encode


def _start(image, case):
    """What the transformer first saw, of one lane, without what stands beside it."""
    seen = image.seen[0][:1]
    return unpack(image.pipe, seen if seen.dim() == 4 else seen[:, :case["image_tokens"], :4 * case["channels"]], case)


def _of_images(images, case, references):
    """What all images of a case have, image by image."""
    names = ["init", "masked"] if case["init"] else [f"reference_{i:03}" for i in range(len(case["references"]))]
    for i, name in zip(range(len(images[0].encoded)), names):
        references[f"moments.{name}"] = images[0].moments[i]
        references[f"encoded.{name}"] = torch.cat([image.encoded[i] for image in images])
    references["latent_000"] = torch.cat([_start(image, case) for image in images])
    references["latent"] = torch.cat([image.steps[-1] for image in images])
    references["picture"] = torch.cat([image.picture for image in images])
    if case["batch"] > 1:
        return  # the pictures say as much as decoded ones in a quarter of the bytes
    references["decoded"], references["picture"] = images[0].decoded[0][0], references["picture"][0]
    for i, latent in enumerate(images[0].steps[:-1]):
        references[f"latent_{i + 1:03}"] = latent


@torch.no_grad()
def run_case(pipe, case, pictures, call, scaled):
    """Draws one case: tensors by their name without the case's prefix, and what was kept of each image.

    Image k of a batch is a call of its own with seed + k.  The decoder's raw output is caught on
    its way, so the picture is exactly the pipeline's; so are the pictures' moments.
    call: of (pipe, case, pictures, generator) the pipeline for the case, and its arguments.
    """
    references, images = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}, []
    pictures = {name: Image.fromarray(p) for name, p in pictures.items()}
    for k in range(case["batch"]):
        runner, arguments = call(pipe, case, pictures, torch.Generator().manual_seed(case["seed"] + k))
        with Kept(pipe, case, scaled) as kept:
            picture = runner(**arguments, output_type="pil", callback_on_step_end=kept.on_step).images[0]
        kept.picture = torch.from_numpy(np.array(picture))[None]
        images.append(kept)
    _of_images(images, case, references)
    first_step = len(runner.scheduler.timesteps) - len(images[0].steps)
    references["sigmas"] = runner.scheduler.sigmas[first_step:].clone()
    references["timesteps"] = runner.scheduler.timesteps[first_step:].clone()
    assert references["sigmas"].dtype == references["timesteps"].dtype == torch.float32
    case["steps_run"] = len(references["timesteps"])
    _check_noise(case, references)
    return references, images


def _check_noise(case, references):
    """What the tests draw themselves: in this order, each picture by itself, and nothing else."""
    shape = references["latent_000"][0].shape
    for k in range(case["batch"]):
        generator = torch.Generator().manual_seed(case["seed"] + k)
        start, sigma = 0, references["sigmas"][0]
        if case["init"]:
            torch.randn([1, *shape], generator=generator)  # the posterior's, even where the picture has no part in the start
            start = (1 - sigma) * references["encoded.init"][k]
        noise = torch.randn([1, *shape], generator=generator)[0]
        assert torch.equal(references["latent_000"][k], sigma * noise + start if case["init"] else noise)


class exactly:
    """Inside, the transformer's conditioning sees these numbers first, which it would round to its own type."""

    def __init__(self, model, *told):
        self.module, self.told = model.time_text_embed, told

    def __enter__(self):
        self.hook = self.module.register_forward_pre_hook(lambda _module, args: (*self.told, *args[len(self.told):]))

    def __exit__(self, *_):
        self.hook.remove()
