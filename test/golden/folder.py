"""Writes a Z-Image model folder in the layouts of published files."""

import os

import torch
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

import tokens
import weights
from files import DTYPES, DTYPE_NAMES, cast, write_json, write_model, write_weights


def _transformer(spec, folder):
    model = ZImageTransformer2DModel(
        in_channels=spec.channels, dim=spec.dim, n_layers=spec.layers, n_refiner_layers=spec.refiners,
        n_heads=spec.heads, n_kv_heads=spec.heads, norm_eps=spec.norm_eps, cap_feat_dim=spec.text_hidden,
        rope_theta=spec.rope_theta, t_scale=spec.t_scale, axes_dims=spec.axes, axes_lens=[640, 64, 64])
    weights.randomize(model, weights.TRANSFORMER, f"{spec.seed} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def text_encoder(spec, folder, vocabulary):
    config = Qwen3Config(
        # published embeddings also have a few more rows than the tokenizer has ids
        vocab_size=vocabulary + 9, hidden_size=spec.text_hidden, intermediate_size=spec.text_ffn,
        num_hidden_layers=spec.text_layers, num_attention_heads=spec.text_heads,
        num_key_value_heads=spec.text_kv_heads, head_dim=spec.text_head_dim, rms_norm_eps=spec.text_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.text_theta},
        max_position_embeddings=1024, tie_word_embeddings=not spec.form["lm_head"])
    model = weights.randomize(Qwen3Model(config), weights.TEXT, f"{spec.seed} text")
    dtype = spec.form["text_dtype"]
    if not spec.form["released_names"]:
        model.to(DTYPES[dtype]).save_pretrained(folder)
        return
    # Layout of published files: tensor names of the causal language model, and rope_theta at the top level.
    os.makedirs(folder)
    tensors = {f"model.{name}": t for name, t in cast(model, dtype).items()}
    if spec.form["lm_head"]:
        generator = torch.Generator().manual_seed(spec.seed)
        head = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
        tensors["lm_head.weight"] = head.to(DTYPES[dtype])
    write_weights(folder, "model", tensors, spec.form["text_shards"])
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": vocabulary - 3,
        "head_dim": spec.text_head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.text_hidden,
        "initializer_range": 0.02,
        "intermediate_size": spec.text_ffn,
        "max_position_embeddings": 1024,
        "max_window_layers": spec.text_layers,
        "model_type": "qwen3",
        "num_attention_heads": spec.text_heads,
        "num_hidden_layers": spec.text_layers,
        "num_key_value_heads": spec.text_kv_heads,
        "rms_norm_eps": spec.text_eps,
        "rope_scaling": None,
        "rope_theta": spec.text_theta,
        "sliding_window": None,
        "tie_word_embeddings": not spec.form["lm_head"],
        "torch_dtype": DTYPE_NAMES[dtype],
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    })


def vae(spec, folder):
    levels = len(spec.vae_channels)
    model = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
        block_out_channels=spec.vae_channels, layers_per_block=spec.vae_layers, latent_channels=spec.channels,
        norm_num_groups=spec.vae_groups, sample_size=64, scaling_factor=spec.scaling_factor,
        shift_factor=spec.shift_factor, use_quant_conv=spec.form["quant_convs"],
        use_post_quant_conv=spec.form["quant_convs"])
    weights.randomize(model, weights.VAE, f"{spec.seed} vae")
    write_model(folder, model, spec.form["vae_dtype"])


def write(spec, folder):
    """Writes the whole model folder. Later steps read it back from disk, as Sluice does."""
    os.makedirs(folder)
    vocab, pairs = tokens.train(spec.merges, spec.seed)
    tokenizer = tokens.build(vocab, pairs)
    tokens.save(tokenizer, vocab, pairs, os.path.join(folder, "tokenizer"), spec.form["tokenizer_json"])
    text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer.get_vocab_size())
    _transformer(spec, os.path.join(folder, "transformer"))
    vae(spec, os.path.join(folder, "vae"))
    scheduler = {"_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.36.0.dev0",
                 "num_train_timesteps": 1000, "use_dynamic_shifting": False}
    if spec.form["scheduler_shift"] is not None:
        scheduler["shift"] = spec.form["scheduler_shift"]
    os.makedirs(os.path.join(folder, "scheduler"))
    write_json(os.path.join(folder, "scheduler", "scheduler_config.json"), scheduler)
    write_json(os.path.join(folder, "model_index.json"), {
        "_class_name": "ZImagePipeline",
        "_diffusers_version": "0.36.0.dev0",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    })
    return tokenizer
