"""Names of Krea 2's authors, for ../adapters.py, and a stored form, for ../stored.py."""

import os

import torch
from diffusers import Krea2Transformer2DModel
from diffusers.loaders import single_file_utils
from transformers import Qwen3VLConfig, Qwen3VLModel

import weights
from stored_files import HERE, SEED, guided_case, link, part, rename, write_comfy

from . import reference_tensors

# The rope axes follow from the head size.
KREA = dict(in_channels=20, num_layers=1, attention_head_dim=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=256, text_hidden_dim=16,
            num_text_layers=12, text_num_attention_heads=2, text_num_key_value_heads=2, text_intermediate_size=32, num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1, axes_dims_rope=[4, 6, 6])
# head size, theta, eps and sections as published
QWEN = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=36, num_attention_heads=1, num_key_value_heads=1, head_dim=128, rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=5000000.0, mrope_section=[24, 20, 20], mrope_interleaved=True))
TOWER = dict(depth=1, hidden_size=8, num_heads=2, intermediate_size=12, out_hidden_size=16, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
             num_position_embeddings=16, deepstack_visual_indexes=[0])
# None: the tensor stays in bf16
TYPES = [*[(name, None) for name in ("projector", "txtmlp", "tmlp", "tproj", "first", "last")], ("txtfusion.layerwise_blocks.0.attn.wv", "nvfp4"),
         ("txtfusion", "f8_e4m3"), ("attn.wk", "nvfp4"), ("attn.gate", "convrot 64 rows"), ("mlp.up", "nvfp4"), ("mlp.down", "w4a8"),
         ("blocks.0", "f8_e4m3")]
QWEN_TYPES = [("visual.", None), ("proj", "f8_e4m3")]


def names(state):
    """The authors' names, by the inverse of diffusers' conversion."""
    state = {name: t.reshape(-1) if name.endswith(".scale_shift_table") and "blocks." in name else t for name, t in state.items()}
    return rename(state, [
        ("transformer_blocks.", "blocks."), ("text_fusion.", "txtfusion."), (".attn.to_out.0.", ".attn.wo."), (".attn.to_gate.", ".attn.gate."),
        *[(f".attn.to_{p}.", f".attn.w{p}.") for p in "qkv"], *[(f".attn.norm_{p}.weight", f".attn.qknorm.{p}norm.scale") for p in "qk"],
        (".ff.", ".mlp."), (".norm1.weight", ".prenorm.scale"), (".norm2.weight", ".postnorm.scale"), ("txt_in.norm.weight", "txtmlp.0.scale"),
        ("txt_in.linear_1.", "txtmlp.1."), ("txt_in.linear_2.", "txtmlp.3."), ("time_embed.linear_1.", "tmlp.0."), ("time_embed.linear_2.", "tmlp.2."),
        ("time_mod_proj.", "tproj.1."), ("img_in.", "first."), ("final_layer.linear.", "last.linear."), ("final_layer.norm.weight", "last.norm.scale"),
        ("final_layer.scale_shift_table", "last.modulation.lin"), (".scale_shift_table", ".mod.lin")])


def bf16(state):
    return {name: t.bfloat16() for name, t in state.items()}


def run(pipe, case):
    out = {}
    for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
        values, _ = reference_tensors.encode(pipe, prompt)
        out |= {f"case0.{name}.{lane}": value for name, value in values.items()}
    return out | {f"case0.{name}": value for name, value in reference_tensors.run_case(pipe, case).items() if name not in ("decoded", "picture")}


def comfy_files(folder):
    """Krea 2 Raw as ComfyUI reads it: the transformer with the authors' names in mixed types, and Qwen3-VL with its vision
    tower, which is not used. Neither has a configuration."""
    pipe = reference_tensors.load(os.path.join(HERE, "krea2", "model"))
    transformer = weights.randomize(Krea2Transformer2DModel(**KREA), weights.KREA2, f"{SEED} krea2")
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if "norm" in name.split(".")[-2]:
                parameter -= 1  # norms store their weights minus 1
    config = pipe.text_encoder.config
    ids = {name: getattr(config, name) for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")}
    torch.manual_seed(SEED)  # of the vision tower
    text = Qwen3VLModel(Qwen3VLConfig(text_config=QWEN | dict(vocab_size=len(pipe.tokenizer) + 9), vision_config=TOWER, **ids))
    weights.randomize(text.language_model, weights.QWEN_TEXT, f"{SEED} qwen3vl")
    original = {name: t.clone() for name, t in transformer.state_dict().items()}
    values, used = write_comfy(part(folder, "diffusion_models", "krea2_raw_fp8.safetensors"), names(bf16(original)), TYPES,
                               "model.diffusion_model.", ("attn", "mlp.up"))
    transformer.load_state_dict(single_file_utils.convert_krea2_transformer_checkpoint_to_diffusers(values))
    state = {name.replace("language_model.", "model."): t for name, t in bf16(text.state_dict()).items()}
    values, more = write_comfy(part(folder, "text_encoders", "qwen3vl_4b_fp8_scaled.safetensors"), state, QWEN_TYPES, "", ("mlp",))
    text.load_state_dict({name.replace("model.", "language_model."): t for name, t in values.items()})
    link(folder, "tokenizer", "krea2/model/tokenizer")
    link(folder, "vae", "qwen_edit_plus/model/vae")
    pipe.transformer, pipe.text_encoder = (model.requires_grad_(False).eval() for model in (transformer, text))
    return "krea2", pipe, guided_case(4, 3), run, dict(transformer=used, text=more), (transformer, original)
