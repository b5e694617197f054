"""Stored forms of Flux.2 dev, for ../stored.py."""

import json
import os
import tempfile

import gguf
import torch
from diffusers import AutoencoderKLFlux2, Flux2Pipeline, Flux2Transformer2DModel
from diffusers.loaders import single_file_utils
from safetensors.torch import load_file, save_file
from transformers import Mistral3Config, Mistral3ForConditionalGeneration
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

import tokens_gguf
import weights
from stored_files import HERE, SEED, fuse, link, part, qwen_names, rename, write_comfy, write_gguf

from . import reference_tensors, tokens

# heads and rope axes as published, so no configuration is needed
DEV = dict(in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=128, num_attention_heads=1, mlp_ratio=0.25,
           timestep_guidance_channels=16)
SMALL = DEV | dict(attention_head_dim=32, num_attention_heads=2, axes_dims_rope=[8, 8, 8, 8], mlp_ratio=2.0)
# As in ComfyUI's files, the layers behind the last hidden state that is read are absent.
MISTRAL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=30, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
               model_type="mistral", max_position_embeddings=1024, rms_norm_eps=3e-5, rope_theta=900000.0)
# head size, eps and theta as published, so no configuration is needed
MISTRAL_PUBLISHED = MISTRAL | dict(hidden_size=8, intermediate_size=16, head_dim=128, rms_norm_eps=1e-5, rope_theta=1e9)
TOKENIZER = os.path.join(HERE, "flux2_dev/model/tokenizer/tokenizer.json")
PIXTRAL = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, head_dim=4, model_type="pixtral")

# As in city96's files, the first and last layers stay in F32 or 16 bits (city96/ComfyUI-GGUF, tools/lcpp.patch).
TYPES = [("modulation_img", "Q4_0"), ("modulation_txt", "IQ4_NL"), ("single_stream_modulation", "Q4_1"), ("img_attn.qkv", "Q4_0"),
         ("img_attn.proj", "Q5_0"), ("img_mlp.0", "Q4_1"), ("img_mlp.2", "IQ4_NL"), ("txt_attn.qkv", "Q4_0"), ("txt_attn.proj", "Q5_1"),
         ("txt_mlp.0", "MXFP4"), ("txt_mlp.2", "Q5_0"), ("linear1", "Q4_0"), ("linear2", "Q4_1"), ("img_in", "F32"), ("in_layer", "F32"),
         ("final_layer.linear", "F32"), ("out_layer", "BF16"), ("final_layer", "F16"), ("txt_in", "BF16")]
# llama-quantize's types for rows that no K-quant divides: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, IQ4_NL for others
MISTRAL_TYPES = [("token_embd", "Q8_0"), ("attn_q.", "Q5_0"), ("attn_k.", "Q5_0"), ("attn_v", "Q8_0"), ("attn_output", "Q5_1"), ("ffn_gate", "Q5_0"),
                 ("ffn_up", "IQ4_NL"), ("ffn_down", "Q8_0")]
COMFY_TYPES = [("modulation", "f8_e4m3"), ("img_attn", "f8_e4m3"), ("img_mlp", "convrot 64 rows"), ("txt_mlp.0", "convrot 16 rows"),
               ("txt_mlp.2", "int8 rows"), ("txt_attn", "nvfp4"), ("linear1", "convrot 64 rows"), ("linear2", "f8_e4m3")]
MISTRAL_COMFY_TYPES = [("proj", "f8_e4m3")]


