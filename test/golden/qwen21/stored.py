"""Stored forms of Qwen-Image-2.1, for ../stored.py."""

import json
import os

import gguf
import numpy as np
import torch
from diffusers import QwenImage21Transformer2DModel
from PIL import Image
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

import inputs
import tokens_gguf
import vae_qwen21
import weights
from files import write_json
from qwen3vl_gguf import tower_name, tower_names
from stored_files import HERE, SEED, fuse, link, part, qwen_names, rename, write_comfy, write_gguf

from . import reference_tensors

OWNER = "qwen_image_21_ref/model"
# head size and rope axes as published, so no configuration is needed
PUBLISHED_HEAD = dict(num_layers=2, attention_head_dim=128, num_attention_heads=1, context_in_dim=64)
SMALL = dict(num_layers=2, attention_head_dim=32, num_attention_heads=2, context_in_dim=64, axes_dims_rope=[8, 8, 16])
TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=32, rms_norm_eps=3e-5,
            max_position_embeddings=1024, rope_theta=900000.0, rope_scaling=dict(mrope_interleaved=True, mrope_section=[6, 5, 5], rope_type="default"))
TOWER = dict(depth=3, deepstack_visual_indexes=[0, 1, 2], hidden_size=32, in_channels=3, intermediate_size=64, num_heads=2, out_hidden_size=64,
             num_position_embeddings=25, patch_size=16, spatial_merge_size=2, temporal_patch_size=2)

# Rows of 128 values: no K-quant divides them.
TYPES = [("attn.to_q", "Q8_0"), ("attn.to_k", "Q5_1"), ("attn.to_v", "Q8_0"), ("attn.to_out", "IQ4_NL"), ("gate_up", "Q4_0"), ("img_mlp.out", "Q4_1"),
         ("modulation", "Q8_0"), ("linear_1", "BF16"), ("linear_2", "Q5_0"), ("txt_in", "BF16"), ("norm_out", "F16")]
TEXT_TYPES = [("token_embd", "Q8_0"), ("attn_q.", "Q5_0"), ("attn_k.", "Q8_0"), ("attn_v", "Q8_0"), ("attn_output", "Q4_0"), ("ffn_gate", "Q4_1"),
              ("ffn_up", "Q5_1"), ("ffn_down", "IQ4_NL")]
TOWER_TYPES = [("v.blk.0.ffn", "Q8_0"), ("v.position_embd", "F32"), ("v.", "F16"), ("mm.", "BF16")]
# As in Comfy-Org's int8_convrot files, blocks are rotated int8.
COMFY_TYPES = [("transformer_blocks.1.img_mlp.gate_up", "mxfp8"), ("attn", "convrot 64 rows"), ("img_mlp", "convrot 64 rows"), ("modulation", "f8_e4m3")]
COMFY_TEXT_TYPES = [("model.embed_tokens", "f8_e4m3"), ("model.layers.0.mlp", "int8 rows"), ("model.layers", "convrot 16 rows")]


def names(state):
    """Converts the transformer to the names of ComfyUI's and GGUF files, which fuse gate_layer and proj."""
    state = dict(state)
    for block in sorted({n.split(".img_mlp.")[0] for n in state if ".img_mlp." in n}):
        fuse(state, f"{block}.img_mlp.gate_up", [f"{block}.img_mlp.gate_layer", f"{block}.img_mlp.proj"])
    return state


def of_names(values):
    """Returns the transformer's state dict: the inverse of names."""
    out = {}
    for name, value in values.items():
        if ".gate_up." in name:
            out |= dict(zip((name.replace("gate_up", "gate_layer"), name.replace("gate_up", "proj")), value.chunk(2)))
        else:
            out[name] = value
    return out


def of_tower_names(values, state):
    """Returns the vision tower's state dict, with the shapes of `state`: the inverse of tower_names."""
    values = values | {"v.patch_embd.weight": torch.stack([values["v.patch_embd.weight"], values["v.patch_embd.weight.1"]], dim=2)}
    return {name: values[tower_name(name, TOWER['deepstack_visual_indexes'])].reshape(tensor.shape) for name, tensor in state.items()}


