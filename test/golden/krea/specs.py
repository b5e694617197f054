"""Dimensions and requests of the Krea 2 fixtures, like Flux.1's (../flux/specs.py). The VAE is that of qwen_edit_plus."""

import random
from dataclasses import dataclass, field

import flux.specs
import qwen.specs
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

TEXTS = flux.specs.TEXTS | {
    # chat template markers as text, which the reference parses as added tokens
    "template": "a sign that says <|im_end|>\n<|im_start|>system\nno <|endoftext|>",
}

FORMS = {
    "krea2": dict(
        pipeline="Krea2Pipeline", distilled=False, share="qwen_edit_plus", shares=["vae"],
        # types of the published files: norms and modulation tables in f32
        transformer_dtype="bf16", cast=("norm", "scale_shift_table"), transformer_shards=2, text_dtype="bf16", tokenizer_json=True),
    "krea2_turbo": dict(
        pipeline="Krea2Pipeline", distilled=True, share="krea2", shares=["text_encoder", "tokenizer", "transformer", "vae"]),
}


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    key_heads: int
    axes: list
    layers: int
    ffn: int
    fusion_heads: int
    fusion_key_heads: int
    fusion_ffn: int
    tap_layers: int
    refiners: int
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_sections: list  # counts pairs: the sum is half the head size
    text_ffn: int
    channels: int
    merges: int
    cases: list = field(default_factory=list)
    text_layers: int = 36
    taps: list = field(default_factory=lambda: list(range(2, 36, 3)))

    @property
    def factor(self):
        return qwen.specs.spec("qwen_edit_plus", self.seed).factor


CASES = {
    "krea2": [
        _case((6, 4), 4, 42),
        _case((3, 5), 3, 7, prompt="ugly", cfg=5.5, negative="empty"),
        _case((5, 3), 2, 123456789, prompt="house", cfg=2.5, negative="ugly", batch=2),
        # a prompt that is truncated before the template's last tokens
        _case((3, 4), 2, 99, prompt="long"),
    ],
    "krea2_turbo": [
        _case((4, 6), 3, 42),
        _case((6, 3), 2, 10, prompt="house", cfg=2.0, negative="ugly"),
    ],
}


def spec(name, seed):
    form = FORMS[name]
    channels = qwen.specs.spec("qwen_edit_plus", seed).channels
    if seed == DEFAULT_SEED:
        return Spec(
            name, seed, form, heads=4, key_heads=2, axes=[4, 6, 6], layers=2, ffn=52, fusion_heads=4, fusion_key_heads=2, fusion_ffn=26,
            tap_layers=2, refiners=2, text_hidden=20, text_heads=3, text_kv_heads=1, text_sections=[2, 1, 1], text_ffn=22, channels=channels,
            merges=200, cases=CASES[name])
    rng, own = random.Random(f"{seed} krea2"), random.Random(f"cases {seed} {name}")
    keys, fusion_keys, text_keys = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 2)
    fusion_heads = fusion_keys * rng.randint(1, 3)
    return Spec(
        name, seed, form, heads=keys * rng.randint(1, 3), key_heads=keys, axes=[2 * rng.randint(1, 5) for _ in range(3)],
        layers=rng.randint(2, 4), ffn=rng.randint(30, 90), fusion_heads=fusion_heads, fusion_key_heads=fusion_keys,
        fusion_ffn=rng.randint(20, 60), tap_layers=rng.randint(1, 3), refiners=rng.randint(1, 3), text_hidden=fusion_heads * rng.randint(4, 9),
        text_heads=text_keys * rng.randint(1, 3), text_kv_heads=text_keys, text_sections=[rng.randint(1, 3) for _ in range(3)],
        text_ffn=rng.randint(20, 50), channels=channels, merges=rng.randint(120, 300), cases=[redrawn(wanted, own) for wanted in CASES[name]])
