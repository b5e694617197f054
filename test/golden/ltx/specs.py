"""Dimensions and requests of the LTX-2 fixtures.

A case: grid is (columns, rows) of latent pixels, 32x32 pixels each; frames 8n + 1; prompt and negative name texts below; init:
an image of the video's size; decoded: the unclamped frames are stored; cfg, stg, modality and rescale are (video, sound), of
which a sound value of None is the video's; upscale: sigmas of the second pass, at twice the grid.
"""

import random
from dataclasses import dataclass, field

from flux.specs import TEXTS as FLUX_TEXTS
from specs import DEFAULT_SEED, redrawn

TEXTS = FLUX_TEXTS | {
    "ugly": "blurry, low quality,  bad hands and noise",
    "space": "  \n ",
    # added tokens as text, and runs of spaces and newlines
    "special": " a sign <start_of_turn> that says <eos>\n\n  hello<pad>\n\n\n <table> , <unk> there \u2581x",
}

# The distilled schedule of the authors.
DISTILLED = [1.0, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875]
SECOND = [0.909375, 0.725, 0.421875]

FORMS = {
    "ltx2": dict(version="2.0", share=None, shares=[], transformer_dtype="bf16", cast={"scale_shift_table": "f32", "audio_proj_in.bias": "f32"},
                 shards=2, text_dtype="bf16", vae_dtype="bf16", audio_dtype="bf16", vocoder_dtype="bf16", connectors_dtype="bf16", upsampler_dtype="bf16"),
    "ltx23": dict(version="2.3", share="ltx2", shares=["text_encoder", "tokenizer", "audio_vae", "latent_upsampler"], transformer_dtype="bf16",
                  cast={}, shards=1, vae_dtype="bf16", vocoder_dtype="bf16", connectors_dtype="bf16"),
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
    audio_head_dim: int
    layers: int
    connector_heads: tuple  # video, sound
    connector_layers: int
    registers: int
    vae: dict
    vocoder: dict
    text_hidden: int = 36
    text_heads: int = 4
    text_kv_heads: int = 2
    text_head_dim: int = 10
    text_layers: int = 7
    text_ffn: int = 52
    channels: int = 10
    audio_channels: int = 3
    audio_bins: int = 2
    upsampler_blocks: int = 1
    cases: list = field(default_factory=list)

    @property
    def newer(self):
        return self.form["version"] == "2.3"

    @property
    def dim(self):
        return self.heads * self.head_dim

    @property
    def audio_dim(self):
        return self.heads * self.audio_head_dim

    @property
    def connector_dims(self):
        """Widths of the connectors: of video and sound."""
        return (self.dim, self.audio_dim) if self.newer else (self.text_hidden, self.text_hidden)

    @property
    def mel_bins(self):
        return 4 * self.audio_bins

    @property
    def pixel_multiple(self):
        return 32

    def latents_format(self, part, n):
        rng = random.Random(f"format {self.seed} {owner(self.name, part)} {part}")
        return [round(rng.uniform(-1.0, 1.0), 4) for _ in range(n)], [round(rng.uniform(0.7, 2.0), 4) for _ in range(n)]


def _case(grid, frames, steps, seed, prompt="fox", negative=None, cfg=(1.0, None), stg=(0.0, None), blocks=(), modality=(1.0, None),
          rescale=(0.0, None), fps=24, batch=1, init=False, sigmas=None, upscale=None, decoded=False):
    return dict(grid=grid, frames=frames, steps=steps, seed=seed, prompt=prompt, negative=negative, cfg=cfg, stg=stg, blocks=list(blocks),
                modality=modality, rescale=rescale, fps=fps, batch=batch, init=init, sigmas=sigmas, upscale=upscale, decoded=decoded)


CASES = {
    "ltx2": [
        _case((3, 2), 17, 3, 42, negative="ugly", cfg=(3.5, 5.0), stg=(0.8, 1.2), blocks=[1], modality=(2.0, 3.0), rescale=(0.7, 0.3)),
        _case((3, 2), 9, 2, 7, prompt="house", fps=50, decoded=True),
        _case((1, 3), 9, 2, 11, prompt="house", negative="empty", cfg=(2.5, None), fps=25, batch=2, init=True),
        _case((1, 2), 9, 3, 77, sigmas=[1.0, 0.975, 0.725], upscale=SECOND),
    ],
    "ltx23": [
        _case((2, 3), 17, 2, 42, negative="ugly", cfg=(3.0, 7.0), stg=(1.0, None), blocks=[1], modality=(3.0, None), rescale=(0.7, None), fps=25, init=True),
        _case((2, 1), 9, 8, 7, prompt="house", sigmas=DISTILLED, decoded=True),
        _case((3, 1), 9, 3, 4294967295, prompt="unicode", stg=(0.6, 1.1), blocks=[0, 2], rescale=(0.4, None), fps=50, batch=2),
        _case((1, 2), 17, 2, 5, prompt="special", sigmas=[1.0, 0.725], upscale=[0.85, 0.4], fps=30),
    ],
}

DIMENSIONS = {
    "ltx2": dict(
        heads=4, head_dim=10, audio_head_dim=6, layers=3, connector_heads=(3, 2), connector_layers=2, registers=64,
        vae=dict(
            block_out_channels=[8, 16, 16, 32], decoder_block_out_channels=[8, 16, 32], layers_per_block=[2, 1, 1, 1, 1],
            decoder_layers_per_block=[1, 2, 1, 1], decoder_spatio_temporal_scaling=[True] * 3, decoder_inject_noise=[False] * 4,
            upsample_type=["spatiotemporal"] * 3, upsample_residual=[True] * 3, upsample_factor=[2, 2, 2], decoder_spatial_padding_mode="reflect"),
        vocoder=dict(hidden_channels=32)),
    "ltx23": dict(
        heads=2, head_dim=22, audio_head_dim=14, layers=3, connector_heads=(2, 2), connector_layers=3, registers=128,
        vae=dict(
            block_out_channels=[8, 16, 16, 16], decoder_block_out_channels=[8, 16, 16, 32], layers_per_block=[1, 2, 1, 1, 1],
            decoder_layers_per_block=[1, 2, 1, 1, 1], decoder_spatio_temporal_scaling=[True] * 4, decoder_inject_noise=[False] * 5,
            upsample_type=["spatiotemporal", "spatiotemporal", "temporal", "spatial"], upsample_residual=[False] * 4,
            upsample_factor=[2, 2, 1, 2], decoder_spatial_padding_mode="zeros"),
        vocoder=dict(hidden_channels=64, bwe_hidden_channels=32, num_mel_channels=7, filter_length=128)),
}


def spec(name, seed):
    drawn = Spec(name, seed, FORMS[name], **DIMENSIONS[name], cases=CASES[name])
    if seed != DEFAULT_SEED:
        own = random.Random(f"cases {seed} {name}")
        drawn.cases = [redrawn(wanted, own, 4, 6) if not wanted["upscale"] else wanted for wanted in CASES[name]]
    return drawn
