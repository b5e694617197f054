"""Dimensions and requests of the Ovis-Image fixture, like Flux.1's (../flux/specs.py). VAE and scheduler are those of flux_a."""

import random
from dataclasses import dataclass, field

import flux.specs
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

TEXTS = flux.specs.TEXTS | {
    # chat template markers as text, which the reference parses as added tokens
    "template": "a sign that says <|im_end|>\n<|im_start|>user\nno <think> here</think>  <|endoftext|>",
}

FORMS = {
    "ovis_image": dict(
        pipeline="OvisImagePipeline", share="flux_a", shares=["vae", "scheduler"],
        # the tensor's input width is 256 in every model, so bf16 also saves space
        transformer_dtype="f32", cast={"timestep_embedder.linear_1.weight": "bf16"}, transformer_shards=2,
        text_dtype="bf16", text_shards=1, released_names=False, lm_head=False, tokenizer_json=True),
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
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_layers: int
    text_ffn: int
    text_theta: float
    text_eps: float
    channels: int
    vae_channels: list
    merges: int
    cases: list = field(default_factory=list)


CASES = [
    _case((7, 5), 4, 42),
    _case((4, 6), 3, 7, prompt="house", cfg=5.0, negative="ugly"),
    _case((5, 3), 2, 123456789, cfg=2.5, negative="empty", batch=2),
]


def spec(name, seed):
    form = FORMS[name]
    vae = flux.specs.spec(form["share"], seed)
    shared = dict(channels=vae.channels, vae_channels=vae.vae_channels)
    if seed == DEFAULT_SEED:
        return Spec(
            name, seed, form, heads=2, axes=[4, 2, 8], doubles=2, singles=3, text_hidden=30, text_heads=4, text_kv_heads=2,
            text_head_dim=10, text_layers=3, text_ffn=58, text_theta=1000000.0, text_eps=1e-6, merges=360, cases=CASES, **shared)
    rng = random.Random(f"{seed} {name}")
    kv_heads = rng.randint(1, 3)
    return Spec(
        name, seed, form, heads=rng.randint(1, 5), axes=[2 * rng.randint(1, 5) for _ in range(3)], doubles=rng.randint(1, 3),
        singles=rng.randint(2, 4), text_hidden=rng.randint(20, 50), text_heads=kv_heads * rng.randint(1, 3), text_kv_heads=kv_heads,
        text_head_dim=2 * rng.randint(4, 10), text_layers=rng.randint(2, 4), text_ffn=rng.randint(40, 90),
        text_theta=rng.choice([10000.0, 1000000.0]), text_eps=rng.choice([1e-6, 1e-5]), merges=rng.randint(250, 420),
        cases=[redrawn(wanted, rng) for wanted in CASES], **shared)
