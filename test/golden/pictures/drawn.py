"""Images that tests generate from a seed."""

import numpy as np
from PIL import Image


def draw(seed, height, width):
    """Returns RGB bytes: the top bytes of splitmix64."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, height * width * 3 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return Image.fromarray((z >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3))
