"""Dimensions and requests of each Z-Image fixture.

The two default specs are hand-written: all dimensions differ, so that exchanging
two cannot pass.  Other seeds draw dimensions under the same rules.
"""

import random
from dataclasses import dataclass, field

DEFAULT_SEED = 20261121

# Forms: two fixtures that differ in file layout and configuration.
FORMS = {
    "zimage_a": dict(
        transformer_dtype="f32", text_dtype="f32", vae_dtype="f32",
        # mixes types in one file; 1024 x 256 values, so bf16 also saves 0.5 MB
        cast={"t_embedder.mlp.0.weight": "bf16"},
        transformer_shards=2, text_shards=1,
        tokenizer_json=True,      # tokenizer.json, without vocab.json and merges.txt
        released_names=False,     # text encoder as transformers 5 saves it
        lm_head=False,
        quant_convs=False,
        scheduler_shift=2.5,
        extra_references=True,         # adds noise and uniforms of several sizes to the fixture
    ),
    "zimage_b": dict(
        transformer_dtype="bf16", text_dtype="bf16", vae_dtype="f16",
        cast={},
        transformer_shards=1, text_shards=2,
        tokenizer_json=False,     # vocab.json, merges.txt and added tokens, without tokenizer.json
        released_names=True,      # names with the prefix "model.", rope_theta at the top level
        lm_head=True,             # an unused lm_head that is not tied to the embedding
        quant_convs=True,
        scheduler_shift=None,     # no key in the file, which selects the family's default 3.0
        extra_references=False,
    ),
}

FAMILY_SHIFT = 3.0


def case(grid, steps, seed, prompt="fox", cfg=1.0, negative=None, **more):
    """Returns a case of a family whose texts have names."""
    return dict(grid=grid, steps=steps, seed=seed, prompt=prompt, cfg=cfg, negative=negative, **more)


def redrawn(case, rng, *sides):
    """Returns the case with another grid and seed; sides: range of the references' sides."""
    case = dict(case, grid=(rng.randint(2, 9), rng.randint(2, 9)), steps=rng.randint(3, 6), seed=rng.randint(0, 2**33))
    if "references" in case:
        case["references"] = [(rng.randint(*sides), rng.randint(*sides)) for _ in case["references"]]
    return case


class Sizes:
    """Properties derived from a transformer's dimensions and its VAE's levels."""

    @property
    def head_dim(self):
        return sum(self.axes)

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def factor(self):
        return 2 ** (len(self.vae_channels) - 1)

    @property
    def pixel_multiple(self):
        return 2 * self.factor


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list            # rope widths of the three axes; their sum is the head size
    layers: int
    refiners: int
    channels: int         # latent channels of the transformer and the VAE
    norm_eps: float
    rope_theta: float
    t_scale: float
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_layers: int
    text_ffn: int
    text_theta: float
    text_eps: float
    vae_channels: list
    vae_groups: int
    vae_layers: int
    scaling_factor: float
    shift_factor: float
    merges: int
    cases: list = field(default_factory=list)

    @property
    def shift(self):
        shift = self.form["scheduler_shift"]
        return FAMILY_SHIFT if shift is None else shift


# Cases of each form. grid: (columns, rows) of 2x2 patches; cond, uncond: range of the number of tokens of the
# templated prompt (least, most), or "empty".
def default_cases_a():
    return [
        # 7x5 = 35 image tokens, 29 padding tokens; a long prompt and a short negative prompt
        dict(grid=(7, 5), steps=4, cfg=4.0, seed=42, shift=None, cond=(40, 60), uncond=(16, 30)),
        # 8x4 = 32 image and 64 caption tokens without padding; no guidance; --flow-shift
        dict(grid=(8, 4), steps=3, cfg=1.0, seed=7, shift=5.0, cond=(64, 64), uncond="empty"),
        # batch of three seeds, empty negative prompt; both captions below 32 tokens
        dict(grid=(5, 3), steps=2, cfg=2.5, seed=123456789, shift=None, cond=(20, 31), uncond="empty", batch=3),
    ]


def default_cases_b():
    return [
        # 9x7 = 63 image tokens, one padding token; the negative prompt is longer than the prompt
        dict(grid=(9, 7), steps=5, cfg=3.0, seed=2024, shift=None, cond=(20, 31), uncond=(66, 90)),
        # 4x16 = 64 image tokens in a tall image; 32 caption tokens
        dict(grid=(4, 16), steps=2, cfg=1.0, seed=0, shift=None, cond=(32, 32), uncond="empty"),
        # three seeds across 2^32: torch's generator uses the low 32 bits
        dict(grid=(11, 3), steps=3, cfg=5.5, seed=4294967295, shift=2.0, cond=(33, 60), uncond="empty", batch=3),
    ]


