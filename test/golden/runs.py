"""Runs and records pipelines of transformers with 2x2 latent pixels per token (Flux, Qwen-Image, Stable Diffusion 3)."""

import numpy as np
import torch
from PIL import Image

from watch import without_frame


def unpack(pipe, packed, case):
    """Unpacks latents [1, tokens, 4 C] to [1, C, h, w] if the pipeline packs them."""
    packed = without_frame(packed)
    if packed.dim() == 4:
        return packed
    if hasattr(pipe, "_unpack_latents_with_ids"):  # Flux.2: noise is drawn packed, and a token is one latent pixel
        return packed.transpose(1, 2).reshape(len(packed), -1, case["latent_height"], case["latent_width"])
    return without_frame(pipe._unpack_latents(packed, case["height"], case["width"], pipe.vae_scale_factor))


class Recording:
    """Records intermediate tensors while the pipeline runs; scaled: converts encoded latents to the model's scale."""

    def __init__(self, pipe, case, scaled):
        self.pipe, self.case, self.scaled = pipe, case, scaled
        self.steps, self.decoded, self.inputs, self.encoded, self.moments = [], [], [], [], []
        self.samples = False  # whether a posterior is sampled

    def __enter__(self):
        self.encode = self.pipe.vae.encode

        def encode_and_record(picture):
            out = self.encode(picture)
            if getattr(out.latent_dist, "of_control_image", False):  # control.posterior_mean
                return out
            self.moments.append(without_frame(out.latent_dist.parameters)[0].clone())
            sample, mode = out.latent_dist.sample, out.latent_dist.mode

            def keep(z):
                self.encoded.append(without_frame(self.scaled(z)))
                return z

            def sample_and_keep(generator=None):
                self.samples = True
                return keep(sample(generator))

            out.latent_dist.sample = sample_and_keep
            out.latent_dist.mode = lambda: keep(mode())
            return out

        self.pipe.vae.encode = encode_and_record
        self.hooks = [
            self.pipe.vae.decoder.register_forward_hook(lambda _m, _i, out: self.decoded.append(without_frame(out).clone())),
            self.pipe.transformer.register_forward_pre_hook(
                # Z-Image's first argument is a list of latents [C, 1, h, w]
                lambda _m, a, kw: self.inputs.append(torch.stack(a[0])[:, :, 0] if a else kw["hidden_states"].clone()), with_kwargs=True)]
        return self

    def on_step(self, _pipe, _i, _t, values):
        self.steps.append(unpack(self.pipe, values["latents"], self.case).clone())
        return {}

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()
        self.pipe.vae.encode = self.encode


def _start(image, case):
    """Returns the transformer's first input of one lane, without concatenated conditioning."""
    packed = without_frame(image.inputs[0][:1])
    if packed.dim() == 4:
        return packed
    n = case["image_tokens"]
    # in Qwen-Image-2.1 the references precede the image
    drawn = packed[:, -n:] if hasattr(image.pipe, "prompt_template_ti2i") else packed[:, :n]
    return unpack(image.pipe, drawn[..., :4 * case["channels"]], case)


def _of_images(images, case, references):
    """Collects the tensors that all images of a case have."""
    names = (["init"] if case["init"] else []) + ([f"reference_{i:03}" for i in range(len(case["references"]))] or ["masked"])
    for i, name in zip(range(len(images[0].encoded)), names):
        references[f"moments.{name}"] = images[0].moments[i]
        references[f"encoded.{name}"] = torch.cat([image.encoded[i] for image in images])
    references["latent_000"] = torch.cat([_start(image, case) for image in images])
    references["latent"] = torch.cat([image.steps[-1] for image in images])
    references["picture"] = torch.cat([image.picture for image in images])
    if case["batch"] > 1:
        return  # batches store only the 8-bit pictures: a quarter of the bytes
    references["decoded"], references["picture"] = images[0].decoded[0][0], references["picture"][0]
    for i, latent in enumerate(images[0].steps[:-1]):
        references[f"latent_{i + 1:03}"] = latent


@torch.no_grad()
def run_case(pipe, case, pictures, call, scaled):
    """Runs one case; returns tensors by name, without the case's prefix, and the recording of each image.

    Image k of a batch is a separate call with seed + k.  Hooks record the decoder's unclamped output and
    the images' moments, so they are exactly the pipeline's.
    call: function of (pipe, case, pictures, generator) that returns the pipeline for the case and its arguments.
    """
    references, images = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}, []
    pictures = {name: Image.fromarray(p) for name, p in pictures.items()}
    for k in range(case["batch"]):
        runner, arguments = call(pipe, case, pictures, torch.Generator().manual_seed(case["seed"] + k))
        with Recording(pipe, case, scaled) as recording:
            picture = runner(**arguments, output_type="pil", callback_on_step_end=recording.on_step).images[0]
        recording.picture = torch.from_numpy(np.array(picture))[None]
        images.append(recording)
    _of_images(images, case, references)
    first_step = len(runner.scheduler.timesteps) - len(images[0].steps)
    references["sigmas"] = runner.scheduler.sigmas[first_step:].clone()
    references["timesteps"] = runner.scheduler.timesteps[first_step:].clone()
    assert references["sigmas"].dtype == references["timesteps"].dtype == torch.float32
    case["steps_run"] = len(references["timesteps"])
    _check_noise(case, references, images[0].samples)
    return references, images


def _check_noise(case, references, samples):
    """Checks, per image, the order of random draws that the tests reproduce."""
    shape = references["latent_000"][0].shape
    for k in range(case["batch"]):
        generator = torch.Generator().manual_seed(case["seed"] + k)
        start, sigma = 0, references["sigmas"][0]
        if samples:
            # the pipeline draws the posterior's noise even if the image does not affect the start
            torch.randn([1, *shape], generator=generator)
        if case["init"]:
            start = (1 - sigma) * references["encoded.init"][k]
        noise = torch.randn([1, *shape], generator=generator)[0]
        assert torch.equal(references["latent_000"][k], sigma * noise + start if case["init"] else noise)


class exactly:
    """Context in which the transformer's conditioning receives these values unrounded, whatever its dtype."""

    def __init__(self, model, *values):
        self.module, self.values = getattr(model, "time_text_embed", None) or model.time_embed, values

    def __enter__(self):
        self.hook = self.module.register_forward_pre_hook(lambda _module, args: (*self.values, *args[len(self.values):]))

    def __exit__(self, *_):
        self.hook.remove()
