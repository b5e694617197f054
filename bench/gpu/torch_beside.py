"""PyTorch on the same GPU, in the same run: products and attention of the sizes of bench/gpu/operators.c in bf16, and
a step of a transformer of Z-Image's sizes (30 layers and 2 refiners of 3840, heads of 128, feed-forward of 10240, 4128
tokens), resident, written with PyTorch's own modules, eager. Random weights. JSON on stdout.

    python3 torch_beside.py [--small]
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

SMALL = "--small" in sys.argv
TOKENS, DIM, HEADS, FEED_FORWARD, LAYERS, ROOF = (64, 256, 2, 320, 2, 256) if SMALL else (4128, 3840, 30, 10240, 32, 8192)
HEAD = DIM // HEADS


def seconds(work, repeats=20):
    """Median of events around each call, queued behind each other."""
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
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


def product(m, k, n):
    a, b = random(m, k), random(n, k)
    t = seconds(lambda: F.linear(a, b))
    return {"op": "linear", "shape": f"{m}x{k}x{n}", "seconds": t, "flops_per_second": 2 * m * k * n / t}


def attention(tokens, heads, head, backend=None):
    q, k, v = (random(1, heads, tokens, head) for _ in range(3))

    def run():
        return F.scaled_dot_product_attention(q, k, v)

    if backend is None:
        t = seconds(run)
    else:
        with torch.nn.attention.sdpa_kernel(backend):
            t = seconds(run)
    flops = 4 * tokens * tokens * heads * head
    return {"op": "attention", "shape": f"{tokens}x{heads}x{head}", "backend": str(backend or "default"), "seconds": t,
            "flops_per_second": flops / t}


def norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-5)


class Layer:
    def __init__(self):
        self.q, self.k, self.v, self.out = (random(DIM, DIM) for _ in range(4))
        self.w1, self.w3, self.w2 = random(FEED_FORWARD, DIM), random(FEED_FORWARD, DIM), random(DIM, FEED_FORWARD)
        self.norms = [1 + random(DIM) for _ in range(4)]
        self.q_norm, self.k_norm = 1 + random(HEAD), 1 + random(HEAD)
        self.scale1, self.gate1, self.scale2, self.gate2 = (random(DIM) for _ in range(4))

    def heads(self, x, weight, rope, q_norm=None):
        y = F.linear(x, weight).view(-1, HEADS, HEAD)
        if q_norm is not None:
            y = torch.view_as_complex(norm(y, q_norm).float().reshape(-1, HEADS, HEAD // 2, 2))
            y = torch.view_as_real(y * rope).flatten(2).to(x.dtype)
        return y.transpose(0, 1).unsqueeze(0)

    def __call__(self, x, rope):
        h = norm(x, self.norms[0]) * (1 + self.scale1)
        q, k = self.heads(h, self.q, rope, self.q_norm), self.heads(h, self.k, rope, self.k_norm)
        a = F.scaled_dot_product_attention(q, k, self.heads(h, self.v, rope))
        a = F.linear(a.squeeze(0).transpose(0, 1).reshape(-1, DIM), self.out)
        x = x + torch.tanh(self.gate1) * norm(a, self.norms[1])
        h = norm(x, self.norms[2]) * (1 + self.scale2)
        h = F.linear(F.silu(F.linear(h, self.w1)) * F.linear(h, self.w3), self.w2)
        return x + torch.tanh(self.gate2) * norm(h, self.norms[3])


def step():
    layers = [Layer() for _ in range(LAYERS)]
    x, rope = random(TOKENS, DIM), torch.polar(torch.ones(TOKENS, 1, HEAD // 2, device="cuda"),
                                               torch.randn(TOKENS, 1, HEAD // 2, device="cuda"))

    def run():
        h = x
        for layer in layers:
            h = layer(h, rope)
        return h

    return {"op": "step", "shape": f"{LAYERS} layers, {TOKENS} tokens of {DIM}", "seconds": seconds(run, 8)}


def attempt(rows, make, *arguments):
    try:
        rows.append(make(*arguments))
    except Exception as problem:  # what does not run is said, and the rest goes on
        rows.append({"op": make.__name__, "shape": str(arguments), "error": str(problem)[:300]})
    print(rows[-1], file=sys.stderr, flush=True)


def main():
    rows = []
    with torch.no_grad():
        for m, k, n in ((ROOF, ROOF, ROOF), (TOKENS, DIM, DIM), (TOKENS // 8, DIM, FEED_FORWARD),
                        (TOKENS // 8, FEED_FORWARD, DIM), (TOKENS, DIM, FEED_FORWARD)):
            attempt(rows, product, m, k, n)
        attempt(rows, attention, TOKENS, HEADS, HEAD, torch.nn.attention.SDPBackend.FLASH_ATTENTION)
        attempt(rows, attention, TOKENS, HEADS, HEAD)
        attempt(rows, attention, 16 if SMALL else 16384, 1, 512)
        attempt(rows, step)
    json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
