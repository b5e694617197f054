"""Writes an LTX-2 model folder in the layouts of published files."""

import os

import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video, LTX2VideoTransformer3DModel
from diffusers.pipelines.ltx2 import LTX2LatentUpsamplerModel, LTX2TextConnectors, LTX2Vocoder, LTX2VocoderWithBWE
from transformers import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.audio_utils import mel_filter_bank

import weights
from files import DTYPE_NAMES, begin_model, cast, write_json, write_model, write_weights

from . import tokens

CLASSES = {
    "audio_vae": ["diffusers", "AutoencoderKLLTX2Audio"],
    "connectors": ["ltx2", "LTX2TextConnectors"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "Gemma3ForConditionalGeneration"],
    "tokenizer": ["transformers", "GemmaTokenizerFast"],
    "transformer": ["diffusers", "LTX2VideoTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLLTX2Video"],
}


def _draw(spec, model, rules, part):
    return weights.randomize(model, rules, f"{spec.seed} {spec.name} {part}")


def _transformer(spec, folder):
    modulated = dict(gated_attn=True, audio_gated_attn=True, cross_attn_mod=True, audio_cross_attn_mod=True,
                     use_prompt_embeddings=False) if spec.newer else {}
    sound = spec.audio_channels * spec.audio_bins
    model = LTX2VideoTransformer3DModel(
        in_channels=spec.channels, out_channels=spec.channels, num_attention_heads=spec.heads, attention_head_dim=spec.head_dim,
        cross_attention_dim=spec.dim, audio_in_channels=sound, audio_out_channels=sound, audio_num_attention_heads=spec.heads,
        audio_attention_head_dim=spec.audio_head_dim, audio_cross_attention_dim=spec.audio_dim, num_layers=spec.layers,
        caption_channels=spec.text_hidden, rope_type="split",
        # absent from published configurations of 2.0, where diffusers then ignores the blocks of spatio-temporal guidance
        perturbed_attn=True, **modulated)
    _draw(spec, model, weights.LTX2, "transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["shards"])


def _connectors(spec, folder):
    (video, audio), (video_heads, audio_heads) = spec.connector_dims, spec.connector_heads
    split = dict(video_gated_attn=True, audio_gated_attn=True, per_modality_projections=True, video_hidden_dim=video, audio_hidden_dim=audio,
                 proj_bias=True) if spec.newer else {}
    model = LTX2TextConnectors(
        caption_channels=spec.text_hidden, text_proj_in_factor=spec.text_layers + 1, video_connector_num_attention_heads=video_heads,
        video_connector_attention_head_dim=video // video_heads, video_connector_num_layers=spec.connector_layers,
        video_connector_num_learnable_registers=spec.registers, audio_connector_num_attention_heads=audio_heads,
        audio_connector_attention_head_dim=audio // audio_heads, audio_connector_num_layers=spec.connector_layers,
        audio_connector_num_learnable_registers=spec.registers, rope_type="split", **split)
    _draw(spec, model, weights.LTX2_CONNECTORS, "connectors")
    write_model(folder, model, spec.form["connectors_dtype"])


def _text_encoder(spec, folder, vocabulary):
    """The vision tower is present in files and never computed."""
    text = dict(
        # published embeddings also have more rows than the tokenizer has ids
        vocab_size=vocabulary + 11, hidden_size=spec.text_hidden, intermediate_size=spec.text_ffn, num_hidden_layers=spec.text_layers,
        num_attention_heads=spec.text_heads, num_key_value_heads=spec.text_kv_heads, head_dim=spec.text_head_dim, sliding_window=1024,
        query_pre_attn_scalar=14, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=131072)
    vision = dict(hidden_size=6, intermediate_size=7, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14, vision_use_head=False)
    rope = dict(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text | rope, vision_config=vision, mm_tokens_per_image=4))
    _draw(spec, model, weights.UNUSED_TOWER + weights.GEMMA3, "text")
    norms = {name for name, module in model.model.language_model.named_modules() if type(module).__name__ == "Gemma3RMSNorm"}
    for name in norms:  # the weight is the scale minus 1
        model.model.language_model.get_submodule(name).weight.sub_(1)
    os.makedirs(folder)
    tensors = {}
    for name, tensor in cast(model, spec.form["text_dtype"]).items():
        if name != "lm_head.weight":  # tied
            name = name.removeprefix("model.").replace("language_model.", "language_model.model.")
            tensors[name.replace("vision_tower.", "vision_tower.vision_model.")] = tensor
    write_weights(folder, "model", tensors, 2)
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
        "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 4, "model_type": "gemma3",
        "text_config": text | {"attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None, "cache_implementation": "hybrid",
                               "final_logit_softcapping": None, "initializer_range": 0.02, "model_type": "gemma3_text",
                               "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000.0,
                               "sliding_window_pattern": 6, "use_cache": True},
        "torch_dtype": DTYPE_NAMES[spec.form["text_dtype"]], "transformers_version": "4.50.0.dev0",
        "vision_config": vision | {"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-06,
                                   "model_type": "siglip_vision_model", "num_channels": 3}})