def names(state):
    """The authors' names, by the inverse of diffusers' conversion."""
    state, doubles = dict(state), len({n.split(".")[1] for n in state if n.startswith("transformer_blocks.")})
    for i in range(doubles):
        a, b = f"transformer_blocks.{i}", f"double_blocks.{i}"
        fuse(state, f"{b}.img_attn.qkv", [f"{a}.attn.to_{p}" for p in "qkv"])
        fuse(state, f"{b}.txt_attn.qkv", [f"{a}.attn.add_{p}_proj" for p in "qkv"])
    scale, shift = state.pop("norm_out.linear.weight").chunk(2)
    state["final_layer.adaLN_modulation.1.weight"] = torch.cat([shift, scale])
    state["final_layer.linear.weight"] = state.pop("proj_out.weight")
    return rename(state, [
        ("single_transformer_blocks.", "single_blocks."), ("transformer_blocks.", "double_blocks."), ("attn.to_qkv_mlp_proj", "linear1"),
        ("attn.to_out.0", "img_attn.proj"), ("attn.to_add_out", "txt_attn.proj"), ("attn.to_out", "linear2"), ("ff.linear_in", "img_mlp.0"),
        ("ff.linear_out", "img_mlp.2"), ("ff_context.linear_in", "txt_mlp.0"), ("ff_context.linear_out", "txt_mlp.2"),
        ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"), ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
        *[(f"double_blocks.{i}.attn.norm_{p}.weight", f"double_blocks.{i}.img_attn.norm.{name}_norm.scale")
          for i in range(doubles) for p, name in (("q", "query"), ("k", "key"))],
        ("attn.norm_q.weight", "norm.query_norm.scale"), ("attn.norm_k.weight", "norm.key_norm.scale"),
        ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"), ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"),
        ("time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
        ("time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer"), ("context_embedder", "txt_in"), ("x_embedder", "img_in"),
        ("modulation_img.linear", "modulation_img.lin"), ("modulation_txt.linear", "modulation_txt.lin"),
        ("stream_modulation.linear", "stream_modulation.lin")])


def parts(form, mistral):
    """Returns dev's pipeline with another transformer and text encoder, and the files' state of the latter."""
    pipe = reference_tensors.load(os.path.join(HERE, "flux2_dev", "model"))
    columns = 3 * mistral["hidden_size"]
    pipe.transformer = weights.randomize(Flux2Transformer2DModel(joint_attention_dim=columns, **form), weights.FLUX2, f"{SEED} flux2")
    config = Mistral3Config(text_config=mistral | dict(vocab_size=len(pipe.tokenizer) + 9), vision_config=PIXTRAL)
    pipe.text_encoder = Mistral3ForConditionalGeneration(config)
    weights.randomize(pipe.text_encoder, weights.MISTRAL + weights.UNUSED_TOWER, f"{SEED} mistral")
    # the reference reads the state behind the last layer unnormed, as with published files, where it is not the last
    pipe.text_encoder.model.language_model.norm = torch.nn.Identity()
    return pipe, pipe.text_encoder.model.language_model.state_dict()


def dev_case(multiple):
    """Returns a case; multiple: pixels per token and side."""
    columns, rows = 4, 3
    return dict(index=0, kind="image", prompt="a red fox in the snow, golden hour, soft light", negative_prompt=None, steps=3, cfg_scale=1.0,
                guidance=4.0, width=columns * multiple, height=rows * multiple, seed=42, batch=1, flow_shift=None, max_sequence_length=512,
                channels=4, init=False, mask=False, references=[], latent_width=columns, latent_height=rows, image_tokens=columns * rows)


def run(pipe, case):
    values, _ = reference_tensors.encode(pipe, case["prompt"])
    out = {f"case0.{name}.cond": value for name, value in values.items()}
    for name, value in reference_tensors.run_case(pipe, case, {}).items():
        if name not in ("decoded", "picture"):
            out[f"case0.{name}"] = value
    return out


def run_latents(pipe, case):
    """As run without the hidden states, 512 rows, which the first step depends on."""
    return {name: value for name, value in run(pipe, case).items() if ".hidden." not in name}


