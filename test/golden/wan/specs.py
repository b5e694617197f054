"""Dimensions and requests of each WAN fixture, like Flux.1's (../flux/specs.py).

A case: grid is (columns, rows) of 2x2 latent pixels; frames 4n + 1; prompt and negative name texts below; init and last
are images of the video's size; control: a control video, with a mask of the region to generate; references are images'
(width, height) in pixels; low is the second expert's guidance; decoded: the unclamped frames are stored.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, redrawn

TEXTS = FLUX_TEXTS | {
    "html": "  the fox &amp;amp; the boat &lt;at&gt; the old\n\t house,  caf&#233; ",
    "space": " ",
    # more than 512 tokens
    "long": FLUX_TEXTS["long"] * 3,
}

_PLAIN = dict(
    pipeline="WanPipeline", share="wan21", shares=["text_encoder", "tokenizer", "vae"], image_encoder=False, both=False, pictured=False, led=None, experts=1,
    expand=False, boundary=None, oldest=False, scheduler="UniPCMultistepScheduler", shift=3.0, transformer_dtype="f32", shards=1, cast={}, residual=False)
_PICTURED = _PLAIN | dict(pipeline="WanImageToVideoPipeline", pictured=True)

FORMS = {
    "wan_i2v": _PICTURED | dict(
        share=None, shares=[], image_encoder=True, cast={"condition_embedder.image_embedder.ff.net.0.proj.weight": "bf16"},
        text_dtype="bf16", text_shards=2, tokenizer_json=False, vision_dtype="f32", vae_dtype="f32"),
    "wan21": _PLAIN | dict(
        share="wan_i2v", shares=["vae"], cast={"condition_embedder.time_embedder.linear_1.weight": "bf16"}, oldest=True,
        text_dtype="f32", text_shards=1, tokenizer_json=True),
    "wan_ti2v": _PLAIN | dict(
        shares=["text_encoder", "tokenizer"], expand=True, shift=5.0, transformer_dtype="bf16", shards=2,
        cast={"scale_shift_table": "f32", "patch_embedding.bias": "f32"}, vae_dtype="bf16", residual=True),
    # two images (first and last frame), or none
    "wan_flf2v": _PICTURED | dict(
        share="wan_i2v", shares=["text_encoder", "tokenizer", "vae", "image_encoder", "image_processor"], image_encoder=True, both=True, shift=16.0,
        transformer_dtype="bf16"),
    "wan22": _PLAIN | dict(experts=2, boundary=0.875),
    "wan22_i2v": _PICTURED | dict(experts=2, boundary=0.9, scheduler="FlowMatchEulerDiscreteScheduler", shift=2.0, transformer_dtype="bf16"),
    # VACE: control hints are added after these blocks
    "wan_vace": _PLAIN | dict(pipeline="WanVACEPipeline", led=[0, 2], shift=16.0),
}


def owner(name, part):
    """Returns the fixture that owns a component, following links."""
    while part in FORMS[name]["shares"]:
        name = FORMS[name]["share"]
    return name


@dataclass
class Spec:
    name: str
    seed: int
    form: dict
    heads: int
    head_dim: int
    layers: int
    ffn: int
    freq_dim: int
    text_hidden: int
    text_heads: int
    text_head_dim: int
    text_layers: int
    text_ffn: int
    vae_base: int
    vae_decoder_base: int
    vae_layers: int
    channels: int
    vision_heads: int
    vision_head_dim: int
    vision_layers: int
    vision_ffn: int
    vision_side: int
    cases: list = field(default_factory=list)

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def vision_dim(self):
        return self.vision_heads * self.vision_head_dim

    @property
    def vision_tokens(self):
        return (self.vision_side // 14) ** 2 + 1

    @property
    def in_channels(self):
        """Returns the number of channels after the noise channels: 4 of the mask, then those of the condition."""
        return self.channels + (4 + self.channels if self.form["pictured"] else 0)

    @property
    def factor(self):
        return 16 if self.form["residual"] else 8

    @property
    def pixel_multiple(self):
        return 2 * self.factor

    def latents_format(self):
        rng = random.Random(f"format {self.seed} {owner(self.name, 'vae')}")
        return ([round(rng.uniform(-1.0, 1.0), 4) for _ in range(self.channels)], [round(rng.uniform(0.7, 2.5), 4) for _ in range(self.channels)])


def _case(grid, frames, steps, seed, prompt="fox", negative=None, cfg=1.0, low=None, batch=1, sampler=None, shift=None, init=False, last=False,
          decoded=False, control=False, mask=False, references=()):
    return dict(grid=grid, frames=frames, steps=steps, seed=seed, prompt=prompt, negative=negative, cfg=cfg, low=low, batch=batch, sampler=sampler,
                shift=shift, init=init, last=last, decoded=decoded,
                control=control, mask=mask, references=list(references))


CASES = {
    "wan21": [
        _case((3, 2), 9, 4, 42, cfg=3.5, negative="ugly", decoded=True),
        _case((2, 5), 5, 3, 7, prompt="html", sampler="euler", shift=5.0),
        _case((4, 3), 1, 5, 4294967295, prompt="house", cfg=2.5, negative="empty", batch=2),
    ],
    "wan_ti2v": [
        _case((2, 3), 9, 4, 42, cfg=3.0, negative="ugly", init=True),
        _case((3, 1), 5, 3, 77, prompt="html", cfg=1.5, negative="space", decoded=True),
        _case((1, 2), 5, 3, 11, prompt="house", sampler="euler", init=True, batch=2),
    ],
    "wan_i2v": [
        _case((3, 2), 9, 4, 42, cfg=3.5, negative="ugly", init=True, decoded=True),
        _case((2, 4), 5, 2, 7, prompt="house", init=True, sampler="euler", batch=2),
    ],
    "wan_flf2v": [
        _case((2, 3), 9, 3, 42, cfg=3.5, negative="ugly", init=True, last=True, decoded=True),
        _case((4, 2), 5, 2, 7, prompt="house", init=True, last=True),
    ],
    "wan22": [
        # with shift 3 the high-noise expert runs the first two of six steps
        _case((2, 3), 5, 6, 42, cfg=3.0, low=4.0, negative="ugly", decoded=True),
        _case((3, 2), 5, 4, 7, prompt="house", cfg=2.5, negative="empty", sampler="euler"),
        _case((1, 2), 9, 3, 9, prompt="html", batch=2),
    ],
    "wan22_i2v": [
        _case((2, 3), 9, 5, 42, cfg=3.0, low=2.0, negative="ugly", init=True, decoded=True),
        _case((3, 2), 5, 3, 7, prompt="house", init=True, last=True),
    ],
    "wan_vace": [
        _case((3, 2), 5, 3, 42, cfg=3.0, negative="ugly", control=True, mask=True, references=[(40, 64)]),
        _case((2, 3), 5, 2, 7, prompt="house", references=[(40, 64), (48, 24)]),
        _case((2, 2), 9, 2, 9, prompt="fox", control=True, batch=1),
    ],
}

DIMENSIONS = {
    "wan21": dict(heads=2, head_dim=20, layers=3, ffn=92, freq_dim=64),
    "wan_ti2v": dict(heads=3, head_dim=16, layers=3, ffn=100, freq_dim=96),
    "wan_i2v": dict(heads=3, head_dim=14, layers=3, ffn=70, freq_dim=64),
    "wan_flf2v": dict(heads=2, head_dim=18, layers=3, ffn=58, freq_dim=32),
    "wan22": dict(heads=3, head_dim=12, layers=3, ffn=76, freq_dim=64),
    "wan22_i2v": dict(heads=3, head_dim=14, layers=3, ffn=60, freq_dim=32),
    "wan_vace": dict(heads=2, head_dim=16, layers=4, ffn=56, freq_dim=32),
}
TEXT = {
    "wan21": dict(text_hidden=26, text_heads=3, text_head_dim=10, text_layers=3, text_ffn=38),
    "wan_i2v": dict(text_hidden=30, text_heads=4, text_head_dim=8, text_layers=3, text_ffn=44),
}
VAE = {
    "wan_i2v": dict(vae_base=3, vae_decoder_base=3, vae_layers=2, channels=5),
    "wan_ti2v": dict(vae_base=4, vae_decoder_base=5, vae_layers=2, channels=48),
}
VISION = dict(vision_heads=2, vision_head_dim=12, vision_layers=4, vision_ffn=52, vision_side=56)


def committed(name, seed):
    return Spec(name, seed, FORMS[name], **DIMENSIONS[name], **TEXT[owner(name, "text_encoder")], **VAE[owner(name, "vae")], **VISION, cases=CASES[name])


def random_spec(name, seed):
    own = random.Random(f"cases {seed} {name}")
    text, vae, vision = (random.Random(f"{seed} {owner(name, part)} {part}") for part in ("text_encoder", "vae", "image_encoder"))
    base, decoder_base = vae.randint(2, 5), vae.randint(3, 6)
    drawn = Spec(
        name, seed, FORMS[name], heads=own.randint(1, 4), head_dim=2 * own.randint(6, 13), layers=own.randint(3, 4), ffn=own.randint(40, 120),
        freq_dim=2 * own.randint(16, 64),
        text_hidden=text.randint(20, 50), text_heads=text.randint(1, 4), text_head_dim=text.randint(4, 12), text_layers=text.randint(2, 4),
        text_ffn=text.randint(30, 60),
        vae_base=base, vae_decoder_base=decoder_base if FORMS[name]["residual"] else base, vae_layers=vae.randint(1, 2),
        # 48 latent channels identify TI2V, the model with clean frames
        channels=48 if FORMS[name]["residual"] else vae.choice([4, 6, 16]),
        vision_heads=vision.randint(1, 3), vision_head_dim=2 * vision.randint(3, 8), vision_layers=vision.randint(3, 4),
        vision_ffn=vision.randint(30, 60), vision_side=14 * vision.randint(2, 5))
    for wanted in CASES[name]:
        drawn.cases.append(redrawn(wanted, own, 20, 120))
        if wanted["cfg"] != 1:
            drawn.cases[-1]["cfg"] = round(own.uniform(1.5, 6), 2)
    return drawn


def spec(name, seed):
    return committed(name, seed) if seed == DEFAULT_SEED else random_spec(name, seed)
