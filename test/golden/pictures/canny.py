#!/usr/bin/env python3
"""Edges by OpenCV's Canny with thresholds 100 and 200, written to canny.safetensors.

    canny.py

(opencv-python-headless 5.0.0.93, Pillow 13.0.0, NumPy 2.4.6.)  NAME.rgb: a picture [H, W, 3]; NAME.edges: its edges [H, W],
0 or 255. Shapes have every direction of edges; noise every case of the thresholds; the spiral is one weak edge of 834
pixels that begins at a strong one.
"""

import os

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from safetensors.numpy import save_file


def shapes(rng, width, height, blur):
    image = Image.new("RGB", (width, height), (30, 60, 90))
    draw = ImageDraw.Draw(image)
    for _ in range(14):
        x, y = np.sort(rng.integers(0, width + 1, 2)), np.sort(rng.integers(0, height + 1, 2))
        box, colour = [int(x[0]), int(y[0]), int(x[1]), int(y[1])], tuple(int(c) for c in rng.integers(0, 256, 3))
        (draw.ellipse if rng.integers(2) else draw.rectangle)(box, fill=colour)
    return np.array(image.filter(ImageFilter.GaussianBlur(blur)))


def spiral(side):
    """A spiral line with gradients below the upper threshold, except within 5 pixels of its centre."""
    y, x = np.mgrid[0:side, 0:side] - side / 2 + 0.3
    radius, pitch = np.hypot(x, y), 9
    away = (radius / pitch - np.arctan2(y, x) / (2 * np.pi)) % 1 - 0.5
    grey = 80 + 36 * np.exp(-(away * pitch / 1.5) ** 2) * np.where(radius < 5, 1.9, 1)
    return np.repeat(grey.clip(0, 255).astype(np.uint8)[..., None], 3, 2)


def main():
    rng, pictures = np.random.default_rng(5), {}
    for width, height in [(1, 1), (1, 6), (7, 1), (2, 3), (37, 29)]:
        pictures[f"noise_{width}_{height}"] = rng.integers(60, 145, (height, width, 3), dtype=np.uint8)
    pictures["shapes"] = shapes(rng, 72, 50, 0)
    pictures["blurred"] = shapes(rng, 61, 64, 1.3)
    pictures["spiral"] = spiral(64)
    slopes = np.add.outer(np.arange(40) * 3, np.arange(52) * 5) % 256
    pictures["slopes"] = np.stack([slopes, slopes.clip(30, 200), 255 - slopes], axis=2).astype(np.uint8)
    out = {}
    for name, picture in pictures.items():
        out[name + ".rgb"], out[name + ".edges"] = picture, cv2.Canny(picture, 100, 200)
        print(name, picture.shape, (out[name + ".edges"] > 0).sum(), "edge pixels")
    save_file(out, os.path.join(os.path.dirname(os.path.abspath(__file__)), "canny.safetensors"))


if __name__ == "__main__":
    main()
