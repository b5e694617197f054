"""Dimensions and requests of each UNet fixture, like Z-Image's (../specs.py).

A case: grid is (columns, rows) of latent pixels, also odd ones; prompt and negative name texts below (negative
None: no negative prompt); init and mask are generated images.  A level: its channels, its transformer layers
(0: no transformer) and its heads.
"""

import random
from dataclasses import dataclass, field

from specs import DEFAULT_SEED
from specs import case as _case

PNDM = dict(_class_name="PNDMScheduler", skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1)
DDIM_V = dict(_class_name="DDIMScheduler", clip_sample=False, set_alpha_to_one=False, steps_offset=1, prediction_type="v_prediction")
DDIM = dict(_class_name="DDIMScheduler", clip_sample=False, set_alpha_to_one=False, steps_offset=1)
EULER = dict(_class_name="EulerDiscreteScheduler", interpolation_type="linear", steps_offset=1, timestep_spacing="leading",
             prediction_type="epsilon", use_karras_sigmas=False, sample_max_value=1.0, skip_prk_steps=True, clip_sample=False,
             set_alpha_to_one=False)

FORMS = {
    "sd1": dict(
        pipeline="StableDiffusionPipeline", share=None, shares=[], unet_dtype="f16", vae_dtype="f32", text_dtype="f16",
        scheduler=PNDM, quant_convs=True, linear=False, in_channels=4, encoders=["clip_l"], clip_json=False, vector=None, index={}),
    "sd2": dict(
        pipeline="StableDiffusionPipeline", share="sd1", shares=["vae"], unet_dtype="f16", text_dtype="f16",
        scheduler=DDIM_V, linear=True, in_channels=4, encoders=["clip_h"], clip_json=False, vector=None, index={}),
    "sdxl": dict(
        pipeline="StableDiffusionXLPipeline", share=None, shares=[], unet_dtype="f16", vae_dtype="f16", text_dtype="f16",
        scheduler=EULER, quant_convs=True, linear=True, in_channels=4, encoders=["clip_l", "clip_g"], clip_json=True, vector=6,
        index={"force_zeros_for_empty_prompt": True}),
    "inpaint": dict(
        pipeline="StableDiffusionInpaintPipeline", share="sd1", shares=["vae", "text_encoder", "tokenizer"], unet_dtype="bf16",
        scheduler=DDIM, linear=False, in_channels=9, encoders=["clip_l"], vector=None, index={}),
    "refiner": dict(
        pipeline="StableDiffusionXLImg2ImgPipeline", share="sdxl", shares=["vae", "text_encoder_2", "tokenizer_2", "scheduler"],
        unet_dtype="bf16", linear=True, in_channels=4, encoders=["clip_g"], vector=5,
        index={"force_zeros_for_empty_prompt": False, "requires_aesthetics_score": True}),
}

# Prompts without emphasis syntax and not longer than one CLIP window.
TEXTS = {
    "fox": "a red fox in the snow, golden hour, soft light",
    "house": "the old house by the sea; 3 trees & 12 birds, it's THE FOX'S den",
    "ugly": "blurry, low quality, bad hands",
    "empty": "",
    "unicode": "Cafe\u0301 \u212bngstrom, 雪の狐  12345 — it'S THE ﬁrst  ",
    # contains the end token: the pooled row is the row of its first occurrence
    "special": "a sign <|endoftext|> that says <|startoftext|>hello there",
}


@dataclass
class Spec:
    name: str
    seed: int
    form: dict
    levels: list          # per level: (channels, transformer layers, heads)
    groups: int
    clips: dict           # CLIP encoders by name: (hidden, heads, layers, feed-forward)
    time_width: int       # sinusoid columns of each add_time_ids value
    scaling_factor: float
    vae_channels: list
    vae_groups: int
    vae_layers: int
    channels: int = 4
    shift_factor: object = None
    cases: list = field(default_factory=list)
    merges: int = 200

    @property
    def context(self):
        return sum(self.clips[name][0] for name in self.form["encoders"])

    @property
    def pixel_multiple(self):
        return 2 ** (len(self.vae_channels) - 1)


