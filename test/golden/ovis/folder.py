"""Writes an Ovis-Image model folder in the layout of the published files."""

import os

from diffusers import OvisImageTransformer2DModel

import folder as zimage_folder
import tokens
import weights
from files import begin_model, write_json, write_model

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "transformer": ["diffusers", "OvisImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def write(spec, folder):
    """Writes the whole model folder; VAE and scheduler are links."""
    begin_model(folder, spec.form)
    vocab, pairs = tokens.train(spec.merges, spec.seed)
    tokenizer = tokens.build(vocab, pairs)
    tokens.save(tokenizer, vocab, pairs, os.path.join(folder, "tokenizer"), spec.form["tokenizer_json"])
    zimage_folder.text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer.get_vocab_size())
    model = OvisImageTransformer2DModel(
        in_channels=4 * spec.channels, out_channels=4 * spec.channels, num_layers=spec.doubles, num_single_layers=spec.singles,
        attention_head_dim=spec.head_dim, num_attention_heads=spec.heads, joint_attention_dim=spec.text_hidden, axes_dims_rope=spec.axes)
    weights.randomize(model, weights.OVIS, f"{spec.seed} {spec.name} transformer")
    write_model(os.path.join(folder, "transformer"), model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": spec.form["pipeline"], "_diffusers_version": "0.36.0.dev0", **CLASSES})
