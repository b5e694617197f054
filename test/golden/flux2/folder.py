"""Writes a Flux.2 model folder in the layouts of published files."""

import os

from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM

import tokens
import weights
from files import DTYPE_NAMES, begin_model, cast, write_json, write_model, write_weights

from . import tokens as tekken_tokens

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen3ForCausalLM"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "transformer": ["diffusers", "Flux2Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLFlux2"],
}
DEV_CLASSES = CLASSES | {
    "text_encoder": ["transformers", "Mistral3ForConditionalGeneration"],
    "tokenizer": ["transformers", "PixtralProcessor"],
}


def _transformer(spec, folder):
    model = Flux2Transformer2DModel(
        in_channels=4 * spec.channels, num_layers=spec.doubles, num_single_layers=spec.singles, attention_head_dim=spec.head_dim,
        num_attention_heads=spec.heads, joint_attention_dim=len(spec.text_read) * spec.text_hidden, axes_dims_rope=spec.axes,
        guidance_embeds=spec.form["guided"])
    weights.randomize(model, weights.FLUX2, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _qwen3(spec, folder, vocabulary):
    """Writes Qwen3 in the layout of published files: rope_theta at the top level, the head tied to the embedding."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
        "eos_token_id": vocabulary - 3, "head_dim": spec.text_head_dim, "hidden_act": "silu", "hidden_size": spec.text_hidden,
        "initializer_range": 0.02, "intermediate_size": spec.text_ffn, "max_position_embeddings": 40960,
        "max_window_layers": spec.text_layers, "model_type": "qwen3", "num_attention_heads": spec.text_heads,
        "num_hidden_layers": spec.text_layers, "num_key_value_heads": spec.text_kv_heads, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": DTYPE_NAMES[spec.form["text_dtype"]],
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
        # published embeddings also have more rows than the tokenizer has ids
        "vocab_size": vocabulary + 9}
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), config)
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(folder))
    weights.randomize(model, weights.TEXT, f"{spec.seed} {spec.name} text")
    tensors = cast(model, spec.form["text_dtype"])
    del tensors["lm_head.weight"]
    write_weights(folder, "model", tensors, spec.form["text_shards"])


def _mistral(spec, folder, vocabulary):
    """Writes Mistral Small 3 with its vision tower, which prompts do not use, in the layout of published files."""
    dtype = DTYPE_NAMES[spec.form["text_dtype"]]
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu", "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0, "head_dim": spec.text_head_dim, "hidden_act": "silu", "hidden_size": spec.text_hidden,
            "initializer_range": 0.02, "intermediate_size": spec.text_ffn, "max_position_embeddings": 131072, "model_type": "mistral",
            "num_attention_heads": spec.text_heads, "num_hidden_layers": spec.text_layers, "num_key_value_heads": spec.text_kv_heads,
            "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True, "vocab_size": vocabulary + 9},
        "torch_dtype": dtype, "transformers_version": "4.53.1",
        "vision_config": {
            "attention_dropout": 0.0, "head_dim": 4, "hidden_act": "silu", "hidden_size": 8, "image_size": 1540, "initializer_range": 0.02,
            "intermediate_size": 12, "model_type": "pixtral", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 1,
            "patch_size": 14, "rope_theta": 10000.0},
        "vision_feature_layer": -1}
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), config)
    model = Mistral3ForConditionalGeneration(Mistral3Config.from_pretrained(folder))
    weights.randomize(model, weights.MISTRAL + weights.UNUSED_TOWER, f"{spec.seed} {spec.name} text")
    tensors = {released(name): t for name, t in cast(model, spec.form["text_dtype"]).items()}
    write_weights(folder, "model", tensors, spec.form["text_shards"])


def released(name):
    """Returns the published name of a tensor of Mistral3ForConditionalGeneration."""
    for ours, published in (("model.language_model.", "language_model.model."), ("model.vision_tower.", "vision_tower."),
                            ("model.multi_modal_projector.", "multi_modal_projector.")):
        if name.startswith(ours):
            return published + name.removeprefix(ours)
    return name


def _vae(spec, folder):
    levels = len(spec.vae_channels)
    model = AutoencoderKLFlux2(
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        block_out_channels=spec.vae_channels, decoder_block_out_channels=spec.decoder_channels, layers_per_block=spec.vae_layers,
        latent_channels=spec.channels, norm_num_groups=spec.vae_groups)
    weights.randomize(model, weights.VAE, f"{spec.seed} {spec.name} vae")
    weights.randomize_statistics(model.bn, f"{spec.seed} {spec.name} vae")
    # as published, bn.num_batches_tracked remains an integer
    write_model(folder, model, spec.form["vae_dtype"], {"bn.num_batches_tracked": "i64"})


def _scheduler(folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.37.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "invert_sigmas": False, "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 3.0,
        "shift_terminal": None, "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False,
        "use_dynamic_shifting": True, "use_exponential_sigmas": False, "use_karras_sigmas": False})


def _text(spec, folder, tokenizer_folder):
    if spec.form["guided"]:
        tokenizer = tekken_tokens.build(*tekken_tokens.train(spec.merges))
        tekken_tokens.save(tokenizer, tokenizer_folder)
        _mistral(spec, folder, tokenizer.get_vocab_size())
    else:
        vocab, pairs = tokens.train(spec.merges, spec.seed)
        tokenizer = tokens.build(vocab, pairs)
        tokens.save(tokenizer, vocab, pairs, tokenizer_folder, spec.form["tokenizer_json"])
        _qwen3(spec, folder, tokenizer.get_vocab_size())


def write(spec, folder):
    """Writes the whole model folder."""
    begin_model(folder, spec.form)
    for part in sorted(set(CLASSES) - set(spec.form["shares"])):
        path = os.path.join(folder, part)
        if part == "transformer":
            _transformer(spec, path)
        elif part == "vae":
            _vae(spec, path)
        elif part == "scheduler":
            _scheduler(path)
        elif part == "text_encoder":
            _text(spec, path, os.path.join(folder, "tokenizer"))
    kind = DEV_CLASSES if spec.form["guided"] else {"is_distilled": spec.form["distilled"]} | CLASSES
    write_json(os.path.join(folder, "model_index.json"), {"_class_name": spec.form["pipeline"], "_diffusers_version": "0.37.0.dev0", **kind})
