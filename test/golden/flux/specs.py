"""Dimensions and requests of each Flux fixture, like Z-Image's (../specs.py).

A case: grid is (columns, rows) of 2x2 patches; prompt and negative name texts below; guidance is
the distilled one, cfg classifier-free guidance; init, mask, references (their grids) and redux (their sizes in pixels) are generated images.
"""

import random
from dataclasses import dataclass, field

from specs import DEFAULT_SEED, Sizes, case, redrawn

FORMS = {
    "flux_a": dict(
        pipeline="FluxPipeline", guided=True, fills=False, tokens_max=512, share=None, shares=[],
        transformer_dtype="f32", clip_dtype="f32", t5_dtype="f32", vae_dtype="f32",
        # the tensor's input width is 256 in every model, so bf16 also saves much space
        cast={"time_text_embed.timestep_embedder.linear_1.weight": "bf16", "time_text_embed.guidance_embedder.linear_1.weight": "bf16"},
        transformer_shards=2, t5_shards=1,
        clip_json=False,          # CLIP: vocab.json and merges.txt
        t5_json=True,             # T5: tokenizer.json, without spiece.model
        clip_released=True,       # CLIP: prefix "text_model."; eos_token_id is 2 and not the tokenizer's
        quant_convs=False, dynamic_shift=True, scheduler_shift=3.0,
    ),
    "flux_b": dict(
        pipeline="FluxPipeline", guided=False, fills=False, tokens_max=256, share=None, shares=[],
        transformer_dtype="bf16", clip_dtype="bf16", t5_dtype="f16", vae_dtype="f32",
        cast={"proj_out.bias": "f32", "context_embedder.weight": "f16"},
        transformer_shards=1, t5_shards=2,
        clip_json=True, t5_json=False,  # T5: spiece.model, without tokenizer.json
        clip_released=False,
        quant_convs=True, dynamic_shift=False, scheduler_shift=1.0,
    ),
    "flux_kontext": dict(
        pipeline="FluxKontextPipeline", guided=True, fills=False, tokens_max=512,
        share="flux_a", shares=["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "vae", "scheduler"],
    ),
    "flux_fill": dict(
        pipeline="FluxFillPipeline", guided=True, fills=True, tokens_max=512,
        share="flux_a", shares=["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae", "scheduler"],
        transformer_dtype="bf16", cast={}, transformer_shards=1,
    ),
    "flux_redux": dict(
        pipeline="FluxPipeline", guided=True, fills=False, tokens_max=512,
        share="flux_a", shares=["text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "transformer", "vae", "scheduler"],
        # SigLIP: 3 x 3 patches, and 3 unread pixels
        redux=dict(width=30, ffn=44, layers=3, heads=3, side=45, patch=14, dtype="f32"),
    ),
}

TEXTS = {
    "fox": "a red fox in the snow, golden hour, soft light",
    "house": "the old house by the sea; 3 trees & 12 birds, oil painting, it's THE FOX'S den (wide angle)",
    "ugly": "blurry, low quality, bad hands",
    "empty": "",
    "unicode": "Cafe\u0301 \u212bngstrom, 雪の中の狐  \u1112\u1161\u11ab\uae00\n👩\u200d👩\u200d👧 🦊🏽 12345 e\u0323\u0307 — it'S THE ﬁrst  ",
    # special tokens as text, which the reference parses as added tokens
    "special": "a sign <|endoftext|> that says </s> <|startoftext|>hello<pad> <extra_id_7>, <unk> there",
    "long": ", ".join(f"{n} {thing} in the {place}" for n in range(24) for thing, place in
                      (("birds", "snow"), ("small boats", "morning light"), ("mountains", "night sky"))),
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
    channels: int
    clip_hidden: int
    clip_heads: int
    clip_layers: int
    clip_ffn: int
    t5_hidden: int
    t5_heads: int
    t5_head_dim: int
    t5_layers: int
    t5_ffn: int
    vae_channels: list
    vae_groups: int
    vae_layers: int
    scaling_factor: float
    shift_factor: float
    cases: list = field(default_factory=list)
    merges: int = 200


def _case(grid, steps, seed, guidance=3.5, **more):
    return case(grid, steps, seed, guidance=guidance, **more)


CASES = {
    "flux_a": [
        _case((7, 5), 4, 42),
        # classifier-free guidance in addition to the distilled guidance
        _case((4, 6), 3, 7, prompt="house", guidance=1.7, cfg=2.5, negative="ugly"),
        _case((5, 3), 2, 123456789, batch=2),
        # 5 steps, strength 0.6: runs the last three
        _case((6, 4), 5, 11, init=True, strength=0.6),
        # 7 steps * 0.45 = 3.15: diffusers runs the last four; each image has its own posterior noise
        _case((3, 5), 7, 2024, prompt="house", guidance=5.0, cfg=2.5, negative="empty", init=True, strength=0.45, batch=2),
    ],
    "flux_b": [
        _case((9, 7), 4, 2024, prompt="house", guidance=None),
        _case((4, 11), 1, 0, guidance=None),
        # seeds across 2^32: torch's generator uses the low 32 bits
        _case((6, 5), 2, 4294967295, guidance=None, cfg=3.0, negative="ugly", batch=3),
        _case((5, 8), 3, 5, guidance=None, init=True, strength=0.8),
    ],
    "flux_kontext": [
        _case((4, 6), 4, 42, guidance=2.5, references=[(7, 3)]),
        _case((6, 3), 2, 9, prompt="house", guidance=4.0, cfg=2.5, negative="ugly", references=[(3, 5)], batch=2),
        # two references, although the reference's pipeline supports one: the second has 2 on the first position axis
        _case((5, 4), 2, 8, guidance=2.5, references=[(3, 4), (6, 2)]),
        _case((3, 4), 2, 1, guidance=2.5),
    ],
    "flux_redux": [
        _case((4, 3), 3, 42, redux=[(61, 37)], redux_strength=0.6),
        # two images and the text twice; the lanes have prompts of different length
        _case((3, 5), 2, 7, prompt="house", guidance=1.7, cfg=2.5, negative="ugly", redux=[(45, 45), (23, 90)], redux_strength=0.45),
        # images alone: zeros for the text
        _case((5, 3), 2, 9, prompt=None, redux=[(300, 20)], redux_strength=1.0, batch=2),
        _case((3, 4), 3, 8, init=True, strength=0.7, prompt="house", redux=[(46, 44)], redux_strength=1.3),
        # the same prompt without images
        _case((3, 4), 2, 8, prompt="house"),
    ],
    "flux_fill": [
        _case((5, 6), 3, 42, guidance=30.0, init=True, mask=True, strength=1.0),
        _case((4, 3), 5, 77, prompt="house", guidance=12.5, init=True, mask=True, strength=0.8),
        _case((3, 4), 2, 99, guidance=30.0, init=True, mask=True, strength=1.0, batch=2),
    ],
}


def spec_a(name, seed, form):
    return Spec(
        name, seed, form, heads=3, axes=[2, 6, 4], doubles=2, singles=3, channels=5,
        clip_hidden=20, clip_heads=2, clip_layers=3, clip_ffn=52,
        t5_hidden=28, t5_heads=5, t5_head_dim=6, t5_layers=3, t5_ffn=44,
        vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1, scaling_factor=0.3611, shift_factor=0.1159, cases=CASES[name])


def spec_b(name, seed, form):
    return Spec(
        name, seed, form, heads=2, axes=[6, 2, 8], doubles=1, singles=4, channels=4,
        clip_hidden=24, clip_heads=3, clip_layers=2, clip_ffn=38,
        t5_hidden=34, t5_heads=3, t5_head_dim=10, t5_layers=2, t5_ffn=50,
        vae_channels=[6, 9, 15], vae_groups=3, vae_layers=2, scaling_factor=0.52, shift_factor=-0.21, cases=CASES[name])


def random_spec(name, seed):
    """Returns a spec of random dimensions and sizes under the same rules; fixtures that share weights draw them
    identically."""
    form = FORMS[name]
    rng = random.Random(f"{seed} {form['share'] or name}")
    clip_heads, groups, levels = rng.randint(1, 4), rng.choice([2, 3, 4]), rng.choice([3, 4])
    drawn = Spec(
        name, seed, form, heads=rng.randint(1, 5), axes=[2 * rng.randint(1, 5) for _ in range(3)],
        doubles=rng.randint(1, 3), singles=rng.randint(1, 4), channels=rng.choice([4, 6, 16]),
        clip_hidden=clip_heads * rng.randint(6, 14), clip_heads=clip_heads, clip_layers=rng.randint(1, 4), clip_ffn=rng.randint(30, 80),
        t5_hidden=rng.randint(20, 50), t5_heads=rng.randint(1, 6), t5_head_dim=rng.randint(5, 12), t5_layers=rng.randint(1, 4),
        t5_ffn=rng.randint(30, 80),
        vae_channels=[groups * s for s in rng.sample(range(2, 8), levels)], vae_groups=groups, vae_layers=rng.randint(1, 2),
        scaling_factor=round(rng.uniform(0.3, 1.5), 4), shift_factor=round(rng.uniform(-0.3, 0.3), 4), merges=rng.randint(120, 300))
    own = random.Random(f"cases {seed} {name}")
    for wanted in CASES[name]:
        drawn.cases.append(redrawn(wanted, own, 2, 9))
        if wanted["guidance"]:
            drawn.cases[-1]["guidance"] = round(own.uniform(1, 30), 2)
    return drawn


def spec(name, seed):
    if seed != DEFAULT_SEED:
        return random_spec(name, seed)
    return (spec_b if name == "flux_b" else spec_a)(name, seed, FORMS[name])