def of_adjacent_pairs(weight, heads):
    """llama.cpp's order of the rows of queries and keys: rope rotates adjacent pairs there."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def of_halves(weight, heads):
    return weight.reshape(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def mistral_heads(name):
    return MISTRAL["num_attention_heads"] if ".attn_q." in name else MISTRAL["num_key_value_heads"] if ".attn_k." in name else 0


def write_mistral(path, pipe, state):
    """Writes the text encoder as llama.cpp does. Returns counts of types."""
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_block_count(MISTRAL["num_hidden_layers"])
    writer.add_head_count(MISTRAL["num_attention_heads"])
    writer.add_head_count_kv(MISTRAL["num_key_value_heads"])
    writer.add_key_length(MISTRAL["head_dim"])
    writer.add_rope_freq_base(MISTRAL["rope_theta"])
    writer.add_layer_norm_rms_eps(MISTRAL["rms_norm_eps"])
    with open(TOKENIZER, encoding="utf-8") as f:
        tokens_gguf.add_tekken(writer, json.load(f), pipe.text_encoder.config.text_config.vocab_size)
    named = {name: of_adjacent_pairs(t, mistral_heads(name)) if mistral_heads(name) else t for name, t in qwen_names(state).items()}
    values, used = write_gguf(path, writer, named | {"output_norm.weight": torch.ones(MISTRAL["hidden_size"])}, MISTRAL_TYPES)
    decoded = [of_halves(values[name], mistral_heads(name)) if mistral_heads(name) else values[name] for name in named]
    pipe.text_encoder.model.language_model.load_state_dict(dict(zip(state, decoded)))
    return used


def gguf_files(folder):
    """Flux.2 dev from two GGUF files without configurations; the VAE is flux2_dev's."""
    pipe, state = parts(DEV, MISTRAL)
    values, used = write_gguf(part(folder, "diffusion_models", "flux2-dev.gguf"), gguf.GGUFWriter(None, "flux"),
                              names(pipe.transformer.state_dict()), TYPES)
    pipe.transformer.load_state_dict(single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers(values))
    more = write_mistral(part(folder, "text_encoders", "mistral.gguf"), pipe, state)
    link(folder, "vae", "flux2_dev/model/vae")
    return "flux2", pipe, dev_case(8), run_latents, dict(transformer=used, text=more), None


def tekken():
    """Returns a tekken.json with the tokens of flux2_dev, and transformers' conversion of it to a tokenizer."""
    with open(TOKENIZER, encoding="utf-8") as f:
        data = json.dumps(tokens.tekken_of(json.load(f)), separators=(",", ":")).encode()
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "tekken.json")
        with open(path, "wb") as f:
            f.write(data)
        tokenizer = convert_tekken_tokenizer(path, chat_template=tokens.TEMPLATE)
    tokenizer.padding_side = "left"
    return data, tokenizer


def bf16(state):
    return {name: t.bfloat16() for name, t in state.items()}


def comfy_files(folder):
    """Flux.2 dev as ComfyUI reads it: a transformer of the authors' names in mixed types, with a configuration, as it is
    small; a text encoder that contains its tokenizer; vae_flux2/authors as ae.safetensors."""
    pipe, state = parts(SMALL, MISTRAL_PUBLISHED)
    path = part(folder, "diffusion_models", "flux2_dev_fp8mixed.safetensors")
    pipe.transformer.save_config(os.path.dirname(path))
    values, used = write_comfy(path, names(bf16(pipe.transformer.state_dict())), COMFY_TYPES, "", ("img_attn", "linear1"))
    pipe.transformer.load_state_dict(single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers(values))
    path = part(folder, "text_encoders", "mistral_3_small_flux2_fp8.safetensors")
    values, more = write_comfy(path, bf16(state), MISTRAL_COMFY_TYPES, "model.", ())
    pipe.text_encoder.model.language_model.load_state_dict(values)
    own, tokenizer = tekken()
    save_file(load_file(path) | {"tekken_model": torch.tensor(list(own), dtype=torch.uint8)}, path)
    os.makedirs(os.path.join(folder, "vae"))
    for name, to in (("ae.safetensors", "diffusion_pytorch_model.safetensors"), ("config.json", "config.json")):
        os.symlink(os.path.join("../../../../vae_flux2/authors", to), os.path.join(folder, "vae", name))
    # only its dimensions matter: pictures are not compared
    vae = AutoencoderKLFlux2.from_config(AutoencoderKLFlux2.load_config(os.path.join(HERE, "vae_flux2", "authors")))
    pipe = Flux2Pipeline(**(pipe.components | dict(vae=vae, tokenizer=tokenizer)))
    return "flux2", pipe, dev_case(4), run, dict(transformer=used, text=more), None
