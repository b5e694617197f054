"""Measures PyTorch on the GPU for comparison, with resident random weights in bf16. Prints JSON for one of these parts:

    products     matrix products with the sizes in bench/gpu/operators.c
    attention    attention of one layer with each of PyTorch's backends
    zimage       a step with 32 layers of Z-Image (width 3840, head size 128, feed-forward 10240, 4128 tokens)
    flux         a step with Flux.1's 19 double and 38 single blocks (width 3072, 4608 tokens)

A step uses PyTorch modules: eager, compiled with torch.compile, or compiled with cuDNN attention. Flux.1's blocks of one
kind share their weights, so that the model fits any card; the weights exceed any cache.

    python3 torch_compare.py products|attention|zimage|flux [eager|compiled|cudnn] [--small]
"""
import contextlib
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SMALL = "--small" in sys.argv
DEVICE = "cuda"
ROOF = 256 if SMALL else 8192
HEAD = 128


class Sizes:
    def __init__(self, tokens, text, heads, feed_forward, layers):
        self.tokens, self.text, self.heads, self.layers = tokens, text, heads, layers
        self.dim, self.feed_forward = heads * HEAD, feed_forward


ZIMAGE = Sizes(64, 0, 2, 320, (2,)) if SMALL else Sizes(4128, 0, 30, 10240, (32,))
FLUX = Sizes(64, 16, 2, 512, (1, 2)) if SMALL else Sizes(4608, 512, 24, 12288, (19, 38))


