"""Dimensions and requests of the Anima fixture, like Flux.1's (../flux/specs.py). The VAE and Qwen's tokenizer are those of
qwen_edit_plus, T5's tokenizer is that of flux_a."""

import random
from dataclasses import dataclass, field

import flux.specs
import qwen.specs
from specs import DEFAULT_SEED, redrawn
from specs import case as _case

# added tokens of both tokenizers as text
TEXTS = flux.specs.TEXTS | {"template": "a sign <|im_end|>\n that says </s> <|im_start|>hello<pad> <|endoftext|>, <unk> there"}

FORMS = {
    "anima_base": dict(
        # folder in the model: fixture and folder that it links to
        links={"vae": ("qwen_edit_plus", "vae"), "tokenizer": ("qwen_edit_plus", "tokenizer"), "t5_tokenizer": ("flux_a", "tokenizer_2")},
        transformer_dtype="f32", cast={"patch_embed.proj.weight": "bf16"}, transformer_shards=2,
        adapter_dtype="f32", text_dtype="bf16", text_shards=1, released_names=False, lm_head=False, shift=3.0),
}


@dataclass
class Spec:
    name: str
    seed: int
    form: dict
    heads: int
    head_dim: int
    layers: int
    low_rank: int
    mlp_ratio: float
    rope_scale: list
    adapter_heads: int
    adapter_head_dim: int
    adapter_layers: int
    adapter_ratio: float
    text_hidden: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_layers: int
    text_ffn: int
    text_theta: float
    text_eps: float
    channels: int
    factor: int
    cases: list = field(default_factory=list)

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def adapter_dim(self):
        return self.adapter_heads * self.adapter_head_dim

    @property
    def pixel_multiple(self):
        return 2 * self.factor


CASES = [
    _case((7, 5), 4, 42),
    _case((4, 6), 3, 7, prompt="house", cfg=4.0, negative="ugly"),
    _case((5, 3), 2, 123456789, cfg=2.5, negative="empty", batch=2),
    _case((6, 4), 5, 11, prompt="ugly", cfg=3.0, negative="house", init=True, strength=0.6),
]


def spec(name, seed):
    form = FORMS[name]
    vae = qwen.specs.spec("qwen_edit_plus", seed)
    shared = dict(channels=vae.channels, factor=vae.factor)
    if seed == DEFAULT_SEED:
        return Spec(
            name, seed, form, heads=2, head_dim=14, layers=2, low_rank=6, mlp_ratio=2.0, rope_scale=[1.0, 4.0, 3.0],
            adapter_heads=3, adapter_head_dim=12, adapter_layers=2, adapter_ratio=1.5,
            text_hidden=30, text_heads=4, text_kv_heads=2, text_head_dim=10, text_layers=3, text_ffn=58, text_theta=1000000.0, text_eps=1e-6,
            cases=CASES, **shared)
    rng = random.Random(f"{seed} {name}")
    kv_heads = rng.randint(1, 3)
    return Spec(
        name, seed, form, heads=rng.randint(1, 4), head_dim=2 * rng.randint(6, 15), layers=rng.randint(2, 4), low_rank=rng.randint(3, 9),
        mlp_ratio=rng.choice([1.5, 2.0, 4.0]), rope_scale=[1.0, rng.choice([2.0, 4.0]), rng.choice([1.0, 3.0])],
        adapter_heads=rng.randint(1, 4), adapter_head_dim=2 * rng.randint(4, 10), adapter_layers=rng.randint(1, 3), adapter_ratio=rng.choice([1.5, 4.0]),
        text_hidden=rng.randint(20, 50), text_heads=kv_heads * rng.randint(1, 3), text_kv_heads=kv_heads,
        text_head_dim=2 * rng.randint(4, 10), text_layers=rng.randint(2, 4), text_ffn=rng.randint(40, 90),
        text_theta=rng.choice([10000.0, 1000000.0]), text_eps=rng.choice([1e-6, 1e-5]),
        cases=[redrawn(wanted, rng) for wanted in CASES], **shared)
