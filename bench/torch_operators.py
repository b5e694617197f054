"""Operators of a model's evaluation: ours, oneDNN's own, and PyTorch's in f32, in one process, turn by turn.

    make build/release/cpu_operators.so
    OMP_WAIT_POLICY=passive python3 bench/torch_operators.py [THREADS] [MODEL] [TYPE] [ROUNDS]

MODEL: sdxl or sd15, the convolutions of a UNet's evaluation; qwen_image, products and attention of one of its blocks
at 1024x1024, sd35_medium and sd35_large the same of theirs with 333 rows of text; qwen_image_vision, those of its
vision encoder for a picture of 1036x1036, a layer with windows and attention of one without; qwen_image_vae, the
convolutions of its decoder at 1024x1024, with the norms and SiLU before them; norms, convolutions of 128 channels
without a norm on their way in, with that of groups (and its statistics), and of pixels; wan_block, products and
attention of a block of Wan's 14B at 480x832 and 17 frames, wan_vae, the convolutions of its decoder (2.1) at 480x832,
a frame of each: those over time, with the norms and SiLU before them, of a frame that has two before it.

Seconds are the process's on its processors, so that other work on the machine does not count; of several threads their
sum. TYPE: of our weights (F32, F16, BF16); PyTorch's are f32. oneDNN's own has neither norm nor bias to add, and is not
there for attention. PyTorch's upsampling is not in its time.
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
    _fields_ = [("operator", ctypes.c_int32), ("n", ctypes.c_int32 * 8), ("type", ctypes.c_char_p)]


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
    """Every convolution, but SD1's projections."""
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
    """Each has its products and a feed-forward of four times its width; both meet in attention."""
    width, between = heads * size, 4 * heads * size
    shapes = [(ATTENTION, text + image, heads, size)]
    for rows in image, text:
        shapes += 4 * [(PRODUCT, rows, width, width)] + [(PRODUCT, rows, width, between), (PRODUCT, rows, between, width)]
    return shapes


def sd35_medium(text, image):
    """A block that attends to the picture alone as well."""
    return two_streams(text, image, 24, 64) + [(ATTENTION, image, 24, 64)] + 4 * [(PRODUCT, image, 24 * 64, 24 * 64)]


def qwen_image_vision(side):
    """Of a picture of side x side patches: a layer of its tower that looks into windows, and one that does not."""
    width, between, tokens = 1280, 3420, side * side
    shapes = 4 * [(PRODUCT, tokens, width, width)] + 2 * [(PRODUCT, tokens, width, between)]
    windows = [min(8, side - i) for i in range(0, side, 8)]
    return shapes + [(PRODUCT, tokens, between, width), (ATTENTION, tokens, 16, 80)] + \
        [(ATTENTION, a * b, 16, 80) for a in windows for b in windows]


def qwen_image_decoder(side):
    """All that it convolves; its attention is one of 384 columns."""
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
    """A frame of each level: the last two have four times as many as the latent, the second twice."""
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
    runs = library.operator_ours, library.operator_library, timed(torch_forward(*shape))
    times = [[run() for run in runs] for _ in range(rounds + 1)][1:]
    flops = library.operator_flops()
    library.operator_close()
    return flops, [statistics.median(t) for t in zip(*times)]


def row(what, flops, ours, library, theirs, share):
    rates = f"{flops / library / 1e9:7.0f}" if library else "      -"
    print(f"{what} {flops / 1e9:7.1f} {ours:7.3f} {flops / ours / 1e9:6.0f} {rates} {flops / theirs / 1e9:6.0f}           "
          + (f"{100 * share:6.0f} %" if share else "       -") + f"       {theirs / ours:8.2f}", flush=True)


def main():
    given = sys.argv[1:] + ["1", "sdxl", "F16", "7"][len(sys.argv) - 1:]
    threads, dtype, rounds = int(given[0]), given[2], int(given[3])
    torch.set_num_threads(threads)
    library = ctypes.CDLL("build/release/cpu_operators.so")
    for name in ("ours", "library", "flops"):
        getattr(library, "operator_" + name).restype = ctypes.c_double
    shapes = MODELS[given[1]]()
    ours, library_s, theirs, work, compared = 0, 0, 0, 0, 0  # compared: our time where the library has one too
    print(f"{'operator: sizes':58}calls   GFLOP  ours, s   ours  oneDNN  torch  GFLOP/s;  ours/oneDNN  torch's time/ours")
    for shape in sorted(set(shapes), key=lambda s: (s[0], -s[1], s)):
        calls = shapes.count(shape)
        flops, times = measure(library, shape, threads, dtype, rounds)
        row(f"{KINDS[shape[0]]:10}" + " ".join(f"{n:5}" for n in shape[1:]).ljust(48) + f"{calls:5}", flops, *times,
            times[1] / times[0])
        work += calls * flops
        ours += calls * times[0]
        library_s += calls * times[1]
        theirs += calls * times[2]
        compared += calls * times[0] * (times[1] > 0)
    row(f"all {len(shapes):3} of them".ljust(63), work, ours, 0, theirs, library_s / compared)


main()
