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
import re

import numpy as np
import torch
from PIL import Image

import files
import inputs
import weights
from watch import relative


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


def influence(target, networks, latent, known, unused):
    """Writes influence.txt of a fixture. networks: for each network, the weights behind each tensor of its file; latent: function
    that computes case 0's latent, `known` in the files; unused: for each network, patterns of names of tensors without effect, with the
    reason. Returns False if another tensor has no effect."""
    first, counted, silent = latent(), [], {}
    assert relative(first, known) < 5e-6
    for i, tensors in enumerate(networks):
        for name, weights_of in tensors.items():
            kept = [weight.clone() for weight in weights_of]
            for weight in weights_of:
                weight.zero_()
            moved = relative(latent(), first)
            for weight, before in zip(weights_of, kept):
                weight.copy_(before)
            why = next((why for pattern, why in unused[i] if re.search(pattern, name)), None)
            (silent.setdefault(why, []) if why else counted).append((moved, f"{os.path.basename(folder_of(target, i))}.{name}"))
    failed = [name for moved, name in counted if moved <= 1e-3] + [name for rows in silent.values() for moved, name in rows if moved > 2e-6]
    counted.sort()
    lines = [f"{os.path.basename(target)}: {len(counted)} tensors counted, least influence {counted[0][0]:.2e} (gate 0.001), {len(failed)} failed.",
             "Relative L2 change of case 0's final latent when the tensor is zero.", "", "Zeroed tensors, least influence first:"]
    lines += [f"  {moved:.2e}  {name}" for moved, name in counted]
    lines += ["", "Tensors that the mathematics cancels or that are never used:"]
    for why, rows in silent.items():
        lines += [f"  {why}:"] + [f"    {moved:.2e}  {name}" for moved, name in rows]
    with open(os.path.join(target, "influence.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(lines[0], failed)
    return not failed
