"""Measures PyTorch on the GPU for comparison, with resident random weights in bf16. Prints JSON for one of these parts:

    products     matrix products with the sizes in bench/gpu/operators.c; the largest also in f16, int8 and fp8
    attention    attention of one layer with each of PyTorch's backends, and with SageAttention if it is installed
    zimage       a step with 32 layers of Z-Image (width 3840, head size 128, feed-forward 10240, 4128 tokens)
    flux         a step with Flux.1's 19 double and 38 single blocks (width 3072, 4608 tokens)
    wan          two blocks of WAN 2.1 14B (width 5120, feed-forward 13824, 32760 tokens: 81 frames of 832x480)
    sdxl         one evaluation of SDXL's UNet at 1024x1024
    decoder      the VAE decoder of Z-Image and Flux at 1024x1024

A step uses PyTorch modules: eager, compiled with torch.compile, or compiled with cuDNN attention; UNet and decoder are
channels-last. Flux.1's blocks of one kind share their weights, so that the model fits any card; the weights exceed any
cache.

    python3 torch_compare.py products|attention|zimage|flux|wan|sdxl|decoder [eager|compiled|cudnn] [--small]
"""
import contextlib
import importlib.util
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PARTS = ("products", "attention", "zimage", "flux", "wan", "sdxl", "decoder")
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
WAN = Sizes(64, 16, 2, 320, (2,)) if SMALL else Sizes(32760, 512, 40, 13824, (2,))
# SDXL: channels and transformer layers of each level, width of the text; the latent's side
UNET = ((32, 64, 64), (0, 1, 2), 64, 16) if SMALL else ((320, 640, 1280), (0, 2, 10), 2048, 128)
UNET_HEAD = 32 if SMALL else 64
# VAE decoder: channels from the latent to the image; the latent's side
VAE = ((32, 32, 32, 32), 8) if SMALL else ((512, 512, 256, 128), 128)


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


def typed_product(m, k, n, kind):
    """A product in f16, in int8 with s32 sums, or in fp8 with one scale per matrix."""
    a, b = random(m, k), random(n, k)
    if kind == "f16":
        a, b = a.half(), b.half()
        work = lambda: F.linear(a, b)
    elif kind == "int8":
        a, b = ((x * 1000).to(torch.int8) for x in (a, b))
        work = lambda: torch._int_mm(a, b.t())
    else:
        a, b = (x.to(torch.float8_e4m3fn) for x in (a, b))
        one = torch.ones((), device=DEVICE)
        work = lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    t = seconds(work)
    return {"op": "product", "shape": f"{m}x{k}x{n}", "type": kind, "seconds": t, "flops_per_second": 2 * m * k * n / t}


def sage(tokens, heads, head):
    from sageattention import sageattn
    q, k, v = (random(1, heads, tokens, head) for _ in range(3))
    t = seconds(lambda: sageattn(q, k, v))
    return {"op": "attention", "shape": f"{tokens}x{heads}x{head}", "backend": "sage", "seconds": t,
            "flops_per_second": 4 * tokens * tokens * heads * head / t}


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


