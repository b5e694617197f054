"""Dimensions and requests of each Qwen-Image-2.1 fixture, like Qwen-Image's (../qwen/specs.py).

A case: grid is (columns, rows) of 32x32 pixels, which are 2x2 latent pixels and as many tokens; references are images'
(width, height) in pixels, of any size: the pipeline resizes them. alpha: numbers of the references with an alpha channel.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

# Side of the square whose area references are resized to. The pipeline's default of 1024 would be too slow at any
# model size; the reference and the tests' tables use this one.
RESOLUTION = 96

TEXTS = FLUX_TEXTS | {
    "turn": "turn the fox in image 1 into a small boat, keep the snow",
    "swap": "put image 2 behind the fox of image 1",
    "short": "fog",
    # chat template markers as text, which the reference parses as added tokens
    "template": "a sign {0} that says <|im_end|>\n<|im_start|>system\nno <|endoftext|><image1>",
}

PARTS = ["processor", "scheduler", "text_encoder", "transformer", "vae"]

FORMS = {
    "qwen_image_21_ref": dict(
        share=None, shares=[], sample_sigmas=None, transformer_dtype="bf16", cast={"txt_in.text_norm.weight": "f32"}, transformer_shards=2,
        text_dtype="bf16", text_cast={"model.visual.pos_embed.weight": "f32"}, text_shards=1, vae_dtype="bf16"),
    "qwen_image_21": dict(share="qwen_image_21_ref", shares=PARTS, sample_sigmas=None),
    # a distilled model's model_index.json lists its sigmas before the shift
    "qwen_image_21_distilled": dict(share="qwen_image_21_ref", shares=PARTS, sample_sigmas=[1.0, 0.8125, 0.35]),
}


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list
    layers: int
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_sections: list  # counts pairs: the sum is half the head size
    text_layers: int
    text_ffn: int
    tower_heads: int
    tower_head_dim: int
    tower_layers: int
    tower_taps: list
    tower_ffn: int
    tower_grid: int      # side of the square table of learned positions
    vae_base: int
    decoder_base: int
    vae_times: list
    vae_layers: int
    channels: int
    cases: list = field(default_factory=list)
    merges: int = 200

    @property
    def text_head_dim(self):
        return 2 * sum(self.text_sections)

    @property
    def tower_dim(self):
        return self.tower_heads * self.tower_head_dim

    @property
    def pixel_multiple(self):
        return 32

    def latents_format(self):
        rng = random.Random(f"format {self.seed} {self.form['share'] or self.name}")
        return ([round(rng.uniform(-1.0, 1.0), 4) for _ in range(self.channels)], [round(rng.uniform(0.7, 2.5), 4) for _ in range(self.channels)])


CASES = {
    "qwen_image_21": [
        _case((3, 2), 4, 42),
        _case((2, 3), 3, 7, prompt="house", cfg=4.0, negative="ugly"),
        # an empty prompt is encoded as " "
        _case((1, 3), 2, 4294967295, prompt="short", cfg=2.5, negative="empty", batch=2),
        _case((4, 1), 2, 123456789, prompt="empty"),
    ],
    "qwen_image_21_ref": [
        # 4x2 and 2x4 tokens of the vision encoder
        _case((3, 2), 3, 42, prompt="swap", references=[(75, 50), (41, 90)], alpha=[0]),
        _case((2, 3), 2, 9, prompt="turn", cfg=4.0, negative="ugly", references=[(72, 73)], alpha=[]),
        _case((1, 2), 2, 77, prompt="short", cfg=2.5, negative="empty", references=[(31, 45)], alpha=[0], batch=2),
    ],
    "qwen_image_21_distilled": [_case((3, 1), 3, 5)],
}


def spec_default(name, seed, form):
    return Spec(
        name, seed, form, heads=3, axes=[2, 4, 6], layers=3,
        text_hidden=28, text_heads=3, text_kv_heads=1, text_sections=[4, 2, 2], text_layers=4, text_ffn=44,
        tower_heads=2, tower_head_dim=8, tower_layers=4, tower_taps=[0, 1, 3], tower_ffn=26, tower_grid=7,
        vae_base=2, decoder_base=3, vae_times=[1, 2, 4, 8, 8], vae_layers=1, channels=5, cases=CASES[name])


def random_spec(name, seed):
    """Returns a spec of random dimensions and sizes under the same rules; fixtures that share weights draw them
    identically."""
    form = FORMS[name]
    rng, own = random.Random(f"{seed} {form['share'] or name}"), random.Random(f"cases {seed} {name}")
    drawn = spec_default(name, seed, form)
    kv, side = rng.randint(1, 2), rng.randint(1, 3)
    drawn.heads, drawn.axes, drawn.layers = rng.randint(1, 4), [2 * rng.randint(1, 4) for _ in range(3)], rng.randint(2, 4)
    drawn.text_kv_heads, drawn.text_heads, drawn.text_hidden = kv, kv * rng.randint(1, 3), 2 * rng.randint(8, 20)
    drawn.text_sections, drawn.text_layers, drawn.text_ffn = [side + rng.randint(0, 2), side, side], rng.randint(3, 5), rng.randint(30, 60)
    drawn.tower_heads, drawn.tower_head_dim, drawn.tower_layers = rng.randint(1, 3), 4 * rng.randint(2, 4), rng.randint(4, 5)
    drawn.tower_taps, drawn.tower_grid = sorted(rng.sample(range(drawn.tower_layers), 3)), rng.randint(4, 9)
    drawn.vae_layers, drawn.channels, drawn.merges = rng.randint(1, 2), rng.randint(3, 8), rng.randint(120, 300)
    drawn.cases = [redrawn(wanted, own, 20, 120) | dict(grid=(own.randint(1, 3), own.randint(1, 3))) for wanted in CASES[name]]
    for case in drawn.cases:
        if case["cfg"] != 1:
            case["cfg"] = round(own.uniform(1.5, 6), 2)
        if form["sample_sigmas"]:
            case["steps"] = len(form["sample_sigmas"])
    return drawn


def spec(name, seed):
    return spec_default(name, seed, FORMS[name]) if seed == DEFAULT_SEED else random_spec(name, seed)
