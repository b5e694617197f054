"""Writes a Krea 2 model folder in the layout of the published files."""

import os

import torch
from diffusers import Krea2Transformer2DModel
from transformers import Qwen3VLConfig, Qwen3VLModel

import tokens
import weights
from files import DTYPES, begin_model, write_json, write_model
from qwen.folder import ADDED

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3VLModel"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "Krea2Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage"],
}


def _transformer(spec, folder):
    model = Krea2Transformer2DModel(
        in_channels=4 * spec.channels, num_layers=spec.layers, attention_head_dim=spec.head_dim, num_attention_heads=spec.heads,
        num_key_value_heads=spec.key_heads, intermediate_size=spec.ffn, text_hidden_dim=spec.text_hidden, num_text_layers=len(spec.taps),
        text_num_attention_heads=spec.fusion_heads, text_num_key_value_heads=spec.fusion_key_heads, text_intermediate_size=spec.fusion_ffn,
        num_layerwise_text_blocks=spec.tap_layers, num_refiner_text_blocks=spec.refiners, axes_dims_rope=spec.axes)
    weights.randomize(model, weights.KREA2, f"{spec.seed} krea2 transformer")
    kept = {name: "f32" for name, parameter in model.named_parameters() if any(part in name for part in spec.form["cast"])}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.split(".")[-2]:
                parameter -= 1  # norms store their weights minus 1
    write_model(folder, model, spec.form["transformer_dtype"], kept, spec.form["transformer_shards"])


def _text_encoder(spec, folder, tokenizer):
    """Qwen3-VL with a vision tower, which the pipeline does not use."""
    text = dict(
        # published embeddings also have a few more rows than the tokenizer has ids
        vocab_size=tokenizer.get_vocab_size() + 9, hidden_size=spec.text_hidden, intermediate_size=spec.text_ffn,
        num_hidden_layers=spec.text_layers, num_attention_heads=spec.text_heads, num_key_value_heads=spec.text_kv_heads,
        head_dim=2 * sum(spec.text_sections), rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=5000000.0, mrope_section=spec.text_sections, mrope_interleaved=True))
    vision = dict(
        depth=1, hidden_size=8, num_heads=2, intermediate_size=12, out_hidden_size=spec.text_hidden, patch_size=4, spatial_merge_size=2,
        temporal_patch_size=2, num_position_embeddings=16, deepstack_visual_indexes=[0])
    named = {f"{name}_token_id": tokenizer.token_to_id(f"<|{token}|>") for name, token in
             (("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"))}
    model = Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision, **named))
    weights.randomize(model.language_model, weights.QWEN_TEXT, f"{spec.seed} krea2 text")
    model.to(DTYPES[spec.form["text_dtype"]]).save_pretrained(folder)


def write(spec, folder):
    """Writes the whole model folder."""
    begin_model(folder, spec.form)
    if "text_encoder" not in spec.form["shares"]:
        vocab, pairs = tokens.train(spec.merges, spec.seed)
        tokenizer = tokens.build(vocab, pairs, ADDED)
        tokens.save(tokenizer, vocab, pairs, os.path.join(folder, "tokenizer"), spec.form["tokenizer_json"], ADDED)
        torch.manual_seed(spec.seed % 2**31)  # of the vision tower
        _text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer)
        _transformer(spec, os.path.join(folder, "transformer"))
    os.makedirs(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "scheduler", "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.39.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "max_image_seq_len": 6400, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": None,
        "time_shift_type": "exponential", "use_dynamic_shifting": True})
    write_json(os.path.join(folder, "model_index.json"), {
        "_class_name": spec.form["pipeline"], "_diffusers_version": "0.39.0.dev0", "is_distilled": spec.form["distilled"], "patch_size": 2,
        **CLASSES, "text_encoder_select_layers": spec.taps})