class WanBlock(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        dim, feed_forward = s.dim, s.feed_forward
        self.text = random(s.text, dim)
        self.own, self.cross = ([weight(dim, dim) for _ in range(4)] for _ in range(2))
        self.own_bias, self.cross_bias = ([weight(dim) for _ in range(4)] for _ in range(2))
        self.own_norms, self.cross_norms = ([weight(dim) for _ in range(2)] for _ in range(2))
        self.up, self.up_bias, self.down, self.down_bias = (weight(feed_forward, dim), weight(feed_forward),
                                                            weight(dim, feed_forward), weight(dim))
        self.norm, self.norm_bias, self.modulation = weight(dim), weight(dim), weight(6, dim)

    def attention(self, x, source, weights, biases, norms, rope):
        q = norm(F.linear(x, weights[0], biases[0]), norms[0]).unflatten(-1, (-1, HEAD))
        k = norm(F.linear(source, weights[1], biases[1]), norms[1]).unflatten(-1, (-1, HEAD))
        v = heads_of(source, weights[2], biases[2])
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        return F.linear(attend(q, k, v), weights[3], biases[3])

    def forward(self, x, rope):
        m = self.modulation
        h = F.layer_norm(x, x.shape[-1:]) * (1 + m[1]) + m[0]
        x = x + m[2] * self.attention(h, h, self.own, self.own_bias, self.own_norms, rope)
        h = F.layer_norm(x, x.shape[-1:], self.norm, self.norm_bias)
        x = x + self.attention(h, self.text, self.cross, self.cross_bias, self.cross_norms, None)
        h = F.layer_norm(x, x.shape[-1:]) * (1 + m[4]) + m[3]
        h = F.gelu(F.linear(h, self.up, self.up_bias), approximate="tanh")
        return x + m[5] * F.linear(h, self.down, self.down_bias)


def convolution(n_in, n_out, side=3, stride=1):
    return torch.nn.Conv2d(n_in, n_out, side, stride, side // 2)


class Resnet(torch.nn.Module):
    """Two convolutions with group norm and SiLU; embedding: channels of a UNet's timestep embedding, or 0."""

    def __init__(self, n_in, n_out, embedding=0):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.GroupNorm(32, n_in), torch.nn.GroupNorm(32, n_out)
        self.conv1, self.conv2 = convolution(n_in, n_out), convolution(n_out, n_out)
        self.shortcut = convolution(n_in, n_out, 1) if n_in != n_out else None
        self.time = torch.nn.Linear(embedding, n_out) if embedding else None

    def forward(self, x, time=None):
        h = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None:
            h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.shortcut is None else self.shortcut(x))


class SpatialAttention(torch.nn.Module):
    """Attention between all pixels, with one head, as in the VAE."""

    def __init__(self, n):
        super().__init__()
        self.norm = torch.nn.GroupNorm(32, n)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(n, n) for _ in range(4))

    def forward(self, x):
        h = self.norm(x).flatten(2).transpose(1, 2)
        h = self.out(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h)))
        return x + h.transpose(1, 2).unflatten(2, x.shape[2:])


class Decoder(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        n = channels[0]
        parts = [convolution(16, n), Resnet(n, n), SpatialAttention(n), Resnet(n, n)]
        for i, width in enumerate(channels):
            parts += [Resnet(n, width), Resnet(width, width), Resnet(width, width)]
            if i + 1 < len(channels):
                parts += [torch.nn.Upsample(scale_factor=2.0, mode="nearest"), convolution(width, width)]
            n = width
        parts += [torch.nn.GroupNorm(32, n), torch.nn.SiLU(), convolution(n, 3)]
        self.parts = torch.nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x)


