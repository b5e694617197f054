#!/usr/bin/env python3
"""Reference results of diffusers, Pillow and PyTorch for processing input images, written to arithmetic.safetensors.

    arithmetic.py

(diffusers 0.42, Pillow 13.0.0, torch 2.15 on a CPU, NumPy 2.4.6.)  Images come from draw() with a seed,
identical to those of test_picture_arithmetic.c.

resize/W/H/W2/H2[/Y/X]: resampled by Pillow's Lanczos, of seed W 65536 + H; every Yth row and Xth column.
rgba/W/H/W2/H2: likewise RGBA, with transparent(); white/W/H: an image with that alpha pasted on white.
bicubic/W/H/W2/H2[/Y/X]: likewise by PyTorch, as torchvision resizes bytes (its functional.resize calls just this).
tensor [3, H, W]: every value of every channel.  mask [H, W], channels [64, H/8, W/8] and masked [3, H, W]: of a mask
with greys on both sides of the threshold (mask_rgb).  moments, noise, sampled, mean: of a VAE's
posterior.  sizes [N, 4]: sizes of images larger than trained sizes, and their resized sizes.  areas [N, 5]: image sizes,
an area, and the sizes with that area.  areas_up: likewise, sides rounded up as for LongCat-Image-Edit.  limited [N, 6]:
image sizes, the sizes to which Flux.2 shrinks them, and to which it crops those.  mask_16 [H/16, W/16]: the mask of
Flux.2's inpainting.  seen [3, H, W]: tensor's image normalised for CLIP.
canvas/W/H/W2/H2 [3, H2, W2]: image of seed W 65536 + H, fitted to a video of that size as a VACE reference.
"""

import os
from types import SimpleNamespace

import numpy as np
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.flux.pipeline_flux_fill import FluxFillPipeline
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from diffusers.pipelines.flux2.image_processor import Flux2ImageProcessor
from diffusers.pipelines.flux2.pipeline_flux2_klein_inpaint import Flux2KleinInpaintPipeline
from diffusers.pipelines.longcat_image.pipeline_longcat_image_edit import calculate_dimensions as dimensions_up
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions
from drawn import draw
from diffusers.pipelines.wan.pipeline_wan_vace import WanVACEPipeline
from PIL import Image
from safetensors.torch import save_file
from transformers import Qwen2VLImageProcessor

SCALE, SHIFT = 0.3611, 0.1159
RESIZE = [(97, 61, 48, 32), (20, 13, 32, 16), (200, 10, 16, 16), (1, 1, 16, 16), (33, 35, 48, 16), (50, 700, 48, 32),
          (2000, 900, 1504, 688, 37, 41)]
RGBA = [(97, 61, 48, 32), (20, 13, 32, 16), (200, 10, 16, 16), (1, 1, 16, 16), (50, 700, 16, 32)]
BICUBIC = [(96, 64, 84, 56), (64, 96, 56, 112, 3, 1), (96, 96, 84, 84), (37, 250, 56, 56), (1, 1, 56, 56), (50, 700, 56, 56, 2, 1),
           (32, 1184, 28, 1176, 9, 1), (56, 84, 56, 84), (384, 384, 392, 392, 17, 13), (1024, 1024, 1036, 1036, 37, 41),
           (1504, 704, 1512, 700, 37, 41), (3000, 40, 56, 1036, 29, 3)]
CANVAS = [(64, 48, 32, 32), (16, 40, 48, 32), (16, 8, 32, 16), (32, 32, 48, 16)]


def resized(out):
    for width, height, to_width, to_height, *every in RESIZE:
        made = draw(width * 65536 + height, height, width).resize((to_width, to_height), Image.LANCZOS)
        keep(out, "resize", (width, height, to_width, to_height, *every), np.array(made))
    for width, height, to_width, to_height, *every in BICUBIC:
        planes = torch.from_numpy(np.array(draw(width * 65536 + height, height, width))).permute(2, 0, 1).contiguous()
        made = torch.nn.functional.interpolate(planes[None], (to_height, to_width), mode="bicubic", antialias=True)
        keep(out, "bicubic", (width, height, to_width, to_height, *every), made[0].permute(1, 2, 0).numpy())


def transparent(seed, height, width):
    """Returns an RGBA image; about half of its pixels are opaque or fully transparent."""
    alpha = np.array(draw(seed + 1, height, width))[:, :, 0].astype(int)
    image = draw(seed, height, width)
    image.putalpha(Image.fromarray(np.clip(2 * alpha - 128, 0, 255).astype(np.uint8)))
    return image


def with_alpha(out):
    for width, height, to_width, to_height in RGBA:
        image = transparent(width * 65536 + height, height, width)
        keep(out, "rgba", (width, height, to_width, to_height), np.array(image.resize((to_width, to_height), Image.LANCZOS)))
    white = Image.new("RGB", (31, 23), (255, 255, 255))
    image = transparent(31 * 65536 + 23, 23, 31)
    white.paste(image, mask=image.getchannel("A"))
    keep(out, "white", (31, 23), np.array(white))


def keep(out, kind, numbers, made):
    rows, columns = numbers[4:] or (1, 1)
    out["/".join(map(str, [kind, *numbers]))] = torch.from_numpy(made[::rows, ::columns].copy())


