"""Writes a Chroma model folder in the layout of published files."""

import os

from diffusers import ChromaTransformer2DModel

import weights
from files import write_json, write_model

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "ChromaTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
# Folders that the model shares with flux_a. T5 is Flux's second text encoder and Chroma's first.
SHARED = {"text_encoder": "text_encoder_2", "tokenizer": "tokenizer_2", "vae": "vae"}


def write(spec, folder):
    os.makedirs(folder)
    for part, source in SHARED.items():
        os.symlink(f"../../{spec.form['share']}/model/{source}", os.path.join(folder, part))
    model = ChromaTransformer2DModel(
        in_channels=4 * spec.channels, num_layers=spec.doubles, num_single_layers=spec.singles, attention_head_dim=spec.head_dim,
        num_attention_heads=spec.heads, joint_attention_dim=spec.t5_hidden, axes_dims_rope=spec.axes, approximator_hidden_dim=spec.hidden)
    weights.randomize(model, weights.CHROMA, f"{spec.seed} transformer")
    write_model(os.path.join(folder, "transformer"), model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])
    os.makedirs(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "scheduler", "scheduler_config.json"), {
        # as published for Chroma1-HD; Flash has a shift of 1, Base use_beta_sigmas
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.35.0.dev0", "num_train_timesteps": 1000, "shift": 3.0,
        "use_dynamic_shifting": False})
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": "ChromaPipeline", "_diffusers_version": "0.34.0", "feature_extractor": [None, None],
                "image_encoder": [None, None], **CLASSES})
