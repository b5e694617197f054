"""Convolutions of a UNet's evaluation: ours, oneDNN's own, and PyTorch's in f32, in one process, turn by turn.

    make build/release/convolutions.so
    OMP_WAIT_POLICY=passive python3 bench/torch_convolutions.py [THREADS] [sdxl|sd15] [TYPE] [ROUNDS]

Seconds are the process's on its processors, so that other work on the machine does not count; of several threads their
sum. TYPE: of our weights (F32, F16, BF16); PyTorch's are f32. PyTorch's upsampling is not in its time.
"""
import ctypes
import statistics
import sys
import time

import torch


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("rows", "columns", "channels", "outputs", "kernel", "upsample",
                                                    "stride")] + [("type", ctypes.c_char_p)]


def resnets(side, pairs, shapes):
    for channels, outputs in pairs:
        shapes += [(side, channels, outputs, 3, 1, 1), (side, outputs, outputs, 3, 1, 1)]
        if channels != outputs:
            shapes.append((side, channels, outputs, 1, 1, 1))


def unet(side, widths):
    """(side of in, channels, outputs, kernel, upsampling, stride) of every convolution, but SD1's projections."""
    shapes, skips, last = [(side, 4, widths[0], 3, 1, 1)], [widths[0]], len(widths) - 1
    at = widths[0]
    for level, width in enumerate(widths):
        resnets(side, [(at, width), (width, width)], shapes)
        skips += [width, width]
        at = width
        if level < last:
            shapes.append((side, width, width, 3, 1, 2))
            skips.append(width)
            side //= 2
    resnets(side, [(at, at), (at, at)], shapes)
    for level, width in enumerate(reversed(widths)):
        pairs = []
        for _ in range(3):
            pairs.append((at + skips.pop(), width))
            at = width
        resnets(side, pairs, shapes)
        if level < last:
            shapes.append((side, width, width, 3, 2, 1))
            side *= 2
    return shapes + [(side, widths[0], 4, 3, 1, 1)]


MODELS = {"sdxl": (128, (320, 640, 1280)), "sd15": (64, (320, 640, 1280, 1280))}


def torch_run(side, channels, outputs, kernel, up, stride):
    module = torch.nn.Conv2d(channels, outputs, kernel, stride, kernel // 2).eval()
    x = torch.randn(1, channels, side * up, side * up)

    def run():
        start = time.process_time()
        with torch.inference_mode():
            module(x)
        return time.process_time() - start
    return run


def measure(library, shape, threads, dtype, rounds):
    side, channels, outputs, kernel, up, stride = shape
    c_shape = Shape(side, side, channels, outputs, kernel, up, stride, dtype.encode())
    if library.convolution_open(ctypes.byref(c_shape), threads):
        sys.exit(1)
    runs = library.convolution_ours, library.convolution_library, torch_run(*shape)
    times = [[run() for run in runs] for _ in range(rounds + 1)][1:]
    flops = library.convolution_flops()
    library.convolution_close()
    return flops, [statistics.median(t) for t in zip(*times)]


def main():
    given = sys.argv[1:] + ["1", "sdxl", "F16", "7"][len(sys.argv) - 1:]
    threads, dtype, rounds = int(given[0]), given[2], int(given[3])
    torch.set_num_threads(threads)
    library = ctypes.CDLL("build/release/convolutions.so")
    for name in ("ours", "library", "flops"):
        getattr(library, "convolution_" + name).restype = ctypes.c_double
    shapes = unet(*MODELS[given[1]])
    total, work = [0, 0, 0], 0
    print("side  in   out  k up s  calls   GFLOP   ours  oneDNN  torch  GFLOP/s;  ours/oneDNN  torch's time/ours")

    def row(what, flops, times):
        rates = [flops / t / 1e9 for t in times]
        print(f"{what} {flops / 1e9:7.1f} {rates[0]:6.0f} {rates[1]:7.0f} {rates[2]:6.0f}           "
              f"{100 * rates[0] / rates[1]:6.0f} %       {times[2] / times[0]:8.2f}", flush=True)
    for shape in sorted(set(shapes), key=lambda s: (-s[0], s[3], s)):
        calls = shapes.count(shape)
        flops, times = measure(library, shape, threads, dtype, rounds)
        row("{:4} {:5}{:5} {:2} {:2} {:1}  ".format(*shape) + f"{calls:5}", flops, times)
        work += calls * flops
        total = [a + calls * t for a, t in zip(total, times)]
    row(f"a whole evaluation, {len(shapes):3} ", work, total)


main()
