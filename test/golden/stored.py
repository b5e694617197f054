#!/usr/bin/env python3
"""Generates stored/: small models whose weights are stored as in published files, and reference outputs for the decoded weights.

    stored.py [--only NAME]

Needs requirements.txt and gguf==0.19.0.  test_mixed_types.c reads the output and needs no Python.
Each stored/NAME/ contains
  model/             components under arbitrary names, recognised by content; some are links to other fixtures
  expect.json        "family"; "cases" as in make.py; "types" of the files; "original": distance of the latent from
                     that of the weights before quantisation, unless the codes are random
  reference.safetensors  of case k: ids.cond hidden.cond (...), sigmas, latent, latent_001 ...; as in make.py
  bf16.json          empty: the reference's bf16 errors are not measured; devices that compute in bf16 have wider tolerances

Weights have the authors' names; the reference receives the dequantised values through diffusers' own conversion from these
names.  Most heads have the published width of 128, so no configuration is needed.
"""

import argparse
import inspect
import json
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gguf
import numpy as np
import torch
from diffusers import (FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel, QwenImageTransformer2DModel, WanTransformer3DModel,
                       ZImageTransformer2DModel)
from diffusers.loaders import single_file_utils
from PIL import Image
from transformers import (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3Config, Qwen3Model, T5Config, T5EncoderModel, UMT5Config,
                          UMT5EncoderModel)

import anima.stored
import files
import flux.reference_tensors
import flux2.stored
import inputs
import krea.stored
import qwen.reference_tensors
import qwen21.stored
import reference_tensors
import tokens_gguf
import wan.reference_tensors
import weights
from stored_files import HERE, SEED, fuse, link, part, qwen_names, rename, write_comfy, write_gguf, write_scaled_fp8
from watch import relative


class Spec:
    def __init__(self, name):
        self.name, self.seed = os.path.join("stored", name), SEED


def zimage_names(state):
    state = dict(state)
    for block in sorted({n.split(".attention.")[0] for n in state if ".attention.to_q." in n}):
        fuse(state, f"{block}.attention.qkv", [f"{block}.attention.to_{p}" for p in "qkv"])
    return rename(state, [("all_x_embedder.2-1.", "x_embedder."), ("all_final_layer.2-1.", "final_layer."), (".to_out.0.", ".out."),
                          (".norm_q.", ".q_norm."), (".norm_k.", ".k_norm.")])


