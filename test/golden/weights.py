"""Random weights of which each one matters.

Scales depend on the name, so that
- attention is neither uniform nor one-hot (scores have a standard deviation near 1),
- gates stay where tanh is neither flat nor linear,
- inputs of norms are small (0.05 to 0.3) where the network permits it:
  a wrong epsilon then becomes visible; at size 1 it would be below rounding.
Each tensor's seed depends on its name, so adding a tensor changes no other.
"""

import zlib

import torch

# Rules: (part of the name, gain of the weight, standard deviation of the bias); the first match applies. A weight's
# standard deviation is gain / sqrt(fan in).
TRANSFORMER = [
    ("all_x_embedder", 0.2, 0.06),
    ("cap_embedder.1", 0.2, 0.06),
    ("t_embedder.mlp.0", 1.0, 0.3),
    ("t_embedder.mlp.2", 1.5, 0.3),
    ("all_final_layer.2-1.linear", 0.6, 0.2),
    ("all_final_layer.2-1.adaLN_modulation", 0.4, 0.2),
    ("adaLN_modulation", 0.3, 0.4),
    ("to_q", 0.15, 0), ("to_k", 0.15, 0), ("to_v", 0.5, 0), ("to_out", 0.4, 0),
    ("w1", 1.0, 0), ("w3", 1.0, 0), ("w2", 0.3, 0),
]
TEXT = [
    ("q_proj", 0.15, 0), ("k_proj", 0.15, 0), ("v_proj", 0.5, 0), ("o_proj", 0.2, 0),
    ("gate_proj", 1.0, 0), ("up_proj", 1.0, 0), ("down_proj", 0.16, 0),
]
# A vision tower and its head: present in files, never computed.
UNUSED_TOWER = [("vision_tower", 1.0, 0), ("multi_modal_projector", 1.0, 0)]
FLUX = [
    ("attn.norm_", 1.7, 0),
    ("norm_out.linear", 0.4, 0.3),
    ("norm1.linear", 0.3, 0.4), ("norm1_context.linear", 0.3, 0.4), ("norm.linear", 0.3, 0.4),
    ("x_embedder", 0.3, 0.06), ("context_embedder", 0.4, 0.06),
    ("embedder.linear_1", 1.0, 0.3), ("embedder.linear_2", 1.0, 0.3),
    ("to_q", 0.15, 0.15), ("to_k", 0.15, 0.15), ("to_v", 0.7, 0.1),
    # prompt tokens affect the image only after they affect each other
    ("add_q_proj", 0.2, 0.3), ("add_k_proj", 0.2, 0.3), ("add_v_proj", 1.0, 0.1),
    ("to_out", 0.7, 0.1), ("to_add_out", 1.2, 0.1),
    ("net.0", 0.8, 0.3), ("net.2", 0.5, 0.1),
    ("proj_mlp", 0.8, 0.2),
    ("transformer_blocks", 0.5, 0.1),  # applies to proj_out of single blocks
    ("proj_out", 0.6, 0.2),
]
CHROMA = [
    ("attn.norm_", 1.7, 0),
    # the approximator's residual is small, so that the epsilon of its norms matters
    ("guidance_layer.in_proj", 0.06, 0.02), ("guidance_layer.out_proj", 2.4, 0.2), ("linear_1", 1.0, 0.3), ("linear_2", 0.12, 0.02),
    *[rule for rule in FLUX if "norm" not in rule[0]],
]
# The product of a gate and a value is smaller than a GELU's output.
OVIS = [("net.0", 1.2, 0.4), ("net.2", 0.7, 0.1), ("proj_mlp", 1.2, 0.3), *FLUX]
# No layer has a bias: modulation and queries vary by larger gains.
FLUX2 = [
    ("attn.norm_", 1.7, 0),
    ("modulation", 0.8, 0), ("norm_out.linear", 0.7, 0),
    ("x_embedder", 0.3, 0), ("context_embedder", 1.0, 0),
    ("embedder.linear_1", 1.0, 0), ("embedder.linear_2", 2.0, 0),
    ("to_qkv_mlp_proj", 0.8, 0),
    ("to_q", 0.15, 0), ("to_k", 0.15, 0), ("to_v", 0.7, 0),
    # prompt tokens affect the image only after they affect each other
    ("add_q_proj", 0.2, 0), ("add_k_proj", 0.2, 0), ("add_v_proj", 1.0, 0),
    ("to_out", 0.9, 0), ("to_add_out", 1.2, 0),
    ("linear_in", 1.0, 0), ("linear_out", 0.7, 0),
    ("proj_out", 0.6, 0),
]
SD3 = [
    ("norm_out.linear", 0.4, 0.3),
    ("norm1.linear", 0.3, 0.4), ("norm1_context.linear", 0.3, 0.4),
    ("pos_embed.proj", 0.3, 0.06), ("context_embedder", 0.6, 0.06),
    ("embedder.linear_1", 1.0, 0.3), ("embedder.linear_2", 1.0, 0.3),
    ("to_q", 0.9, 0.3), ("to_k", 0.9, 0.3), ("to_v", 0.7, 0.1),
    # prompt tokens affect the image only after they affect each other
    ("add_q_proj", 0.9, 0.3), ("add_k_proj", 0.9, 0.3), ("add_v_proj", 1.0, 0.1),
    ("to_out", 0.7, 0.1), ("to_add_out", 1.2, 0.1),
    ("net.0", 0.8, 0.3), ("net.2", 0.5, 0.1),
    ("proj_out", 0.6, 0.2),
]
# No layer has a bias: modulation and queries vary by larger gains.
ANIMA = [
    ("attn1.norm_", 1.7, 0), ("attn2.norm_", 1.7, 0),
    ("t_embedder.linear_1", 1.0, 0), ("t_embedder.linear_2", 1.0, 0),
    ("linear_1", 1.5, 0), ("linear_2", 0.7, 0),
    ("patch_embed", 0.3, 0),
    ("to_q", 0.15, 0), ("to_k", 0.15, 0), ("attn2.to_v", 1.5, 0), ("to_v", 0.7, 0), ("to_out", 1.2, 0),
    ("net.0", 1.2, 0), ("net.2", 0.8, 0),
    ("proj_out", 0.6, 0),
]
ANIMA_ADAPTER = [
    ("q_norm", 1.7, 0), ("k_norm", 1.7, 0),
    ("q_proj", 0.15, 0), ("k_proj", 0.15, 0), ("v_proj", 1.0, 0), ("o_proj", 0.5, 0),
    ("mlp.0", 1.0, 0.3), ("mlp.2", 0.3, 0.05),
    ("embed", 1.0, 0), ("out_proj", 1.0, 0.2),
]
SD3_NORMED = [
    ("attn.norm_", 1.7, 0), ("attn2.norm_", 1.6, 0),
    ("to_q", 0.15, 0.15), ("to_k", 0.15, 0.15), ("add_q_proj", 0.2, 0.3), ("add_k_proj", 0.2, 0.3),
    *SD3,
]
CLIP = [
    ("token_embedding", 0.5, 0), ("position_embedding", 0.4, 0),
    ("q_proj", 1.0, 0.3), ("k_proj", 1.0, 0.3), ("v_proj", 0.5, 0.15), ("out_proj", 0.3, 0.05),
    ("fc1", 0.8, 0.2), ("fc2", 0.3, 0.05),
    ("text_projection", 1.0, 0),
]
T5 = [
    ("shared", 0.5, 0), ("embed_tokens", 0.5, 0), ("relative_attention_bias", 1.5, 0),
    # T5 does not scale scores: queries and keys each contain the fourth root of the head width
    ("SelfAttention.q", 0.9, 0), ("SelfAttention.k", 0.9, 0), ("SelfAttention.v", 0.6, 0), ("SelfAttention.o", 0.3, 0),
    ("wi_0", 1.0, 0), ("wi_1", 1.0, 0), ("wo", 0.2, 0),
]
UNET = [
    ("conv_in", 0.3, 0.06), ("conv_out", 1.0, 0.1),
    ("embedding.linear_1", 1.0, 0.3), ("embedding.linear_2", 1.2, 0.3),
    ("time_emb_proj", 1.0, 0.4), ("conv_shortcut", 0.8, 0.15), ("conv1", 0.8, 0.3), ("conv2", 0.5, 0.2),
    # large gains, so that the prompt and the levels deep below the skip connections have an effect
    ("attn2.to_q", 1.8, 0), ("attn2.to_k", 0.7, 0), ("attn2.to_v", 2.0, 0), ("attn2.to_out", 1.2, 0.2),
    ("to_q", 0.8, 0), ("to_k", 0.8, 0), ("to_v", 1.0, 0), ("to_out", 0.9, 0.2),
    ("net.0", 1.0, 0.3), ("net.2", 0.8, 0.3), ("proj_in", 1.0, 0.1), ("proj_out", 0.6, 0.2),
    ("up_blocks.0.upsamplers", 6.0, 0.4), ("upsamplers", 3.6, 0.2), ("downsamplers", 0.8, 0.1),
]
QWEN = [
    ("attn.norm_", 1.7, 0),
    ("norm_out.linear", 0.4, 0.3),
    ("img_mod.1", 0.3, 0.4), ("txt_mod.1", 0.3, 0.4),
    ("img_in", 0.3, 0.06), ("txt_in", 0.4, 0.06),
    ("embedder.linear_1", 1.0, 0.3), ("embedder.linear_2", 1.0, 0.3),
    ("to_q", 0.15, 0.15), ("to_k", 0.15, 0.15), ("to_v", 0.7, 0.1),
    # prompt tokens affect the image only after they affect each other
    ("add_q_proj", 0.2, 0.3), ("add_k_proj", 0.2, 0.3), ("add_v_proj", 1.0, 0.1),
    ("to_out", 0.7, 0.1), ("to_add_out", 1.2, 0.1),
    ("net.0", 0.8, 0.3), ("net.2", 0.5, 0.1),
    ("proj_out", 0.6, 0.2),
]
QWEN_TEXT = [
    ("q_proj", 0.9, 0.5), ("k_proj", 0.9, 0.5), ("v_proj", 0.5, 0.1), ("o_proj", 0.2, 0),
    ("gate_proj", 1.0, 0), ("up_proj", 1.0, 0), ("down_proj", 0.16, 0),
]
KREA2 = [
    ("attn.norm_", 1.7, 0),
    ("img_in", 0.3, 0.06), ("txt_in.linear_1", 0.8, 0.2), ("txt_in.linear_2", 0.5, 0.06),
    ("time_embed.linear_1", 1.0, 0.3), ("time_embed.linear_2", 0.8, 0.3), ("time_mod_proj", 0.5, 0.3),
    ("projector", 1.0, 0),
    ("to_q", 0.15, 0), ("to_k", 0.15, 0), ("to_v", 0.9, 0), ("to_gate", 1.0, 0), ("to_out", 0.9, 0),
    ("ff.gate", 1.2, 0), ("ff.up", 1.0, 0), ("ff.down", 0.7, 0),
    ("final_layer.linear", 0.6, 0.2),
]
# Queries and keys are not normed.
MISTRAL = [("q_proj", 1.0, 0), ("k_proj", 1.0, 0), *TEXT]
QWEN_TOWER = [
    ("patch_embed", 0.2, 0),
    ("qkv", 0.9, 0.4), ("attn.proj", 0.3, 0.05),
    ("gate_proj", 1.0, 0.3), ("up_proj", 1.0, 0.3), ("down_proj", 0.2, 0.05),
    # gives text embeddings their usual magnitude
    ("mlp.0", 1.0, 0.3), ("mlp.2", 0.15, 0.05),
]
# No layer has a bias, as in FLUX2.
QWEN21 = [
    ("attn.norm_", 1.7, 0),
    ("modulation", 0.8, 0), ("norm_out.linear", 0.7, 0),
    ("img_in", 0.3, 0), ("txt_in.in_layer", 0.8, 0), ("txt_in.out_layer", 0.8, 0),
    ("embedder.linear_1", 1.0, 0), ("embedder.linear_2", 2.0, 0),
    ("to_q", 0.15, 0), ("to_k", 0.15, 0), ("to_v", 0.7, 0), ("to_out", 0.9, 0),
    ("gate_layer", 1.0, 0), ("img_mlp.proj", 1.0, 0), ("img_mlp.out", 0.7, 0),
    ("proj_out", 0.6, 0),
]
QWEN3VL_TOWER = [
    ("patch_embed", 0.2, 0.05), ("pos_embed", 1.0, 0),
    ("qkv", 0.9, 0.4), ("attn.proj", 0.3, 0.05),
    # the mergers' results have the usual magnitude of text embeddings
    ("merger_list", 0.4, 0.1), ("merger.linear_fc1", 1.0, 0.3), ("merger.linear_fc2", 0.15, 0.05),
    ("linear_fc1", 1.0, 0.3), ("linear_fc2", 0.2, 0.05),
]
WAN = [
    ("attn1.norm_", 1.6, 0), ("attn2.norm_", 1.5, 0),
    ("patch_embedding", 0.3, 0.06), ("text_embedder.linear_1", 1.0, 0.3), ("text_embedder.linear_2", 0.8, 0.2),
    ("time_embedder.linear_1", 1.0, 0.3), ("time_embedder.linear_2", 0.8, 0.3), ("time_proj", 0.3, 0.3),
    ("image_embedder.ff.net.0", 1.0, 0.3), ("image_embedder.ff.net.2", 0.6, 0.2),
    ("to_q", 0.3, 0.3), ("to_k", 0.3, 0.3), ("attn2.to_v", 1.5, 0.1), ("to_v", 0.7, 0.1), ("attn2.to_out", 1.2, 0.1), ("to_out", 0.7, 0.1),
    # cross-attention to the image
    ("add_k_proj", 0.3, 0.2), ("add_v_proj", 1.5, 0.1),
    ("net.0", 1.2, 0.3), ("net.2", 0.5, 0.1),
    ("proj_in", 0.5, 0.1), ("proj_out", 0.6, 0.2),
]
LTX2 = [
    ("attn1.norm_", 1.6, 0), ("attn2.norm_", 1.5, 0), ("_attn.norm_", 1.4, 0),
    ("caption_projection.linear_1", 1.0, 0.3), ("caption_projection.linear_2", 0.8, 0.2),
    ("embedder.linear_1", 1.0, 0.3), ("embedder.linear_2", 0.8, 0.3),
    ("time_embed.linear", 0.3, 0.3), ("av_cross_attn", 0.5, 0.4), ("prompt_adaln.linear", 0.5, 0.3),
    ("to_gate_logits", 1.0, 0.5),
    ("to_q", 0.3, 0.3), ("to_k", 0.3, 0.3), ("attn2.to_v", 1.5, 0.1), ("_attn.to_v", 1.2, 0.2), ("to_v", 0.7, 0.1),
    ("attn2.to_out", 1.2, 0.1), ("_attn.to_out", 1.2, 0.2), ("to_out", 0.7, 0.1),
    ("net.0", 1.2, 0.3), ("net.2", 0.5, 0.1),
    ("proj_in", 0.5, 0.1), ("proj_out", 0.6, 0.2),
]
LTX2_CONNECTORS = [
    ("attn1.norm_", 1.6, 0),
    ("text_proj_in", 1.0, 0.2), ("to_gate_logits", 1.0, 0.5),
    ("to_q", 0.3, 0.3), ("to_k", 0.3, 0.3), ("to_v", 1.0, 0.2), ("to_out", 0.9, 0.2),
    ("net.0", 1.2, 0.3), ("net.2", 0.6, 0.1),
]
# Queries and keys are normed. The norms after attention and feed-forward set the magnitudes of both.
GEMMA3 = [
    ("post_attention_layernorm", 0.6, 0), ("post_feedforward_layernorm", 0.5, 0),
    ("q_norm", 1.5, 0), ("k_norm", 1.4, 0),
    *TEXT,
]
VAE_LTX2 = [
    ("decoder.conv_out", 0.5, 0.1),
    ("conv_in", 1.0, 0.3),
    ("upsamplers", 1.0, 0.2), ("downsamplers", 1.0, 0.2),
    ("conv1", 1.2, 0.4), ("conv2", 0.9, 0.3),
    ("conv_out", 1.5, 0.2),
]
AUDIO_VAE_LTX2 = [
    ("conv_in", 1.0, 0.3), ("conv_out", 1.2, 0.4),
    ("upsample", 1.0, 0.2), ("downsample", 1.0, 0.2), ("nin_shortcut", 0.8, 0.2), ("conv_shortcut", 0.8, 0.2),
    ("conv1", 1.2, 0.4), ("conv2", 0.9, 0.3),
]
VOCODER_LTX2 = [
    # the samples stay within -1 and 1
    ("vocoder.conv_out", 0.012, 0), ("bwe_generator.conv_out", 0.012, 0),
    ("conv_in", 0.8, 0.3), ("conv_out", 0.6, 0.1), ("upsamplers", 1.5, 0.2),
    ("convs1", 1.1, 0.3), ("convs2", 0.7, 0.2),
]
UPSAMPLER_LTX2 = [
    ("initial_conv", 1.0, 0.3), ("final_conv", 0.8, 0.3), ("upsampler", 1.2, 0.3),
    ("conv1", 1.0, 0.4), ("conv2", 1.0, 0.4),
]
CLIP_VISION = [
    ("patch_embedding", 0.8, 0), ("position_embedding", 0.4, 0),
    ("q_proj", 1.0, 0.3), ("k_proj", 1.0, 0.3), ("v_proj", 0.8, 0.15), ("out_proj", 0.5, 0.05),
    ("fc1", 0.8, 0.2), ("fc2", 0.5, 0.05), ("visual_projection", 1.0, 0),
]
# The few rows of a tiny image are larger than the many rows of text, or they would have no influence.
SIGLIP = [
    ("patch_embedding", 0.8, 0.2), ("position_embedding", 0.8, 0),
    ("q_proj", 1.3, 1.6), ("k_proj", 1.5, 0.3), ("v_proj", 1.0, 0.3), ("out_proj", 0.9, 0.3),
    ("fc1", 0.9, 0.4), ("fc2", 0.6, 0.3), ("head", 0.5, 0.1),
]
REDUX = [("redux_up", 1.0, 0.3), ("redux_down", 4.0, 1.0)]
# Rules of Wan's VAE, where a single frame uses 9 of the 27 kernel taps.
VAE_WAN = [
    ("decoder.conv_out", 0.9, 0.1),
    ("conv_in", 0.9, 0.3),
    ("conv_shortcut", 0.8, 0.2),
    ("resample.1", 0.9, 0.2), ("time_conv", 0.5, 0.1),
    ("to_qkv", 1.0, 0.6), ("proj", 0.6, 0.2),
    ("conv1", 1.2, 0.4), ("conv2", 1.2, 0.3),
    ("post_quant_conv", 1.0, 0.4), ("quant_conv", 1.0, 0.4),
    ("conv_out", 1.5, 0.1),
]
# Rules of Qwen-Image-2.1's VAE, whose kernels are two-dimensional.
VAE_QWEN21 = [
    ("decoder.conv_out", 0.5, 0.1),
    ("conv_in", 0.5, 0.3),
    ("conv_shortcut", 0.8, 0.2),
    ("resample.1", 0.6, 0.2), ("time_conv", 0.5, 0.1),
    ("to_qkv", 1.0, 0.6), ("proj", 0.6, 0.2),
    ("conv1", 0.7, 0.4), ("conv2", 0.7, 0.3),
    ("post_quant_conv", 1.0, 0.4), ("quant_conv", 1.0, 0.4),
    ("conv_out", 0.9, 0.1),
]
VAE = [
    ("decoder.conv_out", 0.9, 0.1),
    ("conv_in", 0.08, 0.06),
    ("conv_shortcut", 0.8, 0.05),
    ("upsamplers", 0.9, 0.05),
    ("downsamplers", 0.9, 0.05),
    ("to_q", 1.3, 0.3), ("to_k", 1.3, 0.3), ("to_v", 0.6, 0.15), ("to_out", 0.5, 0.05),
    ("conv1", 0.2, 0.1), ("conv2", 0.3, 0.08),
    ("post_quant_conv", 1.0, 0.4), ("quant_conv", 1.0, 0.4),
    ("conv_out", 0.5, 0.1),
]