def numbers(out):
    """Generates an image with every value, and a mask of greys 120 to 135 in many colours."""
    ramp = np.arange(768, dtype=np.uint16).reshape(3, 256) % 256
    picture = Image.fromarray(ramp.T.reshape(16, 16, 3).astype(np.uint8))
    out["tensor"] = VaeImageProcessor(vae_scale_factor=16).preprocess(picture)[0]
    planes = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    clip = Qwen2VLImageProcessor()
    out["seen"] = clip.rescale_and_normalize(planes[None], True, clip.rescale_factor, True, clip.image_mean, clip.image_std)[0]
    rng = np.random.default_rng(1)
    rgb = rng.integers(0, 256, (400000, 3))
    grey = np.array(Image.fromarray(rgb.astype(np.uint8)[None]).convert("L"))[0]
    near = rgb[(grey >= 126) & (grey <= 129)][: 32 * 48].astype(np.uint8).reshape(32, 48, 3)
    processor = VaeImageProcessor(vae_scale_factor=16, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    mask = processor.preprocess(Image.fromarray(near))
    init = VaeImageProcessor(vae_scale_factor=16).preprocess(draw(7, 32, 48))
    out["mask_rgb"] = torch.from_numpy(near.copy())
    out["mask"] = mask[0, 0].to(torch.uint8)
    out["masked"] = (init * (1 - mask))[0]
    config = SimpleNamespace(shift_factor=SHIFT, scaling_factor=SCALE)
    pipeline = SimpleNamespace(vae_scale_factor=8, vae=SimpleNamespace(config=config),
                               _pack_latents=FluxFillPipeline._pack_latents)
    packed, _ = FluxFillPipeline.prepare_mask_latents(pipeline, mask, torch.zeros(1, 16, 4, 6), 1, 16, 1, 32, 48,
                                                      torch.float32, "cpu", None)
    unpacked = packed.view(2, 3, 64, 2, 2).permute(2, 0, 3, 1, 4).reshape(64, 4, 6)
    out["channels"] = unpacked.to(torch.uint8)
    pipeline = SimpleNamespace(vae_scale_factor=8, _pack_latents=Flux2KleinInpaintPipeline._pack_latents)
    coarse = Flux2KleinInpaintPipeline.prepare_mask_latents(pipeline, mask, 1, 1, 32, 48, torch.float32, "cpu")
    out["mask_16"] = coarse.reshape(2, 3)


def posterior(out):
    generator = torch.Generator("cpu").manual_seed(3)
    moments = torch.randn(1, 8, 5, 7, generator=generator)
    moments[:, 4:] *= 12
    moments[0, 4, 0, :3] = torch.tensor([-40.0, 25.0, 1.0])
    distribution = DiagonalGaussianDistribution(moments)
    z = distribution.sample(torch.Generator("cpu").manual_seed(4))
    out["moments"] = moments[0].permute(1, 2, 0).contiguous()
    out["noise"] = torch.randn(1, 4, 5, 7, generator=torch.Generator("cpu").manual_seed(4))[0]
    out["sampled"] = ((z - SHIFT) * SCALE)[0]
    out["mean"] = ((distribution.mode() - SHIFT) * SCALE)[0].contiguous()


def sizes(out):
    rng = np.random.default_rng(2)
    rows = []
    while len(rows) < 200:
        width, height = (int(n) for n in rng.integers(300, 4000, 2))
        if width * height <= 800 * 1328 or max(width, height) > 4 * min(width, height):
            continue
        aspect = width / height
        _, best_width, best_height = min((abs(aspect - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
        rows.append([width, height, best_width, best_height])
    out["sizes"] = torch.tensor(rows, dtype=torch.int32)


def areas(out):
    rng = np.random.default_rng(3)
    rows = []
    for area in [384 * 384, 1024 * 1024, 96 * 96]:
        for _ in range(100):
            width, height = (int(n) for n in 2 ** rng.uniform(0, 14, 2))
            rows.append([width, height, area, *calculate_dimensions(area, width / height)])
    out["areas"] = torch.tensor(rows, dtype=torch.int32)


def areas_up(out):
    rng = np.random.default_rng(4)
    rows = [[64, 64, 1024 * 1024, 1024, 1024]]
    for area in [1024 * 1024, 96 * 96]:
        for _ in range(100):
            width, height = (int(n) for n in 2 ** rng.uniform(0, 14, 2))
            rows.append([width, height, area, *dimensions_up(area, width / height)])
    out["areas_up"] = torch.tensor(rows, dtype=torch.int32)


def limited(out):
    rng = np.random.default_rng(5)
    rows, limit = [], 1024 * 1024
    while len(rows) < 200:
        size = tuple(int(n) for n in 2 ** rng.uniform(6, 14, 2))
        image = SimpleNamespace(size=size, resize=lambda whole, by: SimpleNamespace(size=whole))
        whole = Flux2ImageProcessor._resize_if_exceeds_area(image, limit).size
        if max(size) <= 8 * min(size):
            rows.append([*size, *whole, *(side // 16 * 16 for side in whole)])
    out["limited"] = torch.tensor(rows, dtype=torch.int32)


def canvases(out):
    """Computes the reference for fitted images; sizes are multiples of 8, to which the pipeline would round them."""
    pipeline = SimpleNamespace(video_processor=VaeImageProcessor(vae_scale_factor=8))
    for width, height, to_width, to_height in CANVAS:
        picture = draw(width * 65536 + height, height, width)
        *_, made = WanVACEPipeline.preprocess_conditions(
            pipeline, reference_images=[picture], height=to_height, width=to_width, num_frames=1, dtype=torch.float32, device="cpu")
        out[f"canvas/{width}/{height}/{to_width}/{to_height}"] = made[0][0]


def main():
    out = {}
    for part in (resized, with_alpha, numbers, posterior, sizes, areas, areas_up, limited, canvases):
        part(out)
    out = {name: tensor.contiguous() for name, tensor in out.items()}
    save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "arithmetic.safetensors"))


if __name__ == "__main__":
    main()
