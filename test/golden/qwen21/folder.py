"""Writes a Qwen-Image-2.1 model folder in the layout of published files."""

import os

import torch
from diffusers import AutoencoderKLQwenImage21, QwenImage21Transformer2DModel
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

import tokens
import weights
from files import DTYPE_NAMES, begin_model, cast, write_json, write_model, write_weights

CLASSES = {
    "processor": ["transformers", "Qwen3VLProcessor"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
    "transformer": ["diffusers", "QwenImage21Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage21"],
}

# Added tokens after the vocabulary, as in Qwen3-VL.
ADDED = [(text, True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                                   "<|image_pad|>", "<|video_pad|>")]

# Texts that give the template's system message as many tokens as with Qwen3-VL's vocabulary: 14, with three for "Comprehend".
SYSTEM_PIECES = ["system", "Com", "pre", "hend", "x and analyze the provided prompt"] * 20

# The part of Qwen3-VL's chat template that renders a system message, whose length the pipeline takes from it.
CHAT_TEMPLATE = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content[0].text + '<|im_end|>\\n' }}{%- endfor %}"


def _transformer(spec, folder):
    model = QwenImage21Transformer2DModel(
        in_channels=spec.channels, out_channels=spec.channels, num_layers=spec.layers, attention_head_dim=spec.head_dim,
        num_attention_heads=spec.heads, context_in_dim=spec.text_hidden, axes_dims_rope=spec.axes)
    weights.randomize(model, weights.QWEN21, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _text_encoder(spec, folder, tokenizer):
    """Writes Qwen3-VL in the layout of published files: rope_theta and rope_scaling in text_config."""
    dtype = DTYPE_NAMES[spec.form["text_dtype"]]
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": tokenizer.token_to_id("<|image_pad|>"), "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": tokenizer.token_to_id("<|endoftext|>"), "dtype": dtype,
            "eos_token_id": tokenizer.token_to_id("<|im_end|>"), "head_dim": spec.text_head_dim, "hidden_act": "silu",
            "hidden_size": spec.text_hidden, "initializer_range": 0.02, "intermediate_size": spec.text_ffn,
            "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": spec.text_heads,
            "num_hidden_layers": spec.text_layers, "num_key_value_heads": spec.text_kv_heads, "rms_norm_eps": 1e-06,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": spec.text_sections, "rope_type": "default"},
            "rope_theta": 5000000, "use_cache": True,
            # published embeddings also have more rows than the tokenizer has ids
            "vocab_size": tokenizer.get_vocab_size() + 9},
        "tie_word_embeddings": False, "transformers_version": "4.57.0.dev0", "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vision_config": {
            "deepstack_visual_indexes": spec.tower_taps, "depth": spec.tower_layers, "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": spec.tower_dim, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": spec.tower_ffn,
            "model_type": "qwen3_vl", "num_heads": spec.tower_heads, "num_position_embeddings": spec.tower_grid**2,
            "out_hidden_size": spec.text_hidden, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"), "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>")}
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), config)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_pretrained(folder))
    # the language model and the vision tower have their own rules
    weights.randomize(model.model.language_model, weights.TEXT, f"{spec.seed} {spec.name} text")
    weights.randomize(model.model.visual, weights.QWEN3VL_TOWER, f"{spec.seed} {spec.name} tower")
    with torch.no_grad():
        model.lm_head.weight.copy_(0.1 * torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(spec.seed % 2**31)))
    write_weights(folder, "model", cast(model, spec.form["text_dtype"], spec.form["text_cast"]), spec.form["text_shards"])


def _vae(spec, folder):
    mean, deviation = spec.latents_format()
    model = AutoencoderKLQwenImage21(
        base_dim=spec.vae_base, decoder_base_dim=spec.decoder_base, z_dim=spec.channels, dim_mult=spec.vae_times,
        num_res_blocks=spec.vae_layers, latents_mean=mean, latents_std=deviation)
    weights.randomize(model, weights.VAE_QWEN21, f"{spec.seed} {spec.name} vae")
    write_model(folder, model, spec.form["vae_dtype"])


def _scheduler(folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.42.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "invert_sigmas": False, "max_image_seq_len": 8192, "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
        "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False, "use_dynamic_shifting": True,
        "use_exponential_sigmas": False, "use_karras_sigmas": False})


def _processor(spec, folder):
    """Writes the processor's folder, which also holds the tokenizer; returns the tokenizer."""
    vocab, pairs = tokens.train(spec.merges, spec.seed, SYSTEM_PIECES)
    tokenizer = tokens.build(vocab, pairs, ADDED)
    tokens.save(tokenizer, vocab, pairs, folder, True, ADDED)
    write_json(os.path.join(folder, "chat_template.json"), {"chat_template": CHAT_TEMPLATE})
    write_json(os.path.join(folder, "preprocessor_config.json"), {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast", "image_std": [0.5, 0.5, 0.5], "merge_size": 2, "patch_size": 16,
        "processor_class": "Qwen3VLProcessor", "resample": 3, "rescale_factor": 0.00392156862745098, "temporal_patch_size": 2,
        # published: 65536, which would enlarge the small references of the fixtures
        "size": {"shortest_edge": 1024, "longest_edge": 16777216}})
    return tokenizer


def write(spec, folder):
    """Writes the whole model folder."""
    begin_model(folder, spec.form)
    if not spec.form["shares"]:
        tokenizer = _processor(spec, os.path.join(folder, "processor"))
        _text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer)
        _vae(spec, os.path.join(folder, "vae"))
        _transformer(spec, os.path.join(folder, "transformer"))
        _scheduler(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "model_index.json"), {
        "_class_name": "QwenImage21Pipeline", "_diffusers_version": "0.42.0.dev0", **CLASSES, "sample_sigmas": spec.form["sample_sigmas"]})
