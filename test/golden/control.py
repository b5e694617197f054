"""Control networks and control images of fixtures, shared by the families' packages.

A spec's case names its controls; expect.json gets them with these keys, and case k's reference tensors have the
images as "case{k}.picture.control_000", ... (u8 [H, W, 3]):
  network     number of the network, from 0: folders controlnet/, controlnet_2/, ... of the fixture
  image       name of the image's reference tensor after "case{k}."; null: none
  strength start end   as in diffusers: controlnet_conditioning_scale, control_guidance_start, control_guidance_end
  mode        kind of image of a union network; -1: the network takes one kind
  mask inpaint   the same for images of an inpainting network; null: those of the case
  canny       true: the request finds the edges of the image; "image" is then the image itself
"""

import os

import numpy as np
import torch
from PIL import Image

import files
import inputs
import weights


def use(network=0, strength=1.0, start=0.0, end=1.0, mode=-1, size=None, mask=False, inpaint=False, image=True, canny=False):
    """Returns a control of a spec's case. size: columns and rows of the image, stretched later; None: the output's.
    mask, inpaint: the control has these images of its own."""
    return dict(network=network, strength=strength, start=start, end=end, mode=mode, size=size, mask=mask, inpaint=inpaint, image=image, canny=canny)


def folder_of(target, network):
    """Returns the folder of a control network in a fixture or next to its model."""
    return os.path.join(target, f"controlnet_{network + 1}" if network else "controlnet")


def write_network(target, network, model, rules, seed, dtype="f32"):
    """Randomises a control network and writes its diffusers folder. `rules` (weights.py) must also name the layers that
    training initialises to zero, so that their weights matter."""
    weights.randomize(model, rules, f"{seed} controlnet {network}")
    files.write_model(folder_of(target, network), model, dtype)


def load_networks(target, kinds):
    """Loads the fixture's control networks in f32; kinds: the class of each."""
    networks = [kind.from_pretrained(folder_of(target, i), torch_dtype=torch.float32) for i, kind in enumerate(kinds)]
    return [network.requires_grad_(False).eval() for network in networks]


def picture_of(rng, width, height):
    """Generates white outlines on black over a darker coloured half, as edge and pose images look."""
    picture = inputs.picture_of(rng, width, height) // 2
    picture[:, : width // 2] = 0
    for _ in range(4):
        left, top = rng.integers(0, width - 4), rng.integers(0, height - 4)
        right, bottom = rng.integers(left + 3, width), rng.integers(top + 3, height)
        picture[top, left:right] = picture[bottom, left:right] = 255
        picture[top:bottom, left] = picture[top:bottom, right] = (255, 240, 40)
    return picture


def pictures_of(spec, case, wanted):
    """Generates the images of a case's controls, by name, and adds "controls" to the case."""
    rng = np.random.default_rng([spec.seed, case["index"], 1])
    out, case["controls"] = {}, []
    for i, control in enumerate(wanted):
        width, height = control["size"] or (case["width"], case["height"])
        names = {key: f"picture.{name}_{i:03}" if control[key] else None
                 for key, name in (("image", "control"), ("mask", "control_mask"), ("inpaint", "control_inpaint"))}
        if control["image"]:
            out[f"control_{i:03}"] = picture_of(rng, width, height)
        if control["mask"]:
            out[f"control_mask_{i:03}"] = inputs.mask_of(rng, case["width"], case["height"])
        if control["inpaint"]:
            out[f"control_inpaint_{i:03}"] = inputs.picture_of(rng, case["width"], case["height"])
        case["controls"].append({k: v for k, v in control.items() if k != "size"} | names)
    return out


def images_of(case, pictures):
    """Returns the control images of a case for diffusers, in the order of its controls."""
    return [Image.fromarray(pictures[control["image"].removeprefix("picture.")]) for control in case["controls"]]


def image_of(pictures, control, key="image"):
    """Returns a control's image, mask or image to inpaint; pictures: images by name."""
    return pictures[control[key].removeprefix("picture.")]


def runs_at(control, i, n):
    """Returns whether the control's network runs in step i of n."""
    return i / n >= control["start"] and (i + 1) / n <= control["end"]


class posterior_mean:
    """Context in which a VAE's encoder gives the mean of its posterior, without a random draw. Sluice and ComfyUI encode
    control images so; Flux and Qwen-Image in diffusers draw from the request's generator, SD3 from the global one.

    only: called with the picture [N, 3, H, W]; true if the picture is a control image. None: all are."""

    def __init__(self, vae, only=None):
        self.vae, self.only = vae, only

    def __enter__(self):
        encode = self.encode = self.vae.encode

        def encode_mean(picture, *args, **kwargs):
            out = encode(picture, *args, **kwargs)
            if self.only is None or self.only(picture):
                out.latent_dist.sample = lambda generator=None: out.latent_dist.mode()
                out.latent_dist.of_control_image = True
            return out

        self.vae.encode = encode_mean
        return self

    def __exit__(self, *_):
        self.vae.encode = self.encode
