#!/usr/bin/env python3
"""Reference results of diffusers for fitting images to another size, written to fit.safetensors.

    fit.py

(diffusers 0.42, Pillow 13.0.0, NumPy 2.4.6.)  HOW/W/H/W2/H2: draw(W 65536 + H), of W by H pixels, fitted to W2 by H2:
crop and stretch are resize_mode "crop" and "default"; pad is the part that "fill" resizes, at its position, with repeated edges
(diffusers also sharpens the border, which is not reproduced).
"""

import os

import numpy as np
from diffusers.image_processor import VaeImageProcessor
from drawn import draw
from PIL import Image
from safetensors.numpy import save_file

SIZES = [(97, 61, 24, 16), (61, 97, 24, 16), (10, 7, 24, 16), (7, 10, 16, 24), (24, 48, 24, 16), (48, 16, 24, 16),
         (48, 32, 24, 16), (1, 1, 5, 3), (1, 9, 16, 8), (9, 1, 8, 16), (33, 400, 17, 13), (400, 33, 13, 17), (5, 3, 3, 5)]


def padded(image, width, height):
    ratio, given = width / height, image.width / image.height
    inner_width = width if ratio < given else max(1, image.width * height // image.height)
    inner_height = height if ratio >= given else max(1, image.height * width // image.width)
    inner = np.array(image.resize((inner_width, inner_height), Image.LANCZOS))
    left, top = width // 2 - inner_width // 2, height // 2 - inner_height // 2
    around = ((top, height - top - inner_height), (left, width - left - inner_width), (0, 0))
    return np.pad(inner, around, mode="edge")


def main():
    processor, out = VaeImageProcessor(vae_scale_factor=1), {}
    for width, height, to_width, to_height in SIZES:
        image, name = draw(width * 65536 + height, height, width), f"{width}/{height}/{to_width}/{to_height}"
        out["crop/" + name] = np.array(processor._resize_and_crop(image, to_width, to_height))
        out["stretch/" + name] = np.array(image.resize((to_width, to_height), Image.LANCZOS))
        out["pad/" + name] = padded(image, to_width, to_height)
    save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fit.safetensors"))


if __name__ == "__main__":
    main()
