"""Measures diffusers on the block and the decoder of `sluice bench block`, alternating with it in the same process.

The library calls back before each round (sluice_bench_options.on_progress); this script then runs diffusers' modules
of the same sizes with as many threads and records their times:
  f32   diffusers with f32 weights: the same arithmetic as Sluice; the main comparison
  bf16  diffusers in bf16 throughout, as a user gets it who loads a model in its stored type; Sluice stays f32
"""
import ctypes
import json
import statistics
import sys
import time

import torch
from diffusers import AutoencoderKL
from diffusers.models.transformers.transformer_z_image import ZImageTransformerBlock

TOKENS, DIM, HEADS = 1056, 3840, 30
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_double, ctypes.c_char_p)


class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("threads", ctypes.c_int), ("folder", ctypes.c_char_p),
                ("file", ctypes.c_char_p), ("saved", ctypes.c_char_p), ("on_progress", CALLBACK),
                ("user", ctypes.c_void_p), ("model", ctypes.c_void_p), ("type", ctypes.c_char_p),
                ("predict", ctypes.c_char_p), ("adapter_rank", ctypes.c_int), ("precision", ctypes.c_char_p)]


def block(dtype):
    module = ZImageTransformerBlock(0, DIM, HEADS, HEADS, 1e-5, True).eval().to(dtype)
    x = torch.randn(1, TOKENS, DIM, dtype=dtype)
    mask = torch.ones(1, TOKENS, dtype=torch.bool)
    angles = torch.randn(1, TOKENS, DIM // HEADS // 2)
    freqs = torch.polar(torch.ones_like(angles), angles)
    adaln = torch.randn(1, min(DIM, 256), dtype=dtype)
    return lambda: module(x, mask, freqs, adaln)


def decoder(dtype):
    vae = AutoencoderKL(in_channels=3, out_channels=3, latent_channels=16, block_out_channels=(128, 256, 512, 512),
                        layers_per_block=2, norm_num_groups=32, use_quant_conv=False, use_post_quant_conv=False,
                        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)
    vae.eval().to(dtype)
    latent = torch.randn(1, 16, 64, 64, dtype=dtype)
    return lambda: vae.decode(latent, return_dict=False)


MODULES = {"block": block, "decoder": decoder}


class Turns:
    """Runs one part at a time: creates its modules at the part's first round and runs them once per round."""

    def __init__(self):
        self.modules, self.part, self.last, self.times = {}, None, None, {}

    def __call__(self, _user, _fraction, what):
        text = what.decode()
        if text != self.last:
            self.last = text
            self.run(text.split(",")[0], ", round 0 " in text)
        return True

    def run(self, part, warm):
        if part not in MODULES:  # the library alternates a block in another precision with its own in f32
            return
        if part != self.part:
            make = MODULES[part]
            self.part, self.modules = part, {"f32": make(torch.float32), "bf16": make(torch.bfloat16)}
        for name, forward in self.modules.items():
            start = time.perf_counter()
            with torch.inference_mode():
                forward()
            if not warm:
                self.times.setdefault((part, name), []).append(time.perf_counter() - start)


def main():
    library, threads = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    turns = Turns()
    callback = CALLBACK(turns)
    precision = sys.argv[3].encode() if len(sys.argv) > 3 else None
    options = Options(struct_size=ctypes.sizeof(Options), threads=threads, on_progress=callback, precision=precision)
    text, error = ctypes.c_char_p(), ctypes.create_string_buffer(1024)
    if library.sluice_bench_block(ctypes.byref(options), ctypes.byref(text), error):
        sys.exit("sluice_bench_block failed: " + error.raw[8:248].split(b"\0")[0].decode())
    print(f"torch {torch.__version__}, {threads} threads, medians; ratio: diffusers' time / Sluice's time")
    for row in json.loads(text.value)["rows"]:
        if row["what"] != "all" or row["part"] not in MODULES:
            continue
        sluice, name = row["seconds"], (precision or b"f32").decode()
        own = f", {row['of_f32']:.2f} of its time in f32" if "of_f32" in row else ""
        print(f"{row['part']:8} Sluice {name:4}   {sluice:6.3f} s  {row['flops_per_second'] / 1e9:7.1f} GFLOP/s  "
              f"{100 * row['product_rate_share']:3.0f} % of oneDNN's f32 rate{own}")
        for name in ("f32", "bf16"):
            times = turns.times[row["part"], name]
            median = statistics.median(times)
            print(f"{'':8} diffusers {name:4} {median:6.3f} s  ratio {median / sluice:.2f}  "
                  f"({len(times)} rounds, {min(times):.3f} to {max(times):.3f})")


main()
