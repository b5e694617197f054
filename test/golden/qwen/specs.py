"""Dimensions and requests of each Qwen-Image fixture, like Flux.1's (../flux/specs.py).

A case: grid is (columns, rows) of 2x2 patches; prompt and negative name texts below; references are images'
(width, height) in pixels, of any size: the pipelines resize them.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, Sizes, redrawn
from specs import case as _case

# Areas in pixels. The pipelines use 384^2 and 1024^2, which would be too slow at any model size; the reference and
# the tests' tables use these.
PLUS_TOWER, PICTURE = 160 * 160, 96 * 96

TEXTS = FLUX_TEXTS | {
    "turn": "turn the fox in Picture 1 into a small boat, keep the snow",
    "swap": "put the house of Picture 2 behind the fox of Picture 1; 3 trees & 12 birds",
    "space": " ",
    # chat template markers as text, which the reference parses as added tokens
    "template": "a sign that says <|im_end|>\n<|im_start|>system\nno <|endoftext|>",
    # longer than the 512 rows that are used, shorter than the tokens that are read
    "medium": ", ".join(f"{n} {thing} in the {place}" for n in range(16) for thing, place in
                        (("birds", "snow"), ("small boats", "morning light"), ("mountains", "night sky"))),
}

FORMS = {
    "qwen_edit_plus": dict(
        pipeline="QwenImageEditPlusPipeline", share=None, shares=[], processor=True,
        zero_cond_t=True, transformer_dtype="bf16", cast={"proj_out.bias": "f32"}, transformer_shards=2,
        text_dtype="f32", text_cast={"visual.patch_embed.proj.weight": "bf16"}, text_shards=1, lm_head=True, nested=False,
        tokenizer_json=True, vae_dtype="f32",
        shift=dict(max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02),
        pixels=dict(min_pixels=3136, max_pixels=12845056, size={"shortest_edge": 3136, "longest_edge": 12845056})),
    "qwen_edit": dict(
        pipeline="QwenImageEditPipeline", share=None, shares=[], processor=True,
        zero_cond_t=False, transformer_dtype="bf16", cast={"img_in.bias": "f32"}, transformer_shards=1,
        text_dtype="bf16", text_cast={}, text_shards=2, lm_head=False, nested=True,
        tokenizer_json=False, vae_dtype="bf16",
        # diffusers' default shift: 1.15 at 4096 tokens; without shift_terminal the last sigma is not stretched
        shift=dict(shift_terminal=None),
        # a small limit on the vision tower's input: 96x96 would be too slow
        pixels=dict(size={"shortest_edge": 3136, "longest_edge": 7000})),
    "qwen_image": dict(
        pipeline="QwenImagePipeline", share="qwen_edit_plus", shares=["text_encoder", "tokenizer", "vae"], processor=False,
        zero_cond_t=None, transformer_dtype="f32", cast={"time_text_embed.timestep_embedder.linear_1.weight": "bf16"},
        transformer_shards=1,
        shift=dict(max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02)),
}


@dataclass
class Spec(Sizes):
    name: str
    seed: int
    form: dict
    heads: int
    axes: list
    layers: int
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
    vae_base: int
    vae_times: list
    vae_layers: int
    channels: int
    cases: list = field(default_factory=list)
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

    @property
    def halved(self):
        """Returns, per level of the VAE, whether the level would also halve the number of frames."""
        return [i > 0 for i in range(len(self.vae_times) - 1)]

    @property
    def factor(self):
        return 2 ** len(self.halved)

    def latents_format(self):
        rng = random.Random(f"format {self.seed} {self.form['share'] or self.name}")
        return ([round(rng.uniform(-1.0, 1.0), 4) for _ in range(self.channels)], [round(rng.uniform(0.7, 2.5), 4) for _ in range(self.channels)])


CASES = {
    "qwen_image": [
        _case((7, 5), 4, 42),
        _case((4, 6), 3, 7, prompt="house", cfg=4.0, negative="ugly"),
        _case((5, 3), 2, 4294967295, cfg=2.5, negative="space", batch=2),
      
        _case((6, 4), 5, 11, init=True, strength=0.6),
        _case((3, 5), 7, 2024, prompt="house", cfg=3.0, negative="empty", init=True, strength=0.45, batch=2),
    ],
    "qwen_edit": [
        _case((5, 7), 4, 42, prompt="turn", references=[(61, 40)]),
        _case((6, 9), 2, 9, prompt="house", cfg=4.0, negative="ugly", references=[(33, 97)]),
        # the image is half a patch too narrow for whole windows; each image of the batch has its own noise
        _case((11, 4), 2, 77, prompt="turn", cfg=2.5, negative="space", references=[(96, 96)], batch=2),
    ],
    "qwen_edit_plus": [
        _case((6, 4), 3, 42, prompt="swap", references=[(75, 50), (40, 90)]),
        _case((5, 3), 2, 7, prompt="turn", cfg=4.0, negative="ugly", references=[(120, 121)]),
        _case((3, 5), 2, 11, prompt="swap", cfg=2.5, negative="space", references=[(50, 50), (160, 60), (31, 45)], batch=2),
    ],
}


def spec_plus(name, seed, form):
    return Spec(
        name, seed, form, heads=3, axes=[2, 6, 8], layers=2,
        text_heads=3, text_kv_heads=1, text_sections=[2, 3, 3], text_layers=3, text_ffn=52,
        tower_heads=2, tower_head_dim=16, tower_layers=3, tower_full=[1], tower_ffn=44, tower_window=112,
        vae_base=3, vae_times=[1, 2, 4, 4], vae_layers=2, channels=5, cases=CASES[name])


def spec_edit(name, seed, form):
    return Spec(
        name, seed, form, heads=4, axes=[2, 4, 4], layers=2,
        text_heads=2, text_kv_heads=2, text_sections=[3, 4, 5], text_layers=2, text_ffn=38,
        tower_heads=3, tower_head_dim=12, tower_layers=2, tower_full=[1], tower_ffn=30, tower_window=56,
        vae_base=4, vae_times=[1, 2, 2], vae_layers=1, channels=4, cases=CASES[name])


def spec_image(name, seed, form):
    spec = spec_plus(name, seed, form)
    spec.heads, spec.axes, spec.layers = 2, [4, 2, 6], 3
    return spec


def random_spec(name, seed):
    form = FORMS[name]
    rng, own = random.Random(f"{seed} {form['share'] or name}"), random.Random(f"cases {seed} {name}")
    kv, layers = rng.randint(1, 2), rng.randint(2, 4)
    drawn = Spec(
        name, seed, form, heads=own.randint(1, 5), axes=[2 * own.randint(1, 5) for _ in range(3)], layers=own.randint(2, 4),
        text_heads=kv * rng.randint(1, 3), text_kv_heads=kv, text_sections=[rng.randint(1, 5) for _ in range(3)],
        text_layers=rng.randint(2, 4), text_ffn=rng.randint(30, 80),
        tower_heads=rng.randint(1, 4), tower_head_dim=4 * rng.randint(2, 6), tower_layers=layers, tower_full=[rng.randrange(1, layers)],
        tower_ffn=rng.randint(30, 60), tower_window=28 * rng.randint(1, 5),
        vae_base=2 * rng.randint(1, 3), vae_times=rng.choice([[1, 2, 4, 4], [1, 2, 2], [2, 2, 4]]), vae_layers=rng.randint(1, 2),
        channels=rng.choice([4, 6, 16]), merges=rng.randint(120, 300))
    for wanted in CASES[name]:
        drawn.cases.append(redrawn(wanted, own, 20, 120))
        if wanted["cfg"] != 1:
            drawn.cases[-1]["cfg"] = round(own.uniform(1.5, 6), 2)
    return drawn


def spec(name, seed):
    if seed != DEFAULT_SEED:
        return random_spec(name, seed)
    return {"qwen_image": spec_image, "qwen_edit": spec_edit, "qwen_edit_plus": spec_plus}[name](name, seed, FORMS[name])
