"""Dimensions and requests of each Flux.2 fixture, like Qwen-Image's (../qwen/specs.py).

A case: grid is (columns, rows) of tokens, each one pixel of the packed latent; references are images' (width, height) in
pixels: sides of at least 64, as the pipelines demand, and cropped to whole tokens.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

TEXTS = FLUX_TEXTS | {
    "turn": "turn the fox into a small boat, keep the snow",
    "swap": "put the house of image 2 behind the fox of image 1; 3 trees & 12 birds",
    # markers of the templates as text, which the reference parses as added tokens; dev deletes [IMG]
    "template": "a sign [IMG] that says <|im_end|>\n<|im_start|>system\nno <think> [INST]here[/INST]</think>  <|endoftext|><pad></s>",
}

KLEIN_PARTS = ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"]

FORMS = {
    "flux2_klein": dict(
        pipeline="Flux2KleinPipeline", distilled=True, guided=False, share=None, shares=[],
        transformer_dtype="f32", text_dtype="bf16", vae_dtype="f32",
        # the tensor's input width is 256 in every model, so bf16 also saves much space
        cast={"time_guidance_embed.timestep_embedder.linear_1.weight": "bf16"},
        transformer_shards=2, text_shards=1, tokenizer_json=True),
    "flux2_klein_base": dict(
        pipeline="Flux2KleinPipeline", distilled=False, guided=False, share="flux2_klein", shares=KLEIN_PARTS),
    "flux2_dev": dict(
        pipeline="Flux2Pipeline", distilled=None, guided=True, share=None, shares=[],
        transformer_dtype="bf16", text_dtype="f16", vae_dtype="bf16",
        cast={"context_embedder.weight": "f32"}, transformer_shards=1, text_shards=2),
}


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list            # rope widths of the four axes (picture, row, column, text); their sum is the head size
    doubles: int
    singles: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_hidden: int
    text_layers: int
    text_read: list       # numbers of layers after which the hidden states are read
    text_ffn: int
    vae_channels: list
    vae_groups: int
    vae_layers: int
    channels: int         # latent channels of the VAE; a token has four times as many
    decoder_channels: list = None  # the decoder's, if they differ from the encoder's
    cases: list = field(default_factory=list)
    merges: int = 200


CASES = {
    "flux2_klein": [
        # sides that are no multiples of 16 are cropped: to 4x4 and 4x5 tokens
        _case((5, 4), 4, 42, prompt="swap", references=[(75, 64), (67, 86)]),
        _case((4, 7), 3, 7, prompt="house"),
        _case((3, 5), 2, 123456789, batch=2),
        _case((6, 3), 2, 9, prompt="turn", references=[(97, 66)], batch=2),
        # longer than the 512 tokens that are read
        _case((2, 3), 1, 5, prompt="long"),
        # the input image is also the first reference
        _case((4, 5), 3, 11, prompt="house", init=True, mask=True, strength=1.0),
    ],
    "flux2_klein_base": [
        _case((5, 3), 3, 42, prompt="house", cfg=3.0, negative="empty"),
        _case((4, 6), 2, 4294967295, prompt="turn", cfg=1.6, negative="ugly", references=[(64, 90)], batch=2),
        # 5 steps, strength 0.7: runs the last four
        _case((5, 4), 5, 77, cfg=4.0, negative="empty", init=True, mask=True, strength=0.7),
        _case((4, 5), 4, 2024, prompt="swap", cfg=1.7, negative="ugly", init=True, mask=True, strength=0.5, references=[(70, 64)], batch=2),
        _case((3, 4), 2, 1, prompt="empty"),
    ],
    "flux2_dev": [
        # cropped to 8x9 tokens
        _case((5, 6), 3, 42, prompt="turn", guidance=4.0, references=[(65, 79)]),
        _case((7, 4), 2, 123456789, prompt="house", guidance=2.5, batch=2),
        _case((6, 5), 2, 9, prompt="swap", guidance=4.0, references=[(64, 64), (73, 64)]),
    ],
}


def spec_klein(name, seed, form):
    return Spec(
        name, seed, form, heads=2, axes=[2, 6, 4, 2], doubles=2, singles=2,
        text_heads=3, text_kv_heads=1, text_head_dim=10, text_hidden=14, text_layers=28, text_read=[9, 18, 27], text_ffn=22,
        vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1, channels=5, cases=CASES[name])


def spec_dev(name, seed, form):
    return Spec(
        name, seed, form, heads=3, axes=[4, 2, 2, 4], doubles=1, singles=3,
        text_heads=2, text_kv_heads=1, text_head_dim=12, text_hidden=16, text_layers=31, text_read=[10, 20, 30], text_ffn=26,
        # as in FLUX.2-small-decoder, the decoder is narrower
        vae_channels=[6, 9, 15], decoder_channels=[6, 6, 12], vae_groups=3, vae_layers=2, channels=4, cases=CASES[name], merges=350)


def random_spec(name, seed):
    """Returns a spec of random dimensions and sizes under the same rules; fixtures that share weights draw them
    identically."""
    form = FORMS[name]
    rng = random.Random(f"{seed} {form['share'] or name}")
    drawn = (spec_dev if form["guided"] else spec_klein)(name, seed, form)
    kv, groups = rng.randint(1, 2), rng.choice([2, 3])
    drawn.heads, drawn.axes = rng.randint(1, 4), [2 * rng.randint(1, 4) for _ in range(4)]
    drawn.doubles, drawn.singles = rng.randint(1, 2), rng.randint(1, 3)
    drawn.text_kv_heads, drawn.text_heads, drawn.text_head_dim = kv, kv * rng.randint(1, 3), 2 * rng.randint(3, 7)
    drawn.text_hidden, drawn.text_ffn = rng.randint(10, 24), rng.randint(14, 40)
    levels = len(drawn.vae_channels)
    drawn.vae_groups, drawn.vae_channels = groups, [groups * s for s in rng.sample(range(2, 8), levels)]
    if drawn.decoder_channels:
        drawn.decoder_channels = [groups * s for s in rng.sample(range(2, 8), levels)]
    drawn.channels, drawn.merges = rng.randint(3, 8), rng.randint(120, 300)
    own = random.Random(f"cases {seed} {name}")
    drawn.cases = [redrawn(wanted, own, 64, 120) for wanted in CASES[name]]
    for case in drawn.cases:
        if case["cfg"] != 1:
            case["cfg"] = round(own.uniform(1.5, 6), 2)
    return drawn


def spec(name, seed):
    if seed != DEFAULT_SEED:
        return random_spec(name, seed)
    return (spec_dev if FORMS[name]["guided"] else spec_klein)(name, seed, FORMS[name])
