"""Names of Anima's authors, for ../adapters.py, and a stored form, for ../stored.py."""

import os

from diffusers import AnimaTextConditioner, CosmosTransformer3DModel

import weights
from stored_files import HERE, SEED, guided_case, link, part, rename, write_comfy

from . import reference_tensors

# rope scales as published
ANIMA = dict(in_channels=5, out_channels=5, num_attention_heads=4, attention_head_dim=16, num_layers=1, mlp_ratio=4.0, text_embed_dim=32, adaln_lora_dim=16,
             max_size=(128, 240, 240), rope_scale=(1.0, 4.0, 4.0), concat_padding_mask=True, extra_pos_embed_type=None)
ADAPTER = dict(target_dim=32, model_dim=32, num_layers=1, num_attention_heads=2, mlp_ratio=4.0)
# None: the tensor stays in bf16. Rows of the text encoder have 30 values.
TYPES = [*[(name, None) for name in ("embed", "final_layer", "out_proj")], ("llm_adapter.blocks.0.mlp.2", "convrot 64 rows"),
         ("llm_adapter.blocks.0.mlp", "convrot 16 rows"), ("llm_adapter.blocks.0.self_attn", "convrot 16"), ("adaln_modulation", "f8_e4m3"),
         ("self_attn.v_proj", "f8_e4m3"), ("self_attn", "convrot 64 rows"), ("cross_attn", "f8_e4m3"), ("mlp.layer1", "f8_e4m3"),
         ("mlp.layer2", "convrot 256 rows")]


def names(state):
    """Converts a state dict to checkpoint names: the inverse of diffusers' _convert_non_diffusers_anima_lora_to_diffusers."""
    return rename(state, [
        ("transformer_blocks.", "blocks."), (".norm1.linear_", ".adaln_modulation_self_attn."), (".norm2.linear_", ".adaln_modulation_cross_attn."),
        (".norm3.linear_", ".adaln_modulation_mlp."), (".attn1.to_out.0.", ".self_attn.output_proj."), (".attn2.to_out.0.", ".cross_attn.output_proj."),
        *[(f".attn{i}.{a}_{p}.", f".{kind}_attn.{p}_{b}.") for i, kind in ((1, "self"), (2, "cross")) for p in "qkv" for a, b in (("to", "proj"), ("norm", "norm"))],
        (".ff.net.0.proj.", ".mlp.layer1."), (".ff.net.2.", ".mlp.layer2."), ("norm_out.linear_", "final_layer.adaln_modulation."),
        ("proj_out.", "final_layer.linear."), ("time_embed.t_embedder.", "t_embedder.1."), ("time_embed.norm.", "t_embedding_norm."),
        ("patch_embed.proj.", "x_embedder.proj.1.")])


def run(pipe, case):
    out = {}
    for lane, prompt in (("cond", case["prompt"]), ("uncond", case["negative_prompt"])):
        values, _ = reference_tensors.encode(pipe, prompt)
        out |= {f"case0.{name}.{lane}": value for name, value in values.items()}
    return out | {f"case0.{name}": value for name, value in reference_tensors.run_case(pipe, case, {}).items() if name not in ("decoded", "picture")}


def comfy_files(folder):
    """Anima as ComfyUI reads it: one file with transformer and text adapter in mixed types, without a configuration; the
    other components are anima_base's."""
    pipe = reference_tensors.load(os.path.join(HERE, "anima_base", "model"))
    transformer, adapter = pipe.transformer, pipe.text_conditioner
    known = {key: adapter.config[key] for key in ("source_dim", "target_vocab_size")}
    transformer = weights.randomize(CosmosTransformer3DModel(**ANIMA), weights.ANIMA, f"{SEED} anima")
    adapter = weights.randomize(AnimaTextConditioner(**known, **ADAPTER), weights.ANIMA_ADAPTER, f"{SEED} anima adapter")
    models = [(transformer, names), (adapter, lambda state: {f"llm_adapter.{name}": t for name, t in state.items()})]
    original = {name: t.clone() for name, t in transformer.state_dict().items()}
    state = {name: t.bfloat16() for model, renamed in models for name, t in renamed(model.state_dict()).items()}
    values, used = write_comfy(part(folder, "diffusion_models", "anima-base-v1.0-int8.safetensors"), state, TYPES, "net.", ("self_attn",))
    for model, renamed in models:
        model.load_state_dict({name: values[theirs] for name, theirs in zip(model.state_dict(), renamed(model.state_dict()))})
    for name, to in (("text_encoder", "anima_base/model/text_encoder"), ("tokenizer", "qwen_edit_plus/model/tokenizer"),
                     ("t5_tokenizer", "flux_a/model/tokenizer_2"), ("vae", "qwen_edit_plus/model/vae")):
        link(folder, name, to)
    transformer, adapter = (model.requires_grad_(False).eval() for model in (transformer, adapter))
    pipe.transformer, pipe.text_conditioner = transformer, adapter
    pipe.modular.update_components(transformer=transformer, text_conditioner=adapter)
    return "anima", pipe, guided_case(4, 3), run, dict(transformer=used), (transformer, original)
