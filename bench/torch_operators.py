"""Compares a model's operators on the CPU: Sluice, oneDNN and PyTorch (f32), alternating in one process.

    make build/release/cpu_operators.so
    OMP_WAIT_POLICY=passive python3 bench/torch_operators.py [THREADS] [MODEL] [TYPE] [ROUNDS]

MODEL is one of

    sdxl, sd15                the convolutions of one UNet evaluation
    qwen_image                matrix products and attention of one block at 1024x1024
    sd35_medium, sd35_large   the same, with 333 text tokens
    qwen_image_vision         Qwen-Image's vision encoder at 1036x1036: one layer with window attention, and the attention
                              of one without
    qwen_image_vae            the decoder's convolutions at 1024x1024, with the norms and SiLU before them
    norms                     convolutions of 128 channels after no norm, a group norm (with its statistics) and a pixel norm
    wan_block                 matrix products and attention of one block of Wan 14B, 17 frames of 480x832
    wan_vae                   the convolutions of Wan 2.1's decoder for one frame of 480x832 that follows two others, with
                              the norms and SiLU before them

Times are CPU times of the process, summed over its threads, so other load on the machine hardly affects them. TYPE is
the type of Sluice's weights (F32, F16, BF16); PyTorch's are f32. oneDNN is measured without norm, bias and attention,
PyTorch without upsampling.
"""
import ctypes
import statistics
import sys
import time

import torch
from torch.nn import functional

CONVOLUTION, PRODUCT, ATTENTION, OVER_TIME = range(4)
NO_NORM, GROUPS, PIXEL = range(3)
KINDS = "conv", "product", "attention", "over time"


class Shape(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("n", ctypes.c_int32 * 8), ("type", ctypes.c_char_p)]


def convolution(side, channels, outputs, kernel, up=1, stride=1, norm=NO_NORM):
    return CONVOLUTION, side, side, channels, outputs, kernel, up, stride, norm


def over_time(rows, columns, channels, outputs, kernel=3, frames=1):
    return OVER_TIME, rows, columns, channels, outputs, kernel, 1, 1, frames


def resnets(side, pairs, norm=NO_NORM):
    shapes = []
    for channels, outputs in pairs:
        shapes += [convolution(side, channels, outputs, 3, norm=norm), convolution(side, outputs, outputs, 3, norm=norm)]
        if channels != outputs:
            shapes.append(convolution(side, channels, outputs, 1))
    return shapes


def unet(side, widths):
    """All convolutions except SD1's projections."""
    shapes, skips, last = [convolution(side, 4, widths[0], 3)], [widths[0]], len(widths) - 1
    at = widths[0]
    for level, width in enumerate(widths):
        shapes += resnets(side, [(at, width), (width, width)])
        skips += [width, width]
        at = width
        if level < last:
            shapes.append(convolution(side, width, width, 3, stride=2))
            skips.append(width)
            side //= 2
    shapes += resnets(side, [(at, at), (at, at)])
    for level, width in enumerate(reversed(widths)):
        pairs = []
        for _ in range(3):
            pairs.append((at + skips.pop(), width))
            at = width
        shapes += resnets(side, pairs)
        if level < last:
            shapes.append(convolution(side, width, width, 3, up=2))
            side *= 2
    return shapes + [convolution(side, widths[0], 4, 3)]


def two_streams(text, image, heads, size):
    """Text and image have projections and a feed-forward network (4 x width) each, and joint attention."""
    width, between = heads * size, 4 * heads * size
    shapes = [(ATTENTION, text + image, heads, size)]
    for rows in image, text:
        shapes += 4 * [(PRODUCT, rows, width, width)] + [(PRODUCT, rows, width, between), (PRODUCT, rows, between, width)]
    return shapes


def sd35_medium(text, image):
    """A block with an additional attention over the image tokens only."""
    return two_streams(text, image, 24, 64) + [(ATTENTION, image, 24, 64)] + 4 * [(PRODUCT, image, 24 * 64, 24 * 64)]


