"""Writes a Stable Diffusion 3 model folder in the layouts of published files."""

import os

from diffusers import SD3Transformer2DModel
from transformers import CLIPTextModelWithProjection

import folder as zimage_folder
import weights
from files import begin_model, write_json, write_model
from flux import folder as flux_folder
from flux import tokens
from unet import folder as unet_folder

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_3": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "tokenizer_3": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
CLIPS = {
    "text_encoder": ("clip_l", dict(kind=CLIPTextModelWithProjection, act="quick_gelu", pad=tokens.CLIP_LAST)),
    "text_encoder_2": ("clip_g", unet_folder.CLIPS["clip_g"]),
}


def _transformer(spec, folder):
    model = SD3Transformer2DModel(
        sample_size=2 * spec.side, patch_size=2, in_channels=spec.channels, out_channels=spec.channels, num_layers=spec.layers,
        attention_head_dim=spec.head_dim, num_attention_heads=spec.heads, joint_attention_dim=spec.context, caption_projection_dim=spec.dim,
        pooled_projection_dim=spec.pooled, pos_embed_max_size=spec.side, dual_attention_layers=spec.form["second"],
        qk_norm="rms_norm" if spec.form["normed"] else None)
    weights.randomize(model, weights.SD3_NORMED if spec.form["normed"] else weights.SD3, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _clip(spec, folder, part):
    name, about = CLIPS[part]
    vocab, pairs = tokens.clip(spec.merges)
    unet_folder.clip(spec, name, about, os.path.join(folder, part), len(vocab))
    tokens.save_clip(vocab, pairs, os.path.join(folder, part.replace("text_encoder", "tokenizer")), False, about["pad"])


def _t5(spec, folder):
    model = tokens.t5()
    flux_folder.t5(spec, os.path.join(folder, "text_encoder_3"), tokens.t5_size(model))
    tokens.save_t5(model, os.path.join(folder, "tokenizer_3"), False)


def _scheduler(folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.29.0.dev0", "num_train_timesteps": 1000, "shift": 3.0})


def _index(spec):
    """Returns model_index.json with every component of the pipeline; absent ones are [null, null]."""
    absent = spec.form["absent"] + [part.replace("text_encoder", "tokenizer") for part in spec.form["absent"]]
    return CLASSES | dict.fromkeys(absent, [None, None])


def write(spec, folder):
    begin_model(folder, spec.form)
    _transformer(spec, os.path.join(folder, "transformer"))
    if not spec.form["share"]:
        for part in CLIPS:
            _clip(spec, folder, part)
        _t5(spec, folder)
        zimage_folder.vae(spec, os.path.join(folder, "vae"))
        _scheduler(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": "StableDiffusion3Pipeline", "_diffusers_version": "0.29.0.dev0", **dict(sorted(_index(spec).items()))})
