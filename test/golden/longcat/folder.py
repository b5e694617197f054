"""Writes a LongCat-Image model folder in the layouts of published files."""

import os

from diffusers import LongCatImageTransformer2DModel

import folder as zimage_folder
import tokens
import weights
from files import begin_model, write_json, write_model
from qwen import folder as qwen_folder

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "text_processor": ["transformers", "Qwen2_5_VLProcessor"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "LongCatImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def _transformer(spec, folder):
    model = LongCatImageTransformer2DModel(
        in_channels=4 * spec.channels, num_layers=spec.doubles, num_single_layers=spec.singles, attention_head_dim=spec.head_dim,
        num_attention_heads=spec.heads, joint_attention_dim=spec.text_hidden, pooled_projection_dim=spec.text_hidden,
        axes_dims_rope=spec.axes)
    weights.randomize(model, weights.FLUX, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _scheduler(folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.30.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 3.0, "use_dynamic_shifting": True})


def write(spec, folder):
    begin_model(folder, spec.form)
    if not spec.form["shares"]:
        vocab, pairs = tokens.train(spec.merges, spec.seed)
        tokenizer = tokens.build(vocab, pairs, qwen_folder.ADDED)
        tokens.save(tokenizer, vocab, pairs, os.path.join(folder, "tokenizer"), spec.form["tokenizer_json"], qwen_folder.ADDED)
        qwen_folder.text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer)
        qwen_folder.processor(spec, os.path.join(folder, "text_processor"))
        zimage_folder.vae(spec, os.path.join(folder, "vae"))
    _transformer(spec, os.path.join(folder, "transformer"))
    _scheduler(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": spec.form["pipeline"], "_diffusers_version": "0.35.1", **CLASSES})