CASES = {
    "sd1": [
        _case((13, 10), 5, 42, cfg=7.5, negative="ugly"),
        _case((7, 5), 3, 7, prompt="house"),
        _case((5, 9), 4, 4294967295, cfg=2.5, negative="empty", batch=2),
      
        _case((6, 8), 5, 11, init=True, strength=0.6),
        # 7 steps * 0.45 = 3.15: runs the last three
        _case((4, 7), 7, 2024, prompt="house", cfg=2.5, negative="empty", init=True, strength=0.45, batch=2),
        # inpainting: the white region is generated, the rest is restored after every step
        _case((6, 7), 4, 77, cfg=3.0, negative="ugly", init=True, mask=True, strength=1.0),
        _case((7, 4), 5, 78, prompt="house", init=True, mask=True, strength=0.7, batch=2),
    ],
    "sd2": [
        _case((10, 13), 4, 2024, prompt="house", cfg=5.0, negative="ugly"),
        _case((6, 5), 3, 5, cfg=2.5, negative="empty", batch=2),
        _case((5, 8), 5, 9, init=True, strength=0.5),
    ],
    "sdxl": [
        _case((10, 7), 4, 42, cfg=5.0, negative="ugly"),
        # an absent negative prompt gives zero embeddings, an empty one is encoded
        _case((5, 8), 3, 7, prompt="house", cfg=3.0),
        _case((6, 5), 2, 123456789, cfg=2.5, negative="empty", batch=2),
        _case((8, 5), 4, 2, init=True, strength=0.8),
        _case((6, 6), 3, 15, cfg=2.0, init=True, mask=True, strength=1.0),
        _case((5, 7), 4, 16, init=True, mask=True, strength=0.6),
    ],
    "inpaint": [
        _case((11, 9), 4, 42, cfg=4.0, negative="ugly", init=True, mask=True, strength=1.0),
        _case((5, 8), 5, 77, prompt="house", init=True, mask=True, strength=0.7),
        _case((6, 5), 3, 99, cfg=2.0, negative="empty", init=True, mask=True, strength=1.0, batch=2),
    ],
    "refiner": [
        _case((9, 11), 6, 42, cfg=5.0, negative="ugly", init=True, strength=0.6),
        # an absent negative prompt is encoded as an empty prompt
        _case((5, 7), 7, 3, prompt="house", cfg=2.0, init=True, strength=0.3, batch=2),
    ],
}

DIMENSIONS = {
    # as in published models, levels have equal numbers of heads of different sizes, and the deepest level has no
    # transformer
    "sd1": dict(levels=[(8, 1, 2), (12, 1, 2), (16, 1, 2), (16, 0, 2)], groups=2, clips=dict(clip_l=(20, 2, 3, 52)), time_width=0,
                scaling_factor=0.18215, vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1),
    "sd2": dict(levels=[(8, 1, 2), (12, 1, 3), (16, 1, 4), (16, 0, 4)], groups=4, clips=dict(clip_h=(24, 3, 3, 68)), time_width=0,
                scaling_factor=0.18215, vae_channels=[4, 6, 10, 14], vae_groups=2, vae_layers=1),
    "sdxl": dict(levels=[(4, 0, 1), (8, 1, 2), (12, 2, 3)], groups=2, clips=dict(clip_l=(12, 2, 3, 34), clip_g=(20, 2, 4, 46)), time_width=16,
                 scaling_factor=0.13025, vae_channels=[6, 6, 9, 12], vae_groups=3, vae_layers=1),
}
DIMENSIONS["inpaint"] = DIMENSIONS["sd1"]
DIMENSIONS["refiner"] = DIMENSIONS["sdxl"] | dict(levels=[(4, 0, 1), (8, 2, 2), (12, 2, 3), (12, 0, 3)])


def _drawn_levels(name, rng, groups, head):
    """Returns random levels with the fixture's depths and other widths."""
    widths = sorted(rng.sample(range(2, 7), 3))
    widths.append(widths[-1])
    levels = []
    for (_, layers, heads), width in zip(DIMENSIONS[name]["levels"], widths):
        channels = width * groups * head
        levels.append((channels, layers and rng.randint(1, 3), heads if not FORMS[name]["linear"] else channels // head))
    return levels


def random_spec(name, seed):
    form, kept = FORMS[name], DIMENSIONS[name]
    rng = random.Random(f"{seed} {form['share'] or name}")
    clips = {clip: (2 * rng.randint(5, 12), 2, rng.randint(3, 5), rng.randint(30, 80)) for clip in sorted(kept["clips"])}
    vae_groups = rng.choice([2, 3])
    drawn = dict(
        clips=clips, time_width=kept["time_width"] and 2 * rng.randint(4, 10), scaling_factor=kept["scaling_factor"],
        vae_channels=[vae_groups * s for s in sorted(rng.sample(range(2, 7), 4))], vae_groups=vae_groups, vae_layers=rng.randint(1, 2),
        merges=rng.randint(120, 300))
    own = random.Random(f"unet {seed} {name}")
    groups = own.choice([2, 4])
    drawn |= dict(levels=_drawn_levels(name, own, groups, 2), groups=groups)
    cases = [dict(case, grid=(own.randint(3, 10), own.randint(3, 10)), seed=own.randint(0, 2**33)) for case in CASES[name]]
    return Spec(name, seed, form, cases=cases, **drawn)


def spec(name, seed):
    if seed != DEFAULT_SEED:
        return random_spec(name, seed)
    return Spec(name, seed, FORMS[name], cases=CASES[name], **DIMENSIONS[name])
