"""Writes an Anima model folder in the layout of the published files: modular_model_index.json names no classes at the top."""

import os

from diffusers import AnimaTextConditioner, CosmosTransformer3DModel
from transformers import AutoTokenizer

import folder as zimage_folder
import weights
from files import write_json, write_model

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "t5_tokenizer": ["transformers", "T5TokenizerFast"],
    "text_conditioner": ["diffusers", "AnimaTextConditioner"],
    "text_encoder": ["transformers", "Qwen3Model"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "CosmosTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage"],
}


def _transformer(spec, folder):
    model = CosmosTransformer3DModel(
        in_channels=spec.channels, out_channels=spec.channels, num_attention_heads=spec.heads, attention_head_dim=spec.head_dim,
        num_layers=spec.layers, mlp_ratio=spec.mlp_ratio, text_embed_dim=spec.adapter_dim, adaln_lora_dim=spec.low_rank,
        max_size=(128, 240, 240), rope_scale=spec.rope_scale, concat_padding_mask=True, extra_pos_embed_type=None)
    weights.randomize(model, weights.ANIMA, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _adapter(spec, folder, vocabulary):
    model = AnimaTextConditioner(
        source_dim=spec.text_hidden, target_dim=spec.adapter_dim, model_dim=spec.adapter_dim, num_layers=spec.adapter_layers,
        num_attention_heads=spec.adapter_heads, mlp_ratio=spec.adapter_ratio, target_vocab_size=vocabulary + 28)
    weights.randomize(model, weights.ANIMA_ADAPTER, f"{spec.seed} {spec.name} adapter")
    write_model(folder, model, spec.form["adapter_dtype"])


def write(spec, folder):
    """Writes the whole model folder; VAE and tokenizers are links."""
    os.makedirs(folder)
    for part, (fixture, name) in spec.form["links"].items():
        os.symlink(f"../../{fixture}/model/{name}", os.path.join(folder, part))
    sizes = {part: len(AutoTokenizer.from_pretrained(os.path.join(folder, part))) for part in ("tokenizer", "t5_tokenizer")}
    zimage_folder.text_encoder(spec, os.path.join(folder, "text_encoder"), sizes["tokenizer"])
    _transformer(spec, os.path.join(folder, "transformer"))
    _adapter(spec, os.path.join(folder, "text_conditioner"), sizes["t5_tokenizer"])
    os.makedirs(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "scheduler", "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.39.0.dev0", "num_train_timesteps": 1000,
        "shift": spec.form["shift"], "use_dynamic_shifting": False})
    write_json(os.path.join(folder, "modular_model_index.json"), {
        "_blocks_class_name": "AnimaAutoBlocks", "_class_name": "AnimaModularPipeline", "_diffusers_version": "0.39.0.dev0",
        **{part: [None, None, {"pretrained_model_name_or_path": "circlestone-labs/Anima-Base-v1.0-Diffusers", "revision": None,
                               "subfolder": part, "type_hint": of, "variant": None}] for part, of in CLASSES.items()}})