def spec_a():
    return Spec(
        "zimage_a", DEFAULT_SEED, FORMS["zimage_a"],
        heads=3, axes=[6, 2, 4], layers=3, refiners=2, channels=16,
        norm_eps=1e-5, rope_theta=256.0, t_scale=1000.0,
        text_hidden=40, text_heads=4, text_kv_heads=2, text_head_dim=12, text_layers=4, text_ffn=67,
        text_theta=10007.0, text_eps=1e-6,
        vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1,
        scaling_factor=0.3611, shift_factor=0.1159,
        merges=390, cases=default_cases_a())


def spec_b():
    return Spec(
        "zimage_b", DEFAULT_SEED, FORMS["zimage_b"],
        heads=4, axes=[2, 6, 2], layers=2, refiners=3, channels=8,
        norm_eps=3e-4, rope_theta=100.0, t_scale=850.0,
        text_hidden=44, text_heads=6, text_kv_heads=2, text_head_dim=14, text_layers=3, text_ffn=91,
        text_theta=1000000.0, text_eps=2e-5,
        vae_channels=[6, 9, 15], vae_groups=3, vae_layers=2,
        scaling_factor=0.52, shift_factor=-0.21,
        merges=350, cases=default_cases_b())


def random_spec(name, seed):
    """Returns a spec of random dimensions under the same rules: even rope axes, sometimes dim > 256."""
    rng = random.Random(f"{seed} {name}")
    form = FORMS[name]
    axes = [2 * rng.randint(1, 5) for _ in range(3)]
    heads = rng.randint(2, 7)
    if rng.random() < 0.2:  # the modulation's input has width min(dim, 256), so some models have dim > 256
        heads = 257 // sum(axes) + 1
    kv_heads = rng.randint(1, 3)
    groups = rng.choice([2, 3, 4, 5])
    levels = rng.choice([2, 3, 4])
    group_sizes = rng.sample(range(2, 8), levels)
    cases = []
    for k in range(3):
        lengths = rng.choice([(20, 31), (33, 60), (66, 90)]) if k != 1 else rng.choice([(32, 32), (64, 64)])
        grid = (8, 4 * rng.randint(1, 3)) if k == 1 else (rng.randint(2, 9), rng.randint(2, 9))
        case = dict(grid=grid, steps=rng.randint(1, 6) if k else 4, cfg=1.0 if k == 1 else rng.choice([1.5, 2.5, 4.0, 6.0]),
                    seed=rng.choice([rng.randint(0, 1000), rng.randint(0, 2**33)]),
                    shift=rng.choice([None, None, 2.0, 3.7, 5.0]) if k else None,
                    cond=lengths, uncond=rng.choice([(16, 31), (40, 60)]) if k == 0 else "empty")
        if k == 2:
            case["batch"] = 3
        cases.append(case)
    # case 0 needs padding tokens, to show their effect
    columns, rows = cases[0]["grid"]
    if columns * rows % 32 == 0:
        cases[0]["grid"] = (columns + 1, 5)
    return Spec(
        name, seed, form,
        heads=heads, axes=axes, layers=rng.randint(2, 5), refiners=rng.randint(2, 3),
        channels=rng.choice([4, 8, 12, 16, 20]),
        norm_eps=rng.choice([1e-5, 1e-6, 2e-4]), rope_theta=rng.choice([64.0, 256.0, 1000.0]),
        t_scale=rng.choice([1000.0, 700.0]),
        text_hidden=rng.randint(30, 70), text_heads=kv_heads * rng.randint(1, 3), text_kv_heads=kv_heads,
        text_head_dim=2 * rng.randint(4, 10), text_layers=rng.randint(3, 5), text_ffn=rng.randint(60, 130),
        text_theta=rng.choice([10000.0, 500000.0, 1000000.0]), text_eps=rng.choice([1e-6, 1e-5]),
        vae_channels=[groups * s for s in group_sizes], vae_groups=groups, vae_layers=rng.randint(1, 2),
        scaling_factor=round(rng.uniform(0.3, 1.5), 4), shift_factor=round(rng.uniform(-0.3, 0.3), 4),
        merges=rng.randint(250, 420), cases=cases)


def spec(name, seed):
    if seed == DEFAULT_SEED:
        return {"zimage_a": spec_a, "zimage_b": spec_b}[name]()
    return random_spec(name, seed)