def seconds(work, repeats=20):
    """Median time between CUDA events around back-to-back calls."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:])) * 1e-3


def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * 0.02


def weight(*shape):
    return torch.nn.Parameter(random(*shape), requires_grad=False)


def product(m, k, n):
    a, b = random(m, k), random(n, k)
    t = seconds(lambda: F.linear(a, b))
    return {"op": "linear", "shape": f"{m}x{k}x{n}", "seconds": t, "flops_per_second": 2 * m * k * n / t}


def attention(tokens, heads, head, backend=None):
    q, k, v = (random(1, heads, tokens, head) for _ in range(3))
    with sdpa_kernel(backend) if backend is not None else contextlib.nullcontext():
        t = seconds(lambda: F.scaled_dot_product_attention(q, k, v))
    flops = 4 * tokens * tokens * heads * head
    name = "default" if backend is None else backend.name.lower()
    return {"op": "attention", "shape": f"{tokens}x{heads}x{head}", "backend": name, "seconds": t,
            "flops_per_second": flops / t}


def norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def rotate(x, rope):
    """Rotates pairs (2i, 2i + 1) of x [tokens, heads, head] by cosines and sines [tokens, 1, head / 2]."""
    pairs, (cos, sin) = x.float().unflatten(-1, (-1, 2)), rope
    a, b = pairs.unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def heads_of(x, weight, bias=None):
    return F.linear(x, weight, bias).unflatten(-1, (-1, HEAD))


def attend(q, k, v):
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1).flatten(1)


class ZImageLayer(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        dim, feed_forward = s.dim, s.feed_forward
        self.q, self.k, self.v, self.out = (weight(dim, dim) for _ in range(4))
        self.w1, self.w3, self.w2 = weight(feed_forward, dim), weight(feed_forward, dim), weight(dim, feed_forward)
        self.norm1, self.norm2, self.norm3, self.norm4 = (weight(dim) for _ in range(4))
        self.q_norm, self.k_norm = weight(HEAD), weight(HEAD)
        self.scale1, self.gate1, self.scale2, self.gate2 = (weight(dim) for _ in range(4))

    def forward(self, x, rope):
        h = norm(x, self.norm1) * (1 + self.scale1)
        q = rotate(norm(heads_of(h, self.q), self.q_norm), rope)
        k = rotate(norm(heads_of(h, self.k), self.k_norm), rope)
        a = F.linear(attend(q, k, heads_of(h, self.v)), self.out)
        x = x + torch.tanh(self.gate1) * norm(a, self.norm2)
        h = norm(x, self.norm3) * (1 + self.scale2)
        h = F.linear(F.silu(F.linear(h, self.w1)) * F.linear(h, self.w3), self.w2)
        return x + torch.tanh(self.gate2) * norm(h, self.norm4)


class FluxStream(torch.nn.Module):
    """The layers of one stream (image or text) of a double block."""

    def __init__(self, s):
        super().__init__()
        dim, feed_forward = s.dim, s.feed_forward
        self.qkv, self.qkv_bias = weight(3 * dim, dim), weight(3 * dim)
        self.out, self.out_bias = weight(dim, dim), weight(dim)
        self.up, self.up_bias, self.down, self.down_bias = (weight(feed_forward, dim), weight(feed_forward),
                                                            weight(dim, feed_forward), weight(dim))
        self.q_norm, self.k_norm = weight(HEAD), weight(HEAD)
        self.modulation = weight(6, dim)

    def modulated(self, x, i):
        return F.layer_norm(x, x.shape[-1:]) * (1 + self.modulation[i]) + self.modulation[i + 1]

    def heads(self, x):
        q, k, v = heads_of(self.modulated(x, 0), self.qkv, self.qkv_bias).chunk(3, 1)
        return norm(q, self.q_norm), norm(k, self.k_norm), v

    def finish(self, x, a):
        x = x + self.modulation[2] * F.linear(a, self.out, self.out_bias)
        h = F.gelu(F.linear(self.modulated(x, 3), self.up, self.up_bias), approximate="tanh")
        return x + self.modulation[5] * F.linear(h, self.down, self.down_bias)


class FluxDouble(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.n_text, self.text, self.image = s.text, FluxStream(s), FluxStream(s)

    def forward(self, x, rope):
        text, image = x[:self.n_text], x[self.n_text:]
        q, k, v = (torch.cat(both) for both in zip(self.text.heads(text), self.image.heads(image)))
        a = attend(rotate(q, rope), rotate(k, rope), v)
        return torch.cat((self.text.finish(text, a[:self.n_text]), self.image.finish(image, a[self.n_text:])))


class FluxSingle(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        dim, feed_forward = s.dim, s.feed_forward
        self.split = (3 * dim, feed_forward)
        self.into, self.into_bias = weight(sum(self.split), dim), weight(sum(self.split))
        self.out, self.out_bias = weight(dim, dim + feed_forward), weight(dim)
        self.q_norm, self.k_norm = weight(HEAD), weight(HEAD)
        self.modulation = weight(3, dim)

    def forward(self, x, rope):
        h = F.layer_norm(x, x.shape[-1:]) * (1 + self.modulation[0]) + self.modulation[1]
        qkv, up = F.linear(h, self.into, self.into_bias).split(self.split, -1)
        q, k, v = qkv.unflatten(-1, (-1, HEAD)).chunk(3, 1)
        a = attend(rotate(norm(q, self.q_norm), rope), rotate(norm(k, self.k_norm), rope), v)
        h = F.linear(torch.cat((a, F.gelu(up, approximate="tanh")), -1), self.out, self.out_bias)
        return x + self.modulation[2] * h


def blocks_of(family):
    if family == "zimage":
        return ZIMAGE, [ZImageLayer(ZIMAGE) for _ in range(ZIMAGE.layers[0])]
    kinds = FluxDouble(FLUX), FluxSingle(FLUX)
    return FLUX, [kind for kind, n in zip(kinds, FLUX.layers) for _ in range(n)]


def step(family, mode):
    s, blocks = blocks_of(family)
    compiled = {}
    if mode != "eager":
        blocks = [compiled.setdefault(id(b), torch.compile(b)) for b in blocks]
    angle = torch.randn(s.tokens, 1, HEAD // 2, device=DEVICE)
    x, rope = random(s.tokens, s.dim), (angle.cos(), angle.sin())

    def run():
        h = x
        for block in blocks:
            h = block(h, rope)
        return h

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if mode == "cudnn" else contextlib.nullcontext():
        t = seconds(run, 8)
    return {"op": "step", "shape": f"{family}, {mode}, {len(blocks)} blocks, {s.tokens} tokens of {s.dim}", "seconds": t}


def attempt(rows, make, *arguments):
    try:
        rows.append(make(*arguments))
    except Exception as problem:  # record the failure and continue

        rows.append({"op": make.__name__, "shape": str(arguments), "error": str(problem)[:300]})
    print(rows[-1], file=sys.stderr, flush=True)


def measure(part, mode):
    rows, z = [], ZIMAGE
    if part == "products":
        attempt(rows, product, ROOF, ROOF, ROOF)
        attempt(rows, product, z.tokens, z.dim, z.dim)
        for m in [z.tokens, 8, 12, 24] if SMALL else [z.tokens, 2176, 516, 1408, 2064]:
            attempt(rows, product, m, z.dim, z.feed_forward)
            attempt(rows, product, m, z.feed_forward, z.dim)
    elif part == "attention":
        for backend in (None, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            attempt(rows, attention, z.tokens, z.heads, HEAD, backend)
        attempt(rows, attention, 16 if SMALL else 16384, 1, 512)
    else:
        attempt(rows, step, part, mode)
    return rows


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("-")] + ["eager"]
    if words[0] not in ("products", "attention", "zimage", "flux") or words[1] not in ("eager", "compiled", "cudnn"):
        sys.exit(__doc__)
    with torch.no_grad():
        rows = measure(words[0], words[1])
    json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