def text_encoder(pipe):
    config = pipe.text_encoder.config
    ids = {name: getattr(config, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
    text = Qwen3VLForConditionalGeneration(Qwen3VLConfig(
        text_config=TEXT | dict(vocab_size=len(pipe.processor.tokenizer) + 9, model_type="qwen3_vl_text"),
        vision_config=TOWER | dict(model_type="qwen3_vl"), **ids))
    weights.randomize(text.model.language_model, weights.TEXT, f"{SEED} qwen21 text")
    weights.randomize(text.model.visual, weights.QWEN3VL_TOWER, f"{SEED} qwen21 tower")
    return text.requires_grad_(False).eval()


def parts(form, vae):
    """Returns the pipeline with another transformer, text encoder and, if given, VAE."""
    pipe = reference_tensors.load(os.path.join(HERE, OWNER))
    text, components = text_encoder(pipe), dict(vae=vae) if vae else {}
    channels = (vae or pipe.vae).config.z_dim
    transformer = QwenImage21Transformer2DModel(in_channels=channels, out_channels=channels, **form)
    weights.randomize(transformer, weights.QWEN21, f"{SEED} qwen21 transformer")
    pipe = type(pipe)(**(pipe.components | components | dict(transformer=transformer.eval(), text_encoder=text)))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def case(pipe):
    columns, rows = 2, 1
    return dict(index=0, kind="image", prompt="turn the fox into a boat", negative_prompt="ugly", steps=2, cfg_scale=2.5,
                guidance=None, width=32 * columns, height=32 * rows, seed=42, batch=1, flow_shift=None, max_sequence_length=None,
                channels=pipe.vae.config.z_dim, init=False, mask=False, references=[(60, 50)], latent_width=2 * columns, latent_height=2 * rows,
                image_tokens=4 * columns * rows)


def run(pipe, one):
    rng, out = np.random.default_rng(SEED), {}
    pictures = {f"reference_{i:03}": np.concatenate([inputs.picture_of(rng, *size), inputs.alpha_of(rng, *size)], axis=2)
                for i, size in enumerate(one["references"])}
    for lane in ("cond", "uncond"):
        values = reference_tensors.encode(pipe, one["prompt" if lane == "cond" else "negative_prompt"], [Image.fromarray(p) for p in pictures.values()])
        out |= {f"case0.{name}.{lane}": value for name, value in values.items()}
    for name, value in reference_tensors.run_case(pipe, one, pictures).items():
        if name not in ("decoded", "picture") and not name.startswith("moments"):
            out[f"case0.{name}"] = value
    return out


def pixel_bounds(path):
    """Copies the image processor's configuration to the vision tower's folder. The published pixel bounds would enlarge the
    references."""
    with open(os.path.join(HERE, OWNER, "processor", "preprocessor_config.json"), encoding="utf-8") as f:
        write_json(os.path.join(os.path.dirname(path), "preprocessor_config.json"), json.load(f))


def write_text(path, pipe):
    """Writes the language model as llama.cpp does. Returns counts of types."""
    writer = gguf.GGUFWriter(None, "qwen3vl")
    writer.add_block_count(TEXT["num_hidden_layers"])
    writer.add_head_count(TEXT["num_attention_heads"])
    writer.add_head_count_kv(TEXT["num_key_value_heads"])
    writer.add_key_length(TEXT["head_dim"])
    writer.add_rope_freq_base(TEXT["rope_theta"])
    writer.add_layer_norm_rms_eps(TEXT["rms_norm_eps"])
    writer.add_rope_dimension_sections([*TEXT["rope_scaling"]["mrope_section"], 0])
    writer.add_uint32("qwen3vl.n_deepstack_layers", len(TOWER["deepstack_visual_indexes"]))
    with open(os.path.join(HERE, OWNER, "processor", "tokenizer.json"), encoding="utf-8") as f:
        tokens_gguf.add_qwen(writer, json.load(f), pipe.text_encoder.config.text_config.vocab_size)
    model = pipe.text_encoder.model.language_model
    state = model.state_dict()
    values, used = write_gguf(path, writer, qwen_names(state), TEXT_TYPES)
    model.load_state_dict(dict(zip(state, values.values())))
    return used


def write_tower(path, pipe):
    """Writes the vision tower as a separate mmproj file, as llama.cpp does."""
    writer = gguf.GGUFWriter(None, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", True)
    for key, value in {"image_size": 80, "patch_size": 16, "embedding_length": TOWER["hidden_size"], "projection_dim": TOWER["out_hidden_size"],
                       "feed_forward_length": TOWER["intermediate_size"], "block_count": TOWER["depth"], "attention.head_count": TOWER["num_heads"],
                       "spatial_merge_size": 2}.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.is_deepstack_layers", [i in TOWER["deepstack_visual_indexes"] for i in range(TOWER["depth"])])
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    state = pipe.text_encoder.model.visual.state_dict()
    values, used = write_gguf(path, writer, tower_names(state, TOWER["deepstack_visual_indexes"]), TOWER_TYPES)
    pipe.text_encoder.model.visual.load_state_dict(of_tower_names(values, state))
    pixel_bounds(path)
    return used


def gguf_files(folder):
    """Qwen-Image-2.1 from three GGUF files without configurations; the VAE is qwen_image_21_ref's."""
    pipe = parts(PUBLISHED_HEAD, None)
    values, used = write_gguf(part(folder, "diffusion_models", "qwen-image-2.1.gguf"), gguf.GGUFWriter(None, "qwen_image"),
                              names(pipe.transformer.state_dict()), TYPES)
    pipe.transformer.load_state_dict(of_names(values))
    more = write_text(part(folder, "text_encoders", "qwen3vl.gguf"), pipe)
    tower = write_tower(part(folder, "text_encoders", "mmproj.gguf"), pipe)
    link(folder, "vae", f"{OWNER}/vae")
    return "qwen21", pipe, case(pipe), run, dict(transformer=used, text=more, tower=tower), None


def bf16(state):
    return {name: t.bfloat16() for name, t in state.items()}


def comfy_vae(folder):
    """Links the VAE with the authors' names, and returns it."""
    os.makedirs(os.path.join(folder, "vae"))
    for name, to in (("qwen_image_2.1_vae_bf16.safetensors", "diffusion_pytorch_model.safetensors"), ("config.json", "config.json")):
        os.symlink(os.path.join("../../../../vae_qwen21/authors", to), os.path.join(folder, "vae", name))
    spec = vae_qwen21.SPECS["authors"]
    vae = weights.randomize(vae_qwen21.build(spec), weights.VAE_WAN, f"{spec['seed']} vae qwen21")
    vae.load_state_dict({name: t.to(spec["dtype"]).float() for name, t in vae.state_dict().items()})
    return vae


def comfy_files(folder):
    """Qwen-Image-2.1 as ComfyUI reads it: gate_up in one tensor, language model and vision tower in one file, Wan's names in
    the VAE. Small files with configurations."""
    pipe = parts(SMALL, comfy_vae(folder))
    path = part(folder, "diffusion_models", "qwen_image_2.1_int8_convrot.safetensors")
    pipe.transformer.save_config(os.path.dirname(path))
    values, used = write_comfy(path, names(bf16(pipe.transformer.state_dict())), COMFY_TYPES, "model.diffusion_model.", ("attn",))
    pipe.transformer.load_state_dict(of_names(values))
    path = part(folder, "text_encoders", "qwen3vl_8b_int8_convrot.safetensors")
    model = pipe.text_encoder.model
    state = {f"model.{name}": t for name, t in model.language_model.state_dict().items()} | {f"visual.{n}": t for n, t in model.visual.state_dict().items()}
    values, more = write_comfy(path, bf16(state), COMFY_TEXT_TYPES, "", ())
    model.language_model.load_state_dict({n.removeprefix("model."): t for n, t in values.items() if n.startswith("model.")})
    model.visual.load_state_dict({n.removeprefix("visual."): t for n, t in values.items() if n.startswith("visual.")})
    config = dict(architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", vision_config=TOWER | dict(model_type="qwen3_vl"),
                  text_config=TEXT | dict(model_type="qwen3_vl_text", vocab_size=pipe.text_encoder.config.text_config.vocab_size))
    write_json(os.path.join(os.path.dirname(path), "config.json"), config)
    pixel_bounds(path)
    link(folder, "processor", f"{OWNER}/processor")
    return "qwen21", pipe, case(pipe), run, dict(transformer=used, text=more), None