# Name endings of parameters that are neither matrices nor norms.
TABLES = ("pad_token", "scale_shift_table", "pos_embed", "class_embedding", "task_embedding", "learnable_registers", ".alpha", ".beta")

# Norms whose stored weight is the scale minus 1.
ZERO_CENTRED = ("text_norm.weight",)


def _rule(name, rules):
    for part, gain, bias in rules:
        if part in name:
            return gain, bias
    raise KeyError(name)


def _draw(name, tensor, rules, seed):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    normal = torch.randn(tensor.shape, generator=generator)
    if name.endswith(TABLES + ZERO_CENTRED):
        return 0.3 * normal
    if "norm" in name.split(".")[-2]:
        if name.endswith("bias"):
            return 0.3 * normal
        about = next((gain for part, gain, _ in rules if "norm" in part and part in name), 1.0)
        return about * (1.0 + 0.3 * (2 * torch.rand(tensor.shape, generator=generator) - 1))
    if "embed_tokens" in name:
        return 0.05 * normal
    if "lm_head" in name:
        return 0.1 * normal
    gain, bias = _rule(name, rules)
    if name.endswith("bias"):
        return bias * normal
    fan_in = tensor[0].numel()
    return gain / fan_in**0.5 * normal


# Norms whose names do not contain "norm".
NORMS = {"cap_embedder.0.weight": "cap_embedder.norm.weight", "merger.ln_q.weight": "merger.norm.weight"}
NORMS |= {f"transformer_layes.{i}.ln_{k}.{part}": f"transformer_layes.{i}.norm.{part}" for i in range(2) for k in (1, 2) for part in ("weight", "bias")}
NORMS |= {f"distilled_guidance_layer.norms.{i}.weight": f"distilled_guidance_layer.norms.{i}.norm.weight" for i in range(5)}


def randomize(model, rules, seed):
    """Randomises every parameter of the model, and tables stored as buffers."""
    tables = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(TABLES)]
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *tables]:
            parameter.copy_(_draw(NORMS.get(name, name), parameter, rules, seed))
    model.requires_grad_(False)
    return model.eval()


def randomize_statistics(norm, seed):
    """Randomises a batch norm's mean and variance; small variances show a wrong epsilon."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} statistics".encode()))
    norm.running_mean.copy_(0.3 * torch.randn(norm.running_mean.shape, generator=generator))
    norm.running_var.copy_(0.02 + 2 * torch.rand(norm.running_var.shape, generator=generator) ** 2)
