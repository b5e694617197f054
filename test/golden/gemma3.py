#!/usr/bin/env python3
"""Generates gemma3/: a tiny random Gemma 3 and the hidden states of prompts.

    gemma3.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  The folder tiny/ contains
  model.safetensors         the language model in f16, as saved by Gemma3ForConditionalGeneration
  llama.safetensors         the same with llama.cpp's names; norms are f32 and hold 1 + weight
  config.json
  expect.json               prompts, metadata of the second file, the recorded layers
  reference.safetensors     f32: NAME.ids [T], NAME.text [T, all hidden states] of each prompt; inputs and outputs of layers; rope tables
  blocks.json, bf16.json    tests that read the references (block_tests.py); bf16 error of the reference, as in bf16.py
Outputs are computed in f32 on the CPU from the written weights.
"""

import json
import os
import shutil

import gguf
import torch
from safetensors.torch import save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

import block_tests
from bf16 import deviation
from watch import Watch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gemma3", "tiny")
HEAD, SCALAR, PERIOD = 16, 4, 3  # scores are divided by 2; llama.cpp's file divides by 4, and its norm of q is doubled
PROMPTS = {"one": 1, "short": 13, "long": 40}  # numbers of tokens; the longest is as long as the attention window
TEXT = dict(vocab_size=90, hidden_size=24, intermediate_size=40, num_hidden_layers=7, num_attention_heads=6, num_key_value_heads=2, head_dim=HEAD,
            query_pre_attn_scalar=SCALAR, rms_norm_eps=1e-5, sliding_window=max(PROMPTS.values()), sliding_window_pattern=PERIOD,
            rope_scaling=dict(rope_type="linear", factor=8.0), rope_theta=2e4, rope_local_base_freq=300.0)
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14)
LAYERS = {"block.local": 1, "block.global": 2}
# Spread of values: scores of attention vary by about 1, residual streams stay near 1.
SPREAD = [("embed_tokens", 0.3), ("q_proj", 1.6), ("k_proj", 1.6), ("mlp", 1.2)]
METADATA = {
    "general.architecture": "gemma3", "gemma3.attention.head_count": 6, "gemma3.attention.layer_norm_rms_epsilon": 1e-5,
    "gemma3.attention.sliding_window": max(PROMPTS.values()), "gemma3.attention.sliding_window_pattern": PERIOD, "gemma3.rope.freq_base": 2e4,
    "gemma3.rope.freq_base_swa": 300.0, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}


def build():
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=TEXT, vision_config=VISION, attn_implementation="eager")).eval()
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for name, p in model.model.language_model.named_parameters():
            spread = next((s for part, s in SPREAD if part in name), 1)
            fan = 1 if "embed_tokens" in name else p[0].numel()
            p.copy_(torch.randn(p.shape, generator=generator) * (0.3 if p.ndim == 1 else spread / fan ** 0.5))
            p.copy_(p.half())  # not the whole model, whose buffers include rope's frequencies
    return model


def prompts():
    generator = torch.Generator().manual_seed(9)
    return {name: torch.randint(8, TEXT["vocab_size"], [n], generator=generator).int() for name, n in PROMPTS.items()}


@torch.no_grad()
def run(model, known=None):
    """Returns all reference tensors. known: reference tensors that replace the inputs of the recorded layers."""
    dtype, out = next(model.parameters()).dtype, {}
    language = model.model.language_model
    layers = {name: language.layers[i] for name, i in LAYERS.items()}
    for name, module in layers.items():
        def put(_module, args, kwargs, name=name):
            value = known[f"{name}.in"]
            return ((value.reshape(args[0].shape).to(dtype) if value.numel() == args[0].numel() else args[0], *args[1:]), kwargs)
        if known:
            module.register_forward_pre_hook(put, with_kwargs=True)
    for name, ids in prompts().items():
        with Watch(layers) as watch:
            states = model(input_ids=ids.long()[None], output_hidden_states=True).hidden_states
        out[f"{name}.text"] = torch.cat([state[0] for state in states], -1)
        if name != "short":
            continue
        out["embedding"] = states[0][0]
        out |= {f"{part}.{end}": watch.tensors[f"{part}.{end}"][0] for part in layers for end in ("in", "out")}
        for table, kind in (("rope", "full_attention"), ("local_rope", "sliding_attention")):
            cos_sin = language.rotary_emb(torch.zeros(1), torch.arange(len(ids))[None], kind)
            out[table] = torch.stack([part[0, :, : HEAD // 2] for part in cos_sin], -1)
    return {k: t.float().contiguous() for k, t in out.items()}


def llama_names(state):
    """As llama.cpp's converter: its names, and 1 + weight for norms."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, TEXT["num_hidden_layers"])
    out = {}
    for name, t in state.items():
        plain = name.removeprefix("model.language_model.")
        if plain.endswith("norm.weight"):
            t = (t.float() + 1) * (2 if "q_norm" in plain else 1)
        out[names.get_name("model." + plain, try_suffixes=(".weight",))] = t
    return out


def write():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    model = build()
    state = {k: t.half().contiguous() for k, t in model.state_dict().items() if ".language_model." in k}
    save_file(state, os.path.join(FOLDER, "model.safetensors"))
    save_file(llama_names(state), os.path.join(FOLDER, "llama.safetensors"))
    model.config.save_pretrained(FOLDER)
    known = run(model)
    rough = build()
    for p in rough.parameters():
        p.data = p.data.bfloat16()
    errors = {name: deviation(t, known[name]) for name, t in run(rough).items()}
    apart = run(rough, known)
    bf16 = {f"text {name}": errors[f"{name}.text"] for name in PROMPTS} | {"embedding": errors["embedding"]}
    bf16 |= {name: deviation(apart[f"{name}.out"], known[f"{name}.out"]) for name in LAYERS}
    save_file(dict(known) | {f"{name}.ids": ids for name, ids in prompts().items()}, os.path.join(FOLDER, "reference.safetensors"))
    expect = dict(prompts=list(PROMPTS), layers=LAYERS, metadata=METADATA)
    for file, value in (("expect.json", dict(gemma3=expect)), ("bf16.json", bf16)):
        with open(os.path.join(FOLDER, file), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
            f.write("\n")
    block_tests.write(FOLDER)
    for file in os.listdir(FOLDER):
        os.chmod(os.path.join(FOLDER, file), 0o644)
    print(sum(os.path.getsize(os.path.join(FOLDER, f)) for f in os.listdir(FOLDER)), "bytes")


if __name__ == "__main__":
    write()