def flux_names(state):
    state = dict(state)
    for i in range(len({n.split(".")[1] for n in state if n.startswith("transformer_blocks.")})):
        a, b = f"transformer_blocks.{i}", f"double_blocks.{i}"
        fuse(state, f"{b}.img_attn.qkv", [f"{a}.attn.to_{p}" for p in "qkv"])
        fuse(state, f"{b}.txt_attn.qkv", [f"{a}.attn.add_{p}_proj" for p in "qkv"])
    for i in range(len({n.split(".")[1] for n in state if n.startswith("single_transformer_blocks.")})):
        a, b = f"single_transformer_blocks.{i}", f"single_blocks.{i}"
        fuse(state, f"{b}.linear1", [f"{a}.attn.to_{p}" for p in "qkv"] + [f"{a}.proj_mlp"])
    # diffusers stores scale, then shift; checkpoints of the authors shift, then scale
    for tail in (".weight", ".bias"):
        scale, shift = state.pop(f"norm_out.linear{tail}").chunk(2)
        state[f"final_layer.adaLN_modulation.1{tail}"] = torch.cat([shift, scale])
        state[f"final_layer.linear{tail}"] = state.pop(f"proj_out{tail}")
    state = rename(state, [("single_transformer_blocks.", "single_blocks."), ("transformer_blocks.", "double_blocks.")])
    both = [("norm1.linear", "img_mod.lin"), ("norm1_context.linear", "txt_mod.lin"), ("ff.net.0.proj", "img_mlp.0"), ("ff.net.2", "img_mlp.2"),
            ("ff_context.net.0.proj", "txt_mlp.0"), ("ff_context.net.2", "txt_mlp.2"), ("attn.to_out.0", "img_attn.proj"),
            ("attn.to_add_out", "txt_attn.proj"), ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
            ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale")]
    single = [("norm.linear", "modulation.lin"), ("proj_out", "linear2"), ("attn.norm_q.weight", "norm.query_norm.scale"),
              ("attn.norm_k.weight", "norm.key_norm.scale")]
    double = both + [("attn.norm_q.weight", "img_attn.norm.query_norm.scale"), ("attn.norm_k.weight", "img_attn.norm.key_norm.scale")]
    ends = [("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"), ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
            ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
            ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
            ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"), ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
            ("context_embedder", "txt_in"), ("x_embedder", "img_in")]
    out = {}
    for name, tensor in state.items():
        pairs = single if name.startswith("single_blocks.") else double if name.startswith("double_blocks.") else ends
        out |= rename({name: tensor}, pairs)
    return out


def from_flux_names(state):
    """diffusers' own conversion of Flux checkpoints, with its hard-coded width replaced."""
    name = "convert_flux_transformer_checkpoint_to_diffusers"
    source = inspect.getsource(getattr(single_file_utils, name))
    width = FLUX["attention_head_dim"] * FLUX["num_attention_heads"]
    assert source.count("inner_dim = 3072") == 1
    scope = dict(vars(single_file_utils))
    exec(source.replace("inner_dim = 3072", f"inner_dim = {width}"), scope)
    return scope[name](state)


T5_GGUF = [("encoder.block.", "enc.blk."), ("encoder.final_layer_norm", "enc.output_norm"), ("shared", "token_embd"),
           ("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"), ("layer.0.SelfAttention.", "attn_"),
           ("layer.0.layer_norm", "attn_norm"), ("layer.1.layer_norm", "ffn_norm"), ("layer.1.DenseReluDense.wi_0", "ffn_gate"),
           ("layer.1.DenseReluDense.wi_1", "ffn_up"), ("layer.1.DenseReluDense.wo", "ffn_down")]

# llama.cpp's names for Qwen2.5-VL's vision tower.
TOWER_GGUF = [("visual.blocks.", "v.blk."), ("norm1", "ln1"), ("norm2", "ln2"), ("attn.proj", "attn_out"), ("mlp.gate_proj", "ffn_gate"),
              ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("visual.merger.ln_q", "v.post_ln"), ("visual.merger.mlp", "mm")]


def tower_names(state):
    """Converts the vision tower to llama.cpp's names: splits queries, keys and values, and the two frames of a
    patch."""
    out = {}
    for name, tensor in rename(state, TOWER_GGUF).items():
        if ".attn.qkv." in name:
            out |= {name.replace(".attn.qkv.", f".attn_{p}."): t for p, t in zip("qkv", tensor.chunk(3))}
        elif name == "visual.patch_embed.proj.weight":
            out |= {"v.patch_embd.weight": tensor[:, :, 0], "v.patch_embd.weight.1": tensor[:, :, 1]}
        else:
            out[name] = tensor
    return {name: t.contiguous() for name, t in out.items()}


def from_tower_names(values):
    """Converts decoded values back: the inverse of tower_names."""
    out = {}
    for name, tensor in values.items():
        if name.startswith("v.patch_embd"):
            continue
        for old, new in reversed([("visual.blocks.", "v.blk."), ("visual.merger.ln_q", "v.post_ln"), ("visual.merger.mlp", "mm")]):
            name = name.replace(new, old) if name.startswith(new) else name
        for old, new in TOWER_GGUF[1:7]:
            name = name.replace(f".{new}.", f".{old}.")
        out[name] = tensor
    for name in [n for n in out if ".attn_q." in n]:
        out[name.replace(".attn_q.", ".attn.qkv.")] = torch.cat([out.pop(name.replace(".attn_q.", f".attn_{p}.")) for p in "qkv"])
    out["visual.patch_embed.proj.weight"] = torch.stack([values["v.patch_embd.weight"], values["v.patch_embd.weight.1"]], dim=2)
    return out


ZIMAGE = dict(in_channels=16, dim=256, n_layers=1, n_refiner_layers=0, n_heads=2, n_kv_heads=2, norm_eps=1e-5,
              rope_theta=256.0, t_scale=1000.0, axes_dims=[32, 48, 48], axes_lens=[640, 64, 64])
QWEN = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
            rms_norm_eps=3e-5, max_position_embeddings=1024, rope_parameters={"rope_type": "default", "rope_theta": 20011.0})


def zimage_pipe():
    pipe = reference_tensors.load(os.path.join(HERE, "zimage_a", "model"))
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=reference_tensors.FAMILY_SHIFT)
    return pipe