def qwen_image_vision(side):
    """For side x side patches: a layer with window attention, and the attention of one without."""
    width, between, tokens = 1280, 3420, side * side
    shapes = 4 * [(PRODUCT, tokens, width, width)] + 2 * [(PRODUCT, tokens, width, between)]
    windows = [min(8, side - i) for i in range(0, side, 8)]
    return shapes + [(PRODUCT, tokens, between, width), (ATTENTION, tokens, 16, 80)] + \
        [(ATTENTION, a * b, 16, 80) for a in windows for b in windows]


def qwen_image_decoder(side):
    """All convolutions of the decoder; its attention (384 channels) is left out."""
    wide = 384
    shapes = [convolution(side, 16, 16, 1), convolution(side, 16, wide, 3), convolution(side, wide, 3 * wide, 1, norm=PIXEL)]
    shapes += [convolution(side, wide, wide, 1)] + resnets(side, 2 * [(wide, wide)], PIXEL)
    for pairs, width in (3 * [(384, 384)], 384), ([(192, 384)] + 2 * [(384, 384)], 384), (3 * [(192, 192)], 192):
        shapes += resnets(side, pairs, PIXEL) + [convolution(side, width, width // 2, 3, up=2)]
        side *= 2
    return shapes + resnets(side, 3 * [(96, 96)], PIXEL) + [convolution(side, 96, 3, 3, norm=PIXEL)]


def wan_block(tokens, text=512, width=5120, between=13824):
    shapes = 6 * [(PRODUCT, tokens, width, width)] + 2 * [(PRODUCT, text, width, width)]
    return shapes + [(PRODUCT, tokens, width, between), (PRODUCT, tokens, between, width), (ATTENTION, tokens, 40, 128)]


def wan_decoder(rows, columns, frames=1):
    """One frame per level; the last two levels have four times, the second has twice the frames of the latent."""
    shapes = [over_time(rows, columns, 16, 384)] + 4 * [over_time(rows, columns, 384, 384)]
    for level, (first, width) in enumerate(((384, 384), (192, 384), (192, 192), (96, 96))):
        shapes += [over_time(rows, columns, first, width)] + 5 * [over_time(rows, columns, width, width)]
        if level < 2:
            shapes.append(over_time(rows, columns, width, 2 * width, 1))
        if level < 3:
            rows, columns = 2 * rows, 2 * columns
            shapes.append((CONVOLUTION, rows // 2, columns // 2, width, width // 2, 3, 2, 1, NO_NORM))
    return shapes + [over_time(rows, columns, 96, 3)]


MODELS = {
    "wan_block": lambda: wan_block(5 * 30 * 52),
    "wan_vae": lambda: wan_decoder(60, 104),
    "sdxl": lambda: unet(128, (320, 640, 1280)),
    "sd15": lambda: unet(64, (320, 640, 1280, 1280)),
    "qwen_image": lambda: two_streams(64, 4096, 24, 128),
    "sd35_medium": lambda: sd35_medium(333, 4096),
    "sd35_large": lambda: two_streams(333, 4096, 38, 64),
    "qwen_image_vision": lambda: qwen_image_vision(74),
    "qwen_image_vae": lambda: qwen_image_decoder(128),
    "norms": lambda: [convolution(side, 128, 128, kernel, norm=norm)
                      for side in (128, 512) for kernel in (1, 3) for norm in (NO_NORM, GROUPS, PIXEL)],
}


def torch_convolution(rows, columns, channels, outputs, kernel, up, stride, norm):
    module = torch.nn.Conv2d(channels, outputs, kernel, stride, kernel // 2).eval()
    x, gamma = torch.randn(1, channels, rows * up, columns * up), torch.randn(channels, 1, 1)

    def normed():
        if norm == GROUPS:
            return functional.silu(functional.group_norm(x, 32, gamma.flatten(), gamma.flatten()))
        return functional.silu(functional.normalize(x, dim=1) * channels**0.5 * gamma) if norm else x
    return lambda: module(normed())


def torch_over_time(rows, columns, channels, outputs, kernel, up, stride, frames):
    module = torch.nn.Conv3d(channels, outputs, (3, kernel, kernel), padding=(0, kernel // 2, kernel // 2)).eval()
    before, gamma = torch.randn(1, channels, 2, rows, columns), torch.randn(channels, 1, 1, 1)
    x = torch.randn(1, channels, frames, rows, columns)

    def run():
        normed = functional.silu(functional.normalize(x, dim=1) * channels**0.5 * gamma)
        return module(torch.cat([before, normed], 2))
    return run


def torch_forward(operator, *n):
    if operator == OVER_TIME:
        return torch_over_time(*n)
    if operator == CONVOLUTION:
        return torch_convolution(*n)
    if operator == PRODUCT:
        module, x = torch.nn.Linear(n[1], n[2]).eval(), torch.randn(n[0], n[1])
        return lambda: module(x)
    q, k, v = (torch.randn(1, n[1], n[0], n[2]) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q, k, v)


def timed(forward):
    def run():
        start = time.process_time()
        with torch.inference_mode():
            forward()
        return time.process_time() - start
    return run


def measure(library, shape, threads, dtype, rounds):
    c_shape = Shape(shape[0], (ctypes.c_int32 * 8)(*shape[1:]), dtype.encode())
    if library.operator_open(ctypes.byref(c_shape), threads):
        sys.exit(1)
    runs = library.operator_sluice, library.operator_onednn, timed(torch_forward(*shape))
    times = [[run() for run in runs] for _ in range(rounds + 1)][1:]
    flops = library.operator_flops()
    library.operator_close()
    return flops, [statistics.median(t) for t in zip(*times)]


def row(what, flops, sluice, onednn, pytorch, share):
    rate = f"{flops / onednn / 1e9:7.0f}" if onednn else "      -"
    print(f"{what} {flops / 1e9:7.1f} {sluice:9.3f} {flops / sluice / 1e9:7.0f} {rate} {flops / pytorch / 1e9:8.0f} "
          + (f"{100 * share:12.0f} %" if share else "             -") + f" {pytorch / sluice:20.2f}", flush=True)


def main():
    given = sys.argv[1:] + ["1", "sdxl", "F16", "7"][len(sys.argv) - 1:]
    threads, dtype, rounds = int(given[0]), given[2], int(given[3])
    torch.set_num_threads(threads)
    library = ctypes.CDLL("build/release/cpu_operators.so")
    for name in ("sluice", "onednn", "flops"):
        getattr(library, "operator_" + name).restype = ctypes.c_double
    shapes = MODELS[given[1]]()
    sluice, onednn, pytorch, work, compared = 0, 0, 0, 0, 0  # compared: Sluice's time where oneDNN has one
    print(f"{'':63} {'':17} {'GFLOP/s':>24}")
    print(f"{'operator: sizes':58}calls   GFLOP Sluice, s  Sluice  oneDNN  PyTorch  Sluice/oneDNN  speedup over PyTorch")
    for shape in sorted(set(shapes), key=lambda s: (s[0], -s[1], s)):
        calls = shapes.count(shape)
        flops, times = measure(library, shape, threads, dtype, rounds)
        row(f"{KINDS[shape[0]]:10}" + " ".join(f"{n:5}" for n in shape[1:]).ljust(48) + f"{calls:5}", flops, *times,
            times[1] / times[0])
        work += calls * flops
        sluice += calls * times[0]
        onednn += calls * times[1]
        pytorch += calls * times[2]
        compared += calls * times[0] * (times[1] > 0)
    row(f"all {len(shapes)} calls".ljust(63), work, sluice, 0, pytorch, onednn / compared)


main()
