"""Dimensions and requests of the Chroma fixture. Text encoder and VAE are those of flux_a (../flux/specs.py)."""

import random
from dataclasses import dataclass, field

import flux.specs
from specs import DEFAULT_SEED, Sizes, case, redrawn

TEXTS = flux.specs.TEXTS

FORMS = {
    "chroma_hd": dict(
        share="flux_a", tokens_max=512,
        transformer_dtype="bf16", transformer_shards=1,
        cast={"proj_out.bias": "f32", "distilled_guidance_layer.in_proj.weight": "f32", "context_embedder.weight": "f16"},
    ),
}

CASES = [
    case((7, 5), 4, 42, cfg=3.5, negative="ugly"),
    # without classifier-free guidance
    case((4, 6), 3, 7, prompt="house"),
    # the negative prompt is longer than the prompt and cut at 512 tokens: no padding row
    case((5, 3), 2, 4294967295, cfg=5.0, negative="long", batch=2),
    # 5 steps, strength 0.6: runs the last three
    case((6, 4), 5, 11, cfg=2.5, negative="empty", init=True, strength=0.6),
    # 7 steps * 0.45 = 3.15: diffusers runs the last four; each image has its own posterior noise
    case((3, 5), 7, 2024, prompt="house", init=True, strength=0.45, batch=2),
]


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list
    doubles: int
    singles: int
    hidden: int           # width of the approximator
    # as in flux_a
    channels: int
    t5_hidden: int
    vae_channels: list
    scaling_factor: float
    shift_factor: float
    cases: list = field(default_factory=list)

    @property
    def rows(self):
        return 3 * self.singles + 12 * self.doubles + 2


def spec(name, seed):
    base = flux.specs.spec("flux_a", seed)
    shared = {k: getattr(base, k) for k in ("channels", "t5_hidden", "vae_channels", "scaling_factor", "shift_factor")}
    if seed == DEFAULT_SEED:
        return Spec(name, seed, FORMS[name], heads=3, axes=[4, 2, 6], doubles=2, singles=3, hidden=40, **shared, cases=CASES)
    rng = random.Random(f"{seed} {name}")
    return Spec(
        name, seed, FORMS[name], heads=rng.randint(1, 5), axes=[2 * rng.randint(1, 5) for _ in range(3)], doubles=rng.randint(1, 3),
        singles=rng.randint(1, 4), hidden=rng.randint(20, 60), **shared, cases=[redrawn(wanted, rng, 2, 9) for wanted in CASES])