def zimage_case(pipe):
    columns, rows, multiple = 5, 3, 16
    return dict(index=0, kind="image", prompt="a red fox in the snow, golden hour", negative_prompt="blurry, low quality", steps=3, cfg_scale=2.5,
                width=columns * multiple, height=rows * multiple, seed=42, batch=1, flow_shift=None, shift=reference_tensors.FAMILY_SHIFT,
                latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows)


def run_zimage(pipe, case):
    out = {}
    for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
        ids, out[f"case0.hidden.{lane}"] = reference_tensors.encode(pipe, prompt)
        out[f"case0.ids.{lane}"] = torch.tensor(ids, dtype=torch.int32)
    for name, value in reference_tensors.run_case(pipe, case).items():
        if name not in ("decoded", "picture"):
            out[f"case0.{name}"] = value
    return out


def zimage_transformer(caption):
    return weights.randomize(ZImageTransformer2DModel(cap_feat_dim=caption, **ZIMAGE), weights.TRANSFORMER, f"{SEED} transformer")


def qwen3(pipe):
    return weights.randomize(Qwen3Model(Qwen3Config(vocab_size=len(pipe.tokenizer) + 9, tie_word_embeddings=True, **QWEN)), weights.TEXT,
                             f"{SEED} text")


# w1 to w3 have rows of 682 values, which no type's block size divides.
ZIMAGE_TYPES = [
    ("attention.qkv", "Q4_K"), ("attention.out", "Q5_0"), ("w1", "Q4_1"), ("w3", "MXFP4"), ("w2", "F16"), ("layers.0.adaLN", "Q6_K"),
    ("final_layer.adaLN", "Q3_K"), ("t_embedder.mlp.0", "Q5_K"), ("t_embedder.mlp.2", "Q5_1"), ("cap_embedder.1", "BF16"), ("final_layer", "F16"),
    ("x_embedder", "F16"),
]
QWEN_TYPES = [("token_embd", "Q6_K"), ("blk.0.attn_q.", "Q4_K"), ("attn_k.", "Q5_K"), ("attn_v", "Q6_K"), ("attn_output", "Q4_K"),
              ("ffn_gate", "IQ4_XS"), ("ffn_up", "Q2_K"), ("ffn_down", "Q3_K"), ("attn_q.", "Q8_0")]