def _set_format(spec, model, part):
    for buffer, values in zip((model.latents_mean, model.latents_std), spec.latents_format(part, model.latents_mean.numel())):
        buffer.copy_(torch.tensor(values))


def _vae(spec, folder):
    model = AutoencoderKLLTX2Video(
        latent_channels=spec.channels, down_block_types=["LTX2VideoDownBlock3D"] * 4, spatio_temporal_scaling=[True] * 4,
        downsample_type=["spatial", "temporal", "spatiotemporal", "spatiotemporal"], encoder_causal=True, decoder_causal=False,
        encoder_spatial_padding_mode="zeros", spatial_compression_ratio=32, temporal_compression_ratio=8, **spec.vae)
    _draw(spec, model, weights.VAE_LTX2, "vae")
    _set_format(spec, model, "vae")
    write_model(folder, model, spec.form["vae_dtype"])


def _audio_vae(spec, folder):
    model = AutoencoderKLLTX2Audio(base_channels=spec.audio_channels * spec.audio_bins, latent_channels=spec.audio_channels, mel_bins=spec.mel_bins)
    _draw(spec, model, weights.AUDIO_VAE_LTX2, "audio_vae")
    _set_format(spec, model, "audio_vae")
    write_model(folder, model, spec.form["audio_dtype"])


def _fourier_basis(length):
    """Rows of the windowed Fourier transform [2 * frequencies, 1, length]: real parts, then imaginary parts."""
    rows = torch.fft.fft(torch.eye(length, dtype=torch.float64))[:length // 2 + 1]
    return (torch.cat([rows.real, rows.imag]) * torch.hann_window(length, dtype=torch.float64)).float()[:, None]


def _vocoder(spec, folder):
    sizes = spec.vocoder
    if spec.newer:
        length, bins = sizes["filter_length"], sizes["num_mel_channels"]
        model = LTX2VocoderWithBWE(
            in_channels=2 * spec.mel_bins, hidden_channels=sizes["hidden_channels"], bwe_in_channels=2 * bins,
            bwe_hidden_channels=sizes["bwe_hidden_channels"], filter_length=length, window_length=length, num_mel_channels=bins)
    else:
        model = LTX2Vocoder(in_channels=2 * spec.mel_bins, **sizes)
    _draw(spec, model, weights.VOCODER_LTX2, "vocoder")
    if spec.newer:
        stft = model.mel_stft
        basis = _fourier_basis(length)
        stft.stft_fn.forward_basis.copy_(basis)
        stft.stft_fn.inverse_basis.copy_(basis * 0.31)  # never read
        mel = mel_filter_bank(length // 2 + 1, bins, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
        stft.mel_basis.copy_(torch.from_numpy(mel.T))
    write_model(folder, model, spec.form["vocoder_dtype"])


def _upsampler(spec, folder):
    model = LTX2LatentUpsamplerModel(
        in_channels=spec.channels, mid_channels=32, num_blocks_per_stage=spec.upsampler_blocks, rational_spatial_scale=2.0)
    _draw(spec, model, weights.UPSAMPLER_LTX2, "latent_upsampler")
    write_model(folder, model, spec.form["upsampler_dtype"])


def _scheduler(_spec, folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.37.0.dev0", "base_image_seq_len": 1024, "base_shift": 0.95,
        "invert_sigmas": False, "max_image_seq_len": 4096, "max_shift": 2.05, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.1,
        "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False, "use_dynamic_shifting": True,
        "use_exponential_sigmas": False, "use_karras_sigmas": False})


def write(spec, folder):
    form = spec.form
    begin_model(folder, form)
    parts = {"transformer": _transformer, "connectors": _connectors, "vae": _vae, "audio_vae": _audio_vae, "vocoder": _vocoder,
             "latent_upsampler": _upsampler, "scheduler": _scheduler}
    if "tokenizer" not in form["shares"]:
        vocab, pairs = tokens.train()
        tokens.save(tokens.build(vocab, pairs), vocab, os.path.join(folder, "tokenizer"))
        _text_encoder(spec, os.path.join(folder, "text_encoder"), len(vocab))
    for part, write_part in parts.items():
        if part not in form["shares"]:
            write_part(spec, os.path.join(folder, part))
    classes = CLASSES | {"vocoder": ["ltx2", "LTX2VocoderWithBWE" if spec.newer else "LTX2Vocoder"]}
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": "LTX2Pipeline", "_diffusers_version": "0.37.0.dev0", **dict(sorted(classes.items()))})
