"""Writes a Qwen-Image model folder in the layouts of published files."""

import os

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import tokens
import weights
from files import DTYPE_NAMES, DTYPES, begin_model, write_json, write_model, write_weights

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
    "tokenizer": ["transformers", "Qwen2Tokenizer"],
    "transformer": ["diffusers", "QwenImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage"],
}
PROCESSOR = {"processor": ["transformers", "Qwen2VLProcessor"]}

# Added tokens after the vocabulary, as in Qwen2.5-VL; here none of them is special.
ADDED = [(text, True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                                   "<|image_pad|>", "<|video_pad|>")]


def _transformer(spec, folder):
    settings = {} if spec.form["zero_cond_t"] is None else {"zero_cond_t": spec.form["zero_cond_t"]}
    model = QwenImageTransformer2DModel(
        in_channels=4 * spec.channels, out_channels=spec.channels, num_layers=spec.layers, attention_head_dim=spec.head_dim,
        num_attention_heads=spec.heads, joint_attention_dim=spec.text_hidden, axes_dims_rope=spec.axes, **settings)
    weights.randomize(model, weights.QWEN, f"{spec.seed} {spec.name} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _text_config(spec, tokenizer):
    return {
        "attention_dropout": 0.0, "bos_token_id": tokenizer.token_to_id("<|endoftext|>"), "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "hidden_act": "silu", "hidden_size": spec.text_hidden, "initializer_range": 0.02, "intermediate_size": spec.text_ffn,
        "max_position_embeddings": 128000, "max_window_layers": spec.text_layers, "num_attention_heads": spec.text_heads,
        "num_hidden_layers": spec.text_layers, "num_key_value_heads": spec.text_kv_heads, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": spec.text_sections, "rope_type": "default", "type": "default"}, "rope_theta": 1000000.0,
        "sliding_window": 32768, "use_cache": True, "use_sliding_window": False,
        # published embeddings also have a few more rows than the tokenizer has ids
        "vocab_size": tokenizer.get_vocab_size() + 9,
    }


def _tower_config(spec):
    return {
        "depth": spec.tower_layers, "fullatt_block_indexes": spec.tower_full, "hidden_act": "silu", "hidden_size": spec.tower_dim,
        "in_channels": 3, "in_chans": 3, "initializer_range": 0.02, "intermediate_size": spec.tower_ffn, "model_type": "qwen2_5_vl",
        "num_heads": spec.tower_heads, "out_hidden_size": spec.text_hidden, "patch_size": 14, "spatial_merge_size": 2,
        "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 2, "window_size": spec.tower_window,
    }


def text_encoder(spec, folder, tokenizer):
    """Writes config.json in one of the two published layouts: flat, or with the language model's keys also under
    text_config."""
    form, text = spec.form, _text_config(spec, tokenizer)
    named = {f"{name}_token_id": tokenizer.token_to_id(f"<|{text}|>") for name, text in
             (("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"))}
    config = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "tie_word_embeddings": False,
              "torch_dtype": DTYPE_NAMES[form["text_dtype"]], "transformers_version": "4.53.1", "vision_config": _tower_config(spec)}
    config |= text | named
    if form["nested"]:
        config["text_config"] = text | {"model_type": "qwen2_5_vl_text", "tie_word_embeddings": False, **named}
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), config)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig.from_pretrained(folder))
    # the language model and the vision tower have their own rules
    weights.randomize(model.model.language_model, weights.QWEN_TEXT, f"{spec.seed} {spec.name} text")
    weights.randomize(model.model.visual, weights.QWEN_TOWER, f"{spec.seed} {spec.name} tower")
    with torch.no_grad():
        model.lm_head.weight.copy_(0.1 * torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(spec.seed % 2**31)))
    # tensor names as in published files
    tensors = {released(name): t.to(DTYPES[form["text_cast"].get(released(name), form["text_dtype"])]) for name, t in model.state_dict().items()}
    if not form["lm_head"]:
        del tensors["lm_head.weight"]
    write_weights(folder, "model", tensors, form["text_shards"])


def released(name):
    return name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")


def _vae(spec, folder):
    mean, deviation = spec.latents_format()
    model = AutoencoderKLQwenImage(
        base_dim=spec.vae_base, z_dim=spec.channels, dim_mult=spec.vae_times, num_res_blocks=spec.vae_layers,
        temperal_downsample=spec.halved, latents_mean=mean, latents_std=deviation)
    weights.randomize(model, weights.VAE_WAN, f"{spec.seed} {spec.name} vae")
    write_model(folder, model, spec.form["vae_dtype"])


def _scheduler(spec, folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.34.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "invert_sigmas": False, "num_train_timesteps": 1000, "shift": 1.0, "stochastic_sampling": False, "time_shift_type": "exponential",
        "use_beta_sigmas": False, "use_dynamic_shifting": True, "use_exponential_sigmas": False, "use_karras_sigmas": False,
        **spec.form["shift"]})


def processor(spec, folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "preprocessor_config.json"), {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "Qwen2VLImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711], "merge_size": 2, "patch_size": 14, "processor_class": "Qwen2_5_VLProcessor",
        "resample": 3, "rescale_factor": 0.00392156862745098, "temporal_patch_size": 2, **spec.form["pixels"]})


def write(spec, folder):
    form = spec.form
    begin_model(folder, form)
    if "text_encoder" not in form["shares"]:
        vocab, pairs = tokens.train(spec.merges, spec.seed)
        tokenizer = tokens.build(vocab, pairs, ADDED)
        tokens.save(tokenizer, vocab, pairs, os.path.join(folder, "tokenizer"), form["tokenizer_json"], ADDED)
        text_encoder(spec, os.path.join(folder, "text_encoder"), tokenizer)
    if "vae" not in form["shares"]:
        _vae(spec, os.path.join(folder, "vae"))
    _transformer(spec, os.path.join(folder, "transformer"))
    _scheduler(spec, os.path.join(folder, "scheduler"))
    if form["processor"]:
        processor(spec, os.path.join(folder, "processor"))
    classes = CLASSES | (PROCESSOR if form["processor"] else {})
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": form["pipeline"], "_diffusers_version": "0.36.0.dev0", **dict(sorted(classes.items()))})