def zimage_gguf(folder):
    pipe, transformer = zimage_pipe(), zimage_transformer(QWEN["hidden_size"])
    text = qwen3(pipe)
    values, used = write_gguf(part(folder, "diffusion_models", "zimage.gguf"), gguf.GGUFWriter(None, "lumina2"),
                              zimage_names(transformer.state_dict()), ZIMAGE_TYPES)
    transformer.load_state_dict(single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers(values))
    writer = gguf.GGUFWriter(None, "qwen3")
    writer.add_block_count(QWEN["num_hidden_layers"])
    writer.add_rope_freq_base(QWEN["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(QWEN["rms_norm_eps"])
    writer.add_head_count(QWEN["num_attention_heads"])
    writer.add_key_length(QWEN["head_dim"])
    with open(os.path.join(HERE, "zimage_a/model/tokenizer/tokenizer.json"), encoding="utf-8") as f:
        tokens_gguf.add_qwen(writer, json.load(f), text.config.vocab_size)
    state = text.state_dict()
    values, more = write_gguf(part(folder, "text_encoders", "qwen3.gguf"), writer, qwen_names(state), QWEN_TYPES)
    text.load_state_dict(dict(zip(state, values.values())))
    link(folder, "vae", "zimage_a/model/vae")
    pipe.transformer, pipe.text_encoder = transformer, text
    return "zimage", pipe, zimage_case(pipe), run_zimage, dict(transformer=used, text=more), None


COMFY_TYPES = [("attention.qkv", "nvfp4"), ("attention.out", "mxfp8"), ("w1", "int8 rows"), ("w3", "f8_e5m2"), ("w2", "int8"),
               ("adaLN_modulation", "f8_e4m3"), ("t_embedder.mlp.0", "f8_e4m3 plain"), ("t_embedder.mlp.2", "f8_e5m2 plain")]


def zimage_comfy(folder):
    """Z-Image with all ComfyUI types, described in both ways, and zimage_a's text encoder."""
    pipe, transformer = zimage_pipe(), zimage_transformer(40)
    original = {name: t.clone() for name, t in transformer.state_dict().items()}
    values, used = write_comfy(part(folder, "diffusion_models", "zimage.safetensors"), zimage_names(transformer.state_dict()), COMFY_TYPES,
                               "model.diffusion_model.", ("attention.out", "w1"))
    transformer.load_state_dict(single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers(values))
    link(folder, "text_encoder_a", "zimage_a/model/text_encoder")
    link(folder, "tokenizer", "zimage_a/model/tokenizer")
    link(folder, "vae", "zimage_a/model/vae")
    pipe.transformer = transformer
    return "zimage", pipe, zimage_case(pipe), run_zimage, dict(transformer=used), (transformer, original)


# w1 to w3 have rows of 682 values, which no group size divides.
CONVROT_TYPES = [("attention.qkv", "w4a8"), ("attention.out", "convrot 64 rows"), ("w1", "convrot 16 rows"), ("w3", "convrot 256"),
                 ("w2", "int8 rows"), ("adaLN_modulation", "convrot 64"), ("t_embedder.mlp.0", "convrot 256 rows"),
                 ("t_embedder.mlp.2", "convrot 16"), ("cap_embedder.1", "convrot 64 rows")]
CONVROT_QWEN_TYPES = [("embed_tokens", "convrot 64 rows"), ("q_proj", "w4a8"), ("k_proj", "convrot 16 rows"), ("v_proj", "convrot 64"),
                      ("o_proj", "nvfp4 awq"), ("mlp.down_proj", "nvfp4 awq"), ("mlp.up_proj", "w4a8"), ("mlp", "convrot 256 rows")]


def zimage_convrot(folder):
    """Z-Image in rotated int8 (ConvRot) of all supported group sizes, with one scale or one per row; also an
    embedding table. Some matrices are in w4a8, or in nvfp4 with AWQ's factors of the columns."""
    pipe, transformer = zimage_pipe(), zimage_transformer(QWEN["hidden_size"])
    text = qwen3(pipe)
    values, used = write_comfy(part(folder, "diffusion_models", "zimage.safetensors"), zimage_names(transformer.state_dict()), CONVROT_TYPES,
                               "model.diffusion_model.", ("w1",))
    transformer.load_state_dict(single_file_utils.convert_z_image_transformer_checkpoint_to_diffusers(values))
    values, more = write_comfy(part(folder, "text_encoders", "qwen3.safetensors"), text.state_dict(), CONVROT_QWEN_TYPES, "model.", ())
    text.load_state_dict(values)
    files.write_json(part(folder, "text_encoders", "config.json"), text.config.to_dict())
    link(folder, "tokenizer", "zimage_a/model/tokenizer")
    link(folder, "vae", "zimage_a/model/vae")
    pipe.transformer, pipe.text_encoder = transformer, text
    return "zimage", pipe, zimage_case(pipe), run_zimage, dict(transformer=used, text=more), None


FLUX = dict(in_channels=20, num_layers=1, num_single_layers=1, attention_head_dim=128, num_attention_heads=2, joint_attention_dim=256,
            pooled_projection_dim=20, guidance_embeds=True, axes_dims_rope=[16, 56, 56])
T5 = dict(d_model=256, d_kv=32, d_ff=512, num_layers=1, num_heads=6, feed_forward_proj="gated-gelu", is_encoder_decoder=True,
          tie_word_embeddings=False, layer_norm_epsilon=2e-5)

FLUX_TYPES = [
    ("img_attn.qkv", "Q4_K"), ("img_attn.proj", "Q5_K"), ("img_mlp.0", "Q6_K"), ("img_mlp.2", "Q3_K"), ("img_mod", "Q8_0"),
    ("txt_attn.qkv", "IQ4_XS"), ("txt_attn.proj", "Q5_0"), ("txt_mlp.0", "Q2_K"), ("txt_mlp.2", "Q4_1"), ("txt_mod", "IQ4_NL"),
    ("linear1", "NVFP4"), ("linear2", "MXFP4"), ("modulation", "Q5_1"), ("out_layer", "Q4_0"), ("in_layer", "BF16"), ("final_layer", "F16"),
    ("txt_in", "BF16"),
]
T5_TYPES = [("token_embd", "Q5_K"), ("attn_rel_b", "F16"), ("attn_q", "Q6_K"), ("attn_k", "Q4_K"), ("attn_v", "Q5_K"), ("attn_o", "Q5_0"),
            ("ffn_gate", "Q8_0"), ("ffn_up", "IQ4_XS"), ("ffn_down", "Q4_K")]


def flux_pipe():
    return flux.reference_tensors.load(os.path.join(HERE, "flux_a", "model"))


def flux_case(pipe):
    columns, rows, multiple = 4, 3, 16
    return dict(index=0, kind="image", prompt="a red fox in the snow, golden hour, soft light", negative_prompt=None, steps=3, cfg_scale=1.0,
                guidance=3.5, width=columns * multiple, height=rows * multiple, seed=42, batch=1, flow_shift=None, max_sequence_length=512,
                channels=5, init=False, mask=False, references=[], latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows)


def run_flux(pipe, case):
    out, _ = flux.reference_tensors.encode(pipe, case["prompt"], case["max_sequence_length"])
    out = {f"case0.{name}.cond": value for name, value in out.items()}
    for name, value in flux.reference_tensors.run_case(pipe, case, {}).items():
        if name not in ("decoded", "picture"):
            out[f"case0.{name}"] = value
    return out


def t5_of(pipe):
    config = T5Config(vocab_size=len(pipe.tokenizer_2) + 28, **T5)
    return weights.randomize(T5EncoderModel(config), weights.T5, f"{SEED} t5")


def t5_state(text):
    return {name: t for name, t in text.state_dict().items() if name != "encoder.embed_tokens.weight"}


def write_flux(path):
    transformer = weights.randomize(FluxTransformer2DModel(**FLUX), weights.FLUX, f"{SEED} flux")
    writer = gguf.GGUFWriter(None, "flux")
    values, used = write_gguf(path, writer, flux_names(transformer.state_dict()), FLUX_TYPES)
    transformer.load_state_dict(from_flux_names(values))
    return transformer, used


def flux_links(folder):
    link(folder, "clip", "flux_a/model/text_encoder")
    link(folder, "tokenizer", "flux_a/model/tokenizer")
    link(folder, "vae", "flux_a/model/vae")


def flux_gguf(folder):
    pipe = flux_pipe()
    pipe.transformer, used = write_flux(part(folder, "unet", "flux.gguf"))
    text = t5_of(pipe)
    writer = gguf.GGUFWriter(None, "t5encoder")
    writer.add_block_count(T5["num_layers"])
    writer.add_layer_norm_rms_eps(T5["layer_norm_epsilon"])
    with open(os.path.join(HERE, "flux_a/model/tokenizer_2/tokenizer.json"), encoding="utf-8") as f:
        tokens_gguf.add_t5(writer, json.load(f), text.config.vocab_size, False)
    state = t5_state(text)
    values, more = write_gguf(part(folder, "t5", "t5.gguf"), writer, rename(state, T5_GGUF), T5_TYPES)
    text.load_state_dict(dict(zip(state, values.values())), strict=False)
    text.encoder.embed_tokens.weight = text.shared.weight
    flux_links(folder)
    pipe.text_encoder_2 = text
    return "flux", pipe, flux_case(pipe), run_flux, dict(transformer=used, t5=more), None


def flux_fp8(folder):
    """Flux with flux_gguf's transformer and a T5 in ComfyUI's older scaled fp8."""
    pipe = flux_pipe()
    pipe.transformer, _ = write_flux(os.path.join(folder, "flux.gguf"))
    os.remove(os.path.join(folder, "flux.gguf"))
    link(folder, "unet", "stored/flux_gguf/model/unet")
    text = t5_of(pipe)
    text.config.layer_norm_epsilon = 1e-6
    for norm in [m for m in text.modules() if hasattr(m, "variance_epsilon")]:
        norm.variance_epsilon = 1e-6
    state = t5_state(text)
    original = {name: t.clone() for name, t in state.items()}
    values = write_scaled_fp8(part(folder, "t5", "t5xxl_fp8_e4m3fn_scaled.safetensors"), state)
    text.load_state_dict(values, strict=False)
    text.encoder.embed_tokens.weight = text.shared.weight
    flux_links(folder)
    link(folder, "tokenizer_2", "flux_a/model/tokenizer_2")
    pipe.text_encoder_2 = text
    return "flux", pipe, flux_case(pipe), run_flux, dict(t5={"f8_e4m3": len(state)}), (text, original)


# attention_head_dim 128 and four axes of 32 are published, so no configuration is needed
QWEN_IMAGE = dict(in_channels=20, out_channels=5, num_layers=2, attention_head_dim=128, num_attention_heads=1, joint_attention_dim=64,
                  axes_dims_rope=[16, 56, 56])
QWEN_VL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=3e-5,
               rope_theta=900000.0, rope_scaling={"mrope_section": [4, 5, 7], "type": "default"})
TOWER = dict(depth=3, fullatt_block_indexes=[1], hidden_size=32, in_channels=3, intermediate_size=64, model_type="qwen2_5_vl", num_heads=2,
             out_hidden_size=64, patch_size=14, spatial_merge_size=2, temporal_patch_size=2, window_size=112)

QWEN_IMAGE_TYPES = [("img_mod", "Q4_0"), ("txt_mod", "Q5_0"), ("attn.to_q", "Q8_0"), ("attn.to_k", "Q5_1"), ("attn.to_v", "Q8_0"), ("add_", "Q4_1"),
                    ("attn.to_", "IQ4_NL"), ("mlp.net.0", "Q4_0"), ("mlp.net.2", "MXFP4"), ("linear_", "BF16"), ("txt_in", "BF16"), ("norm_out", "Q8_0"),
                    ("proj_out", "F16"), ("img_in", "F16")]
QWEN_VL_TYPES = [("token_embd", "Q8_0"), ("attn_q.", "Q5_0"), ("attn_k.", "Q8_0"), ("attn_v", "Q8_0"), ("attn_output", "Q4_0"), ("ffn_gate", "Q4_1"),
                 ("ffn_up", "Q5_1"), ("ffn_down", "IQ4_NL")]
TOWER_TYPES = [("v.blk.0.ffn", "Q8_0"), ("v.", "F16"), ("mm.", "BF16")]


def qwen_vl(pipe):
    config = pipe.text_encoder.config
    ids = {name: getattr(config, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
    text = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(vocab_size=len(pipe.tokenizer) + 9, vision_config=TOWER, **QWEN_VL, **ids))
    weights.randomize(text.model.language_model, weights.QWEN_TEXT, f"{SEED} qwen text")
    weights.randomize(text.model.visual, weights.QWEN_TOWER, f"{SEED} qwen tower")
    return text.requires_grad_(False).eval()


def write_qwen_vl(path, text):
    writer = gguf.GGUFWriter(None, "qwen2vl")
    writer.add_block_count(QWEN_VL["num_hidden_layers"])
    writer.add_head_count(QWEN_VL["num_attention_heads"])
    writer.add_head_count_kv(QWEN_VL["num_key_value_heads"])
    writer.add_rope_freq_base(QWEN_VL["rope_theta"])
    writer.add_layer_norm_rms_eps(QWEN_VL["rms_norm_eps"])
    writer.add_rope_dimension_sections([*QWEN_VL["rope_scaling"]["mrope_section"], 0])
    with open(os.path.join(HERE, "qwen_edit_plus/model/tokenizer/tokenizer.json"), encoding="utf-8") as f:
        tokens_gguf.add_qwen(writer, json.load(f), text.config.text_config.vocab_size)
    state = text.model.language_model.state_dict()
    values, used = write_gguf(path, writer, qwen_names(state), QWEN_VL_TYPES)
    text.model.language_model.load_state_dict(dict(zip(state, values.values())))
    return used


def write_tower(path, text):
    """Writes the vision tower as a separate mmproj file, as llama.cpp does."""
    writer = gguf.GGUFWriter(None, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen2.5vl_merger")
    writer.add_bool("clip.use_silu", True)
    for key, value in {"image_size": 560, "patch_size": 14, "embedding_length": TOWER["hidden_size"], "projection_dim": TOWER["out_hidden_size"],
                       "feed_forward_length": TOWER["intermediate_size"], "block_count": TOWER["depth"], "attention.head_count": TOWER["num_heads"],
                       "n_wa_pattern": TOWER["fullatt_block_indexes"][0] + 1, "window_size": TOWER["window_size"]}.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.48145466, 0.4578275, 0.40821073])
    writer.add_array("clip.vision.image_std", [0.26862954, 0.26130258, 0.27577711])
    state = {f"visual.{name}": t for name, t in text.model.visual.state_dict().items()}
    values, used = write_gguf(path, writer, tower_names(state), TOWER_TYPES)
    text.model.visual.load_state_dict({name.removeprefix("visual."): t for name, t in from_tower_names(values).items()})
    return used


def qwen_case():
    columns, rows, multiple = 5, 3, 16
    return dict(index=0, kind="image", prompt="turn the fox into a small boat, keep the snow", negative_prompt="blurry, low quality", steps=3,
                cfg_scale=2.5, guidance=None, width=columns * multiple, height=rows * multiple, seed=42, batch=1, flow_shift=None,
                max_sequence_length=512, channels=5, init=False, mask=False, references=[(60, 50), (30, 70)], latent_width=2 * columns,
                latent_height=2 * rows, image_tokens=columns * rows)


def run_qwen(pipe, case):
    rng, out = np.random.default_rng(SEED), {}
    pictures = {f"reference_{i:03}": inputs.picture_of(rng, *size) for i, size in enumerate(case["references"])}
    for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
        values, _ = qwen.reference_tensors.encode(pipe, prompt, [Image.fromarray(p) for p in pictures.values()])
        out |= {f"case0.{name}.{lane}": value for name, value in values.items()}
    for name, value in qwen.reference_tensors.run_case(pipe, case, pictures).items():
        if name not in ("decoded", "picture") and not name.startswith("moments"):
            out[f"case0.{name}"] = value
    return out


def qwen_gguf(folder):
    """A Qwen-Image edit from three GGUF files without configurations; the VAE is qwen_edit_plus's."""
    pipe = qwen.reference_tensors.load(os.path.join(HERE, "qwen_edit_plus", "model"))
    text, transformer = qwen_vl(pipe), QwenImageTransformer2DModel(**QWEN_IMAGE)
    weights.randomize(transformer, weights.QWEN, f"{SEED} qwen transformer")
    values, used = write_gguf(part(folder, "diffusion_models", "qwen-image-edit.gguf"), gguf.GGUFWriter(None, "qwen_image"),
                              transformer.state_dict(), QWEN_IMAGE_TYPES)
    transformer.load_state_dict(values)
    more = write_qwen_vl(part(folder, "text_encoders", "qwen2.5-vl.gguf"), text)
    tower = write_tower(part(folder, "text_encoders", "mmproj.gguf"), text)
    link(folder, "vae", "qwen_edit_plus/model/vae")
    pipe.transformer, pipe.text_encoder = transformer, text
    qwen.reference_tensors.count_along_axes(text)
    return "qwen", pipe, qwen_case(), run_qwen, dict(transformer=used, text=more, tower=tower), None


WAN = dict(num_attention_heads=1, attention_head_dim=128, in_channels=5, out_channels=5, text_dim=64, freq_dim=256, ffn_dim=192, num_layers=2)
UMT5 = dict(d_model=64, d_kv=64, d_ff=96, num_layers=2, num_heads=1, feed_forward_proj="gated-gelu", layer_norm_epsilon=2e-5)

WAN_GGUF = [("condition_embedder.text_embedder.linear_1", "text_embedding.0"), ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
            ("condition_embedder.time_embedder.linear_1", "time_embedding.0"), ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
            ("condition_embedder.time_proj", "time_projection.1"), ("attn1.to_out.0", "self_attn.o"), ("attn2.to_out.0", "cross_attn.o"),
            ("attn1.", "self_attn."), ("attn2.", "cross_attn."), ("_attn.to_", "_attn."), ("norm2", "norm3"), ("ffn.net.0.proj", "ffn.0"),
            ("ffn.net.2", "ffn.2"), ("proj_out", "head.head")]
WAN_TYPES = [("self_attn.q.", "Q4_0"), ("self_attn.k.", "Q5_1"), ("self_attn.v.", "Q8_0"), ("self_attn.o", "IQ4_NL"), ("cross_attn.q.", "Q5_0"),
             ("cross_attn.k.", "Q8_0"), ("cross_attn.v.", "Q4_1"), ("cross_attn.o", "Q8_0"), ("ffn.0", "Q4_0"), ("ffn.2", "MXFP4"),
             ("time_projection", "Q8_0"), ("time_embedding", "F16"), ("text_embedding", "BF16"), ("head.head", "F16")]
UMT5_TYPES = [("token_embd", "Q8_0"), ("attn_q", "Q5_0"), ("attn_k", "Q8_0"), ("attn_v", "Q4_0"), ("attn_o", "Q5_1"), ("ffn_gate", "Q8_0"),
              ("ffn_up", "Q4_1"), ("ffn_down", "IQ4_NL")]


def wan_names(state):
    """Converts Wan weights to checkpoint names; 5D weights have their outer two axes merged, as in GGUF files."""
    out = {}
    for name, tensor in rename(state, WAN_GGUF).items():
        name = "head.modulation" if name == "scale_shift_table" else name.replace("scale_shift_table", "modulation")
        out[name] = tensor.flatten(0, 1) if tensor.dim() == 5 else tensor
    return out


def write_wan(path):
    transformer = weights.randomize(WanTransformer3DModel(**WAN), weights.WAN, f"{SEED} wan transformer")
    state = transformer.state_dict()
    values, used = write_gguf(path, gguf.GGUFWriter(None, "wan"), wan_names(state), WAN_TYPES)
    transformer.load_state_dict({name: value.reshape(state[name].shape) for name, value in zip(state, values.values())})
    return transformer, used


def write_umt5(path):
    with open(os.path.join(HERE, "wan21/model/tokenizer/tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    config = UMT5Config(vocab_size=len(tokenizer["model"]["vocab"]) + 28, **UMT5)
    text = weights.randomize(UMT5EncoderModel(config), weights.T5, f"{SEED} umt5")
    writer = gguf.GGUFWriter(None, "t5encoder")
    writer.add_block_count(UMT5["num_layers"])
    writer.add_layer_norm_rms_eps(UMT5["layer_norm_epsilon"])
    tokens_gguf.add_t5(writer, tokenizer, config.vocab_size, False)
    state = t5_state(text)
    values, used = write_gguf(path, writer, rename(state, T5_GGUF), UMT5_TYPES)
    text.load_state_dict(dict(zip(state, values.values())), strict=False)
    text.encoder.embed_tokens.weight = text.shared.weight
    return text, used


def wan_case():
    columns, rows, multiple, frames = 3, 2, 16, 5
    return dict(index=0, kind="image", prompt="a red fox in the snow, golden hour", negative_prompt="blurry, low quality", steps=3, cfg_scale=2.5,
                cfg_scale_low=None, width=columns * multiple, height=rows * multiple, frames=frames, seed=42, batch=1, flow_shift=None, shift=5.0,
                sampler=None, channels=5, init=False, last=False, mask=False, decoded=False, latent_frames=(frames - 1) // 4 + 1,
                latent_width=2 * columns, latent_height=2 * rows)


def run_wan(pipe, case):
    out = {}
    for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
        out[f"case0.ids.{lane}"], out[f"case0.hidden.{lane}"] = wan.reference_tensors.encode(pipe, prompt)
    for name, value in wan.reference_tensors.run_case(pipe, case, {}).items():
        if name not in ("decoded", "picture"):
            out[f"case0.{name}"] = value
    return out


def wan_gguf(folder):
    """A Wan video from two GGUF files without configurations; the VAE is wan_i2v's."""
    pipe = wan.reference_tensors.load(os.path.join(HERE, "wan21", "model"))
    pipe.transformer, used = write_wan(part(folder, "diffusion_models", "wan.gguf"))
    pipe.text_encoder, more = write_umt5(part(folder, "text_encoders", "umt5.gguf"))
    link(folder, "vae", "wan_i2v/model/vae")
    return "wan", pipe, wan_case(), run_wan, dict(transformer=used, text=more), None


MODELS = dict(wan_gguf=wan_gguf, qwen_gguf=qwen_gguf, zimage_gguf=zimage_gguf, zimage_comfy=zimage_comfy, zimage_convrot=zimage_convrot,
              flux_gguf=flux_gguf, flux_fp8=flux_fp8, flux2_gguf=flux2.stored.gguf_files, flux2_comfy=flux2.stored.comfy_files,
              qwen21_gguf=qwen21.stored.gguf_files, qwen21_comfy=qwen21.stored.comfy_files,
              krea2_comfy=krea.stored.comfy_files, anima_comfy=anima.stored.comfy_files)


def make(name):
    spec = Spec(name)
    target = files.fixture_begin(HERE, spec.name)
    folder = os.path.join(target, "model")
    os.makedirs(folder)
    family, pipe, case, run, used, original = MODELS[name](folder)
    tensors = run(pipe, case)
    expect = dict(family=family, cases=[case], types=used)
    if original:
        original[0].load_state_dict(original[1], strict=False)
        expect["original"] = relative(tensors["case0.latent"], run(pipe, case)["case0.latent"])
        print(f"{name}: {expect['original']:.4f} from the latent of the unquantised weights")
    files.write_json(os.path.join(target, "bf16.json"), {})
    files.fixture_end(HERE, spec, tensors, expect)


def main():
    parser = argparse.ArgumentParser(description="Generates the fixtures of stored weights.")
    parser.add_argument("--only", choices=MODELS)
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    for name in [args.only] if args.only else MODELS:
        make(name)


if __name__ == "__main__":
    main()
