"""Dimensions and requests of each fixture of Stable Diffusion 3 and 3.5, like Flux.1's (../flux/specs.py).

A case: grid is (columns, rows) of 2x2 latent pixels, within the position table; prompt and negative name texts below
(negative None: no negative prompt); init and mask are generated images; slg: blocks that skip-layer guidance skips, and its parameters.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS
from specs import DEFAULT_SEED, case

FORMS = {
    # has all three text encoders, and the published VAE's constants for files without them
    "sd3_medium": dict(
        share=None, shares=[], absent=[], normed=False, second=[], transformer_dtype="f32", transformer_shards=2,
        # the tensor's input width is 256 in every model, so bf16 also saves much space
        cast={"time_text_embed.timestep_embedder.linear_1.weight": "bf16"},
        text_dtype="f16", t5_dtype="bf16", t5_shards=2, vae_dtype="f32", quant_convs=False),
    "sd35_medium": dict(
        share="sd3_medium", shares=["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae", "scheduler"], absent=["text_encoder_3"],
        normed=True, second=[0, 2], transformer_dtype="f16", transformer_shards=1, cast={"pos_embed.pos_embed": "f32"}),
    # without CLIP-L, which the reference requires: zeros replace its output
    "sd35_large": dict(
        share="sd3_medium", shares=["text_encoder_2", "text_encoder_3", "tokenizer_2", "tokenizer_3", "vae", "scheduler"], absent=["text_encoder"],
        normed=True, second=[], transformer_dtype="bf16", transformer_shards=1, cast={"proj_out.bias": "f32"}),
}


@dataclass
class Spec:
    name: str
    seed: int
    form: dict
    heads: int
    # width of a head: a multiple of 8, so that rows after a text of 333 start at an alignment that GPUs accept
    head_dim: int        
    layers: int
    side: int              # side of the position table
    context: int           # text columns; T5's width if T5 is present
    # CLIP encoders by name: (hidden, heads, layers, feed-forward)
    clips: dict
    t5_hidden: int
    t5_heads: int
    t5_head_dim: int
    t5_layers: int
    t5_ffn: int
    vae_channels: list
    vae_groups: int
    vae_layers: int
    channels: int = 16     # latent channels; diffusers' inpainting supports 16 only
    scaling_factor: float = 1.5305
    shift_factor: float = 0.0609
    merges: int = 200
    cases: list = field(default_factory=list)

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def pooled(self):
        return sum(hidden for hidden, _, _, _ in self.clips.values())

    @property
    def factor(self):
        return 2 ** (len(self.vae_channels) - 1)

    @property
    def pixel_multiple(self):
        return 2 * self.factor


def _slg(layers, scale, start, end):
    return dict(layers=layers, scale=scale, start=start, end=end)


CASES = {
    "sd3_medium": [
        case((7, 5), 4, 42, cfg=5.0, negative="ugly"),
        case((4, 6), 3, 7, prompt="house"),
        # an absent negative prompt is encoded as an empty prompt
        case((5, 3), 2, 123456789, prompt="house", cfg=2.5, batch=2),
      
        case((6, 4), 5, 11, init=True, strength=0.6),
    ],
    "sd35_medium": [
        # skip-layer guidance in steps 1 and 2 of 5
        case((6, 7), 5, 42, cfg=4.0, negative="ugly", slg=_slg([1, 2], 2.8, 0.01, 0.45)),
        # skip-layer guidance where 0.6 < i < 3; skips the last block, which has no text output
        case((3, 5), 6, 7, prompt="house", cfg=2.5, slg=_slg([3], 1.5, 0.1, 0.5), batch=2),
        case((5, 4), 3, 9),
    ],
    "sd35_large": [
        case((5, 6), 4, 42, cfg=3.5, negative="ugly"),
        # 4 steps * 0.6 = 2.4: runs the last three
        case((4, 7), 4, 2024, prompt="house", init=True, strength=0.6, batch=2),
        # inpainting: the white region is generated, the rest is restored after every step
        case((5, 4), 4, 77, cfg=2.5, negative="empty", init=True, mask=True, strength=1.0),
        case((6, 3), 5, 78, prompt="house", init=True, mask=True, strength=0.7, batch=2),
    ],
}

DIMENSIONS = {
    "sd3_medium": dict(heads=5, head_dim=8, layers=3, side=13, context=38),
    "sd35_medium": dict(heads=2, head_dim=12, layers=4, side=15, context=41),
    "sd35_large": dict(heads=4, head_dim=8, layers=3, side=9, context=38),
}
SHARED = dict(clips=dict(clip_l=(12, 2, 3, 34), clip_g=(20, 4, 4, 46)), t5_hidden=38, t5_heads=3, t5_head_dim=10, t5_layers=2, t5_ffn=44,
              vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1)


def random_spec(name, seed):
    shared, own = random.Random(f"{seed} sd3_medium"), random.Random(f"cases {seed} {name}")
    groups = shared.choice([2, 3, 4])
    clips = {clip: (2 * shared.randint(4, 12), 2, shared.randint(3, 5), shared.randint(30, 80)) for clip in ("clip_l", "clip_g")}
    hidden = sum(width for width, _, _, _ in clips.values()) + shared.randint(1, 9)
    kept = dict(
        clips=clips, t5_hidden=hidden, t5_heads=shared.randint(1, 5), t5_head_dim=shared.randint(5, 12), t5_layers=shared.randint(2, 4),
        t5_ffn=shared.randint(30, 80), vae_channels=[groups * s for s in shared.sample(range(2, 8), 4)], vae_groups=groups,
        vae_layers=shared.randint(1, 2), merges=shared.randint(120, 300))
    drawn = Spec(
        name, seed, FORMS[name], heads=own.randint(1, 5), head_dim=8 * own.randint(1, 2), layers=DIMENSIONS[name]["layers"],
        side=own.randint(9, 17), context=hidden + own.randint(0, 9) * ("text_encoder_3" in FORMS[name]["absent"]), **kept)
    drawn.cases = [dict(one, grid=(own.randint(2, 9), own.randint(2, 9)), seed=own.randint(0, 2**33)) for one in CASES[name]]
    return drawn


def spec(name, seed):
    if seed != DEFAULT_SEED:
        return random_spec(name, seed)
    return Spec(name, seed, FORMS[name], cases=CASES[name], **DIMENSIONS[name], **SHARED)
