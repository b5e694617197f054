"""Dimensions and requests of each LongCat-Image fixture, like Flux.1's (../flux/specs.py).

A case: grid is (columns, rows) of 2x2 patches; prompt and negative name texts below; references are images'
(width, height) in pixels, of any size. The editing pipeline draws an image of a fixed area in the reference's aspect ratio,
so the grid of a case with a reference follows from it (drawn_grid).
"""

import math
import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

# Area in pixels. The pipeline uses 1024^2, which would be too slow at any model size; the reference and the tests' tables
# use this one.
PICTURE = 96 * 96

TEXTS = FLUX_TEXTS | {
    # Quoted parts, two words with an apostrophe, a lone combining mark inside quotes
    "sign": "the fox's sign says 'OPEN 24h' or \u201cCafe\u0301 \u96ea\u201d, it's new; \"no\" and \u2018yes\u2019",
    "turn": "change the hat's colour and write \"HELLO it's me\" and 'snow' on it, don't move the fox",
    # Quotes that open but do not close, that are empty or nested, and an apostrophe behind a digit or another letter
    "unbalanced": "a 'b \"c\" d' \u201ce 'f' g\u201d '' \"\" 5's \u00e9's 'open \u2018closed\u201c",
    # chat template markers as text, which the reference parses as added tokens
    "template": "a sign that says <|im_end|>\n<|im_start|>system\n'no <|endoftext|>'",
}

FORMS = {
    # owns the text encoder with its vision tower, the tokenizer and the VAE
    "longcat_image_edit": dict(
        pipeline="LongCatImageEditPipeline", share=None, shares=[],
        transformer_dtype="bf16", cast={"proj_out.bias": "f32"}, transformer_shards=2,
        text_dtype="bf16", text_cast={"model.norm.weight": "f32"}, text_shards=1, lm_head=False, nested=True,
        tokenizer_json=False, vae_dtype="bf16", quant_convs=False,
        # more pixels than the published least of 3136: the tower sees 3x4 and 5x2 tokens
        pixels=dict(min_pixels=7000, max_pixels=12845056, size={"shortest_edge": 7000, "longest_edge": 12845056})),
    "longcat_image": dict(
        pipeline="LongCatImagePipeline", share="longcat_image_edit", shares=["text_encoder", "text_processor", "tokenizer", "vae"],
        transformer_dtype="f32", cast={"time_embed.timestep_embedder.linear_1.weight": "bf16"}, transformer_shards=1),
}


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list
    doubles: int
    singles: int
    text_heads: int
    text_kv_heads: int
    text_sections: list  # counts pairs: the sum is half the head size
    text_layers: int
    text_ffn: int
    tower_heads: int
    tower_head_dim: int
    tower_layers: int
    tower_full: list
    tower_ffn: int
    tower_window: int
    vae_channels: list
    vae_groups: int
    vae_layers: int
    scaling_factor: float
    shift_factor: float
    cases: list = field(default_factory=list)
    channels: int = 16  # fixed in the pipelines
    merges: int = 200

    @property
    def text_head_dim(self):
        return 2 * sum(self.text_sections)

    @property
    def text_hidden(self):
        return self.text_heads * self.text_head_dim

    @property
    def tower_dim(self):
        return self.tower_heads * self.tower_head_dim


def drawn_size(width, height):
    """Returns the size at which the editing pipeline draws: PICTURE pixels, each side up to the next multiple of 16."""
    ratio = width * 1.0 / height
    drawn_width = math.sqrt(PICTURE * ratio)
    return tuple(16 * math.ceil(side / 16) for side in (drawn_width, drawn_width / ratio))


def drawn_grid(case):
    """Returns the case with the grid that its reference determines."""
    if case.get("references"):
        case = case | dict(grid=tuple(side // 16 for side in drawn_size(*case["references"][0])))
    return case


CASES = {
    "longcat_image": [
        _case((7, 5), 4, 42, prompt="sign"),
        _case((4, 6), 3, 7, prompt="house", cfg=4.5, negative="ugly"),
        # the negative prompt is padding alone
        _case((5, 3), 2, 4294967295, prompt="sign", cfg=2.5, negative="empty", batch=2),
    ],
    "longcat_image_edit": [
        _case(None, 3, 42, prompt="turn", references=[(61, 40)]),
        _case(None, 2, 9, prompt="house", cfg=4.5, negative="ugly", references=[(33, 97)], batch=2),
    ],
}


def spec_edit(name, seed, form):
    return Spec(
        name, seed, form, heads=2, axes=[2, 4, 4], doubles=2, singles=2,
        text_heads=2, text_kv_heads=1, text_sections=[1, 2, 3], text_layers=2, text_ffn=44,
        tower_heads=2, tower_head_dim=8, tower_layers=2, tower_full=[1], tower_ffn=36, tower_window=56,
        vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1, scaling_factor=0.3611, shift_factor=0.1159, cases=CASES[name])


def spec_image(name, seed, form):
    spec = spec_edit(name, seed, form)
    spec.heads, spec.axes, spec.doubles, spec.singles = 2, [4, 2, 6], 1, 3
    return spec


def random_spec(name, seed):
    """Returns a spec of random dimensions and sizes under the same rules; fixtures that share weights draw them
    identically."""
    form = FORMS[name]
    rng, own = random.Random(f"{seed} {form['share'] or name}"), random.Random(f"cases {seed} {name}")
    kv, layers, groups = rng.randint(1, 2), rng.randint(2, 4), rng.choice([2, 3])
    drawn = Spec(
        name, seed, form, heads=own.randint(1, 5), axes=[2 * own.randint(1, 5) for _ in range(3)], doubles=own.randint(1, 3),
        singles=own.randint(1, 4),
        text_heads=kv * rng.randint(1, 3), text_kv_heads=kv, text_sections=[rng.randint(1, 5) for _ in range(3)],
        text_layers=rng.randint(2, 4), text_ffn=rng.randint(30, 80),
        tower_heads=rng.randint(1, 4), tower_head_dim=4 * rng.randint(2, 6), tower_layers=layers, tower_full=[rng.randrange(1, layers)],
        tower_ffn=rng.randint(30, 60), tower_window=28 * rng.randint(1, 5),
        vae_channels=[groups * s for s in rng.sample(range(2, 8), 4)], vae_groups=groups, vae_layers=rng.randint(1, 2),
        scaling_factor=round(rng.uniform(0.3, 1.5), 4), shift_factor=round(rng.uniform(-0.3, 0.3), 4), merges=rng.randint(120, 300))
    for wanted in CASES[name]:
        drawn.cases.append(redrawn(wanted, own, 20, 120))
        if wanted["cfg"] != 1:
            drawn.cases[-1]["cfg"] = round(own.uniform(1.5, 6), 2)
    return drawn


def spec(name, seed):
    if seed != DEFAULT_SEED:
        out = random_spec(name, seed)
    else:
        out = (spec_edit if name == "longcat_image_edit" else spec_image)(name, seed, FORMS[name])
    out.cases = [drawn_grid(case) for case in out.cases]
    return out