class UNetLayer(torch.nn.Module):
    """Self-attention, cross-attention and GEGLU of one transformer layer."""

    def __init__(self, n, text):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(n) for _ in range(3))
        self.q = torch.nn.ModuleList(torch.nn.Linear(n, n, bias=False) for _ in range(2))
        self.kv = torch.nn.ModuleList(torch.nn.Linear(width, 2 * n, bias=False) for width in (n, text))
        self.out = torch.nn.ModuleList(torch.nn.Linear(n, n) for _ in range(2))
        self.up, self.down = torch.nn.Linear(n, 8 * n), torch.nn.Linear(4 * n, n)

    def forward(self, x, text):
        for i in range(2):
            h = self.norms[i](x)
            k, v = self.kv[i](text if i else h).chunk(2, -1)
            q, k, v = (t.unflatten(-1, (-1, UNET_HEAD)).transpose(1, 2) for t in (self.q[i](h), k, v))
            x = x + self.out[i](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h, gate = self.up(self.norms[2](x)).chunk(2, -1)
        return x + self.down(h * F.gelu(gate))


class UNetTransformer(torch.nn.Module):
    def __init__(self, n, layers, text):
        super().__init__()
        self.norm, self.into, self.out = torch.nn.GroupNorm(32, n), torch.nn.Linear(n, n), torch.nn.Linear(n, n)
        self.layers = torch.nn.ModuleList(UNetLayer(n, text) for _ in range(layers))

    def forward(self, x, text):
        h = self.into(self.norm(x).flatten(2).transpose(1, 2))
        for layer in self.layers:
            h = layer(h, text)
        return x + self.out(h).transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(torch.nn.Module):
    """SDXL's UNet without the embedders of timestep and size."""

    def __init__(self, widths, layers, text):
        super().__init__()
        time, n = 4 * widths[0], widths[0]
        self.into, skips = convolution(4, n), [n]
        self.down, self.up = torch.nn.ModuleList(), torch.nn.ModuleList()
        for i, width in enumerate(widths):
            for _ in range(2):
                self.down.append(self.level(n, width, layers[i], time, text))
                n = width
                skips.append(n)
            if i + 1 < len(widths):
                self.down.append(convolution(n, n, 3, 2))
                skips.append(n)
        self.middle = torch.nn.ModuleList((self.level(n, n, layers[-1], time, text), Resnet(n, n, time)))
        for i, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(self.level(n + skips.pop(), width, layers[i], time, text))
                n = width
            if i:
                self.up.append(convolution(n, n))
        self.norm, self.out = torch.nn.GroupNorm(32, n), convolution(n, 4)

    @staticmethod
    def level(n_in, n_out, layers, time, text):
        parts = [Resnet(n_in, n_out, time)]
        return torch.nn.ModuleList(parts + [UNetTransformer(n_out, layers, text)] if layers else parts)

    @staticmethod
    def run(level, x, time, text):
        x = level[0](x, time)
        return level[1](x, text) if len(level) > 1 else x

    def forward(self, x, time, text):
        x = self.into(x)
        skips = [x]
        for part in self.down:
            x = part(x) if isinstance(part, torch.nn.Conv2d) else self.run(part, x, time, text)
            skips.append(x)
        x = self.middle[1](self.run(self.middle[0], x, time, text), time)
        for part in self.up:
            if isinstance(part, torch.nn.Conv2d):
                x = part(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            else:
                x = self.run(part, torch.cat((x, skips.pop()), 1), time, text)
        return self.out(F.silu(self.norm(x)))


def on_device(module):
    """Moves a module with random weights to the GPU in bf16, channels-last."""
    return module.to(device=DEVICE, dtype=torch.bfloat16, memory_format=torch.channels_last)


def image(channels, side):
    return random(1, channels, side, side).to(memory_format=torch.channels_last)


def decoder():
    channels, side = VAE
    model, x = on_device(Decoder(channels)), image(16, side)
    return {"op": "decoder", "shape": f"{side * 8}x{side * 8}", "seconds": seconds(lambda: model(x), 8)}


def unet_step(mode):
    widths, layers, text_width, side = UNET
    model, x = on_device(UNet(widths, layers, text_width)), image(4, side)
    time, text = random(1, 4 * widths[0]), random(1, 77, text_width)
    if mode != "eager":
        model = torch.compile(model)
    t = seconds(lambda: model(x, time, text), 8)
    return {"op": "step", "shape": f"sdxl, {mode}, {side * 8}x{side * 8}", "seconds": t}


def blocks_of(family):
    if family == "zimage":
        return ZIMAGE, [ZImageLayer(ZIMAGE) for _ in range(ZIMAGE.layers[0])]
    if family == "wan":
        return WAN, [WanBlock(WAN) for _ in range(WAN.layers[0])]
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
        for shape in [(64, 256, 256)] if SMALL else [(4128, 3840, 3840), (2064, 3840, 10240), (1820, 5120, 13824)]:
            for kind in ("f16", "int8", "fp8"):
                attempt(rows, typed_product, *shape, kind)
    elif part == "attention":
        for backend in (None, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            attempt(rows, attention, z.tokens, z.heads, HEAD, backend)
        attempt(rows, attention, 16 if SMALL else 16384, 1, 512)
        if importlib.util.find_spec("sageattention"):
            attempt(rows, sage, z.tokens, z.heads, HEAD)
    elif part == "decoder":
        attempt(rows, decoder)
    elif part == "sdxl":
        attempt(rows, unet_step, mode)
    else:
        attempt(rows, step, part, mode)
    return rows


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("-")] + ["eager"]
    if words[0] not in PARTS or words[1] not in ("eager", "compiled", "cudnn"):
        sys.exit(__doc__)
    with torch.no_grad():
        rows = measure(words[0], words[1])
    json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
