#!/usr/bin/env python3
"""Generates padded/: tiny random text encoders, and hidden states of prompts with masked padding.

    padded.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder FAMILY/ contains
  model.safetensors         as saved by transformers, in f16
  gguf.safetensors          mistral: the same weights under llama.cpp's names, with permuted rows of q and k
  config.json               as saved by transformers
  expect.json               the range of keys of each prompt; an image in the prompt; the hidden states that are read
  reference.safetensors     f32: NAME.ids [T], NAME.text [T, columns] of each prompt, NAME.image: rows of the image
  blocks.json, bf16.json    tests that read the references (block_tests.py); bf16 error of the reference, as in bf16.py
Outputs are computed in f32 on the CPU. hidden: hidden states as in transformers, side by side.
"""

import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import (MistralConfig, MistralModel, Mistral3Config, Qwen2_5_VLConfig, Qwen2_5_VLModel, Qwen3Config, Qwen3Model,
                          T5Config, T5EncoderModel)

import block_tests
from bf16 import deviation

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY, PAD = 90, 7
TEXT = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            head_dim=8, rms_norm_eps=1e-5, tie_word_embeddings=False)
IMAGE, SPAN = 80, dict(first=4, height=2, width=3)  # token id of an image; its place in the prompt


def qwen3():
    return Qwen3Model(Qwen3Config(**TEXT | dict(rms_norm_eps=1e-6), rope_theta=1e6))


def mistral():
    return MistralModel(MistralConfig(**TEXT, rope_theta=1e9, sliding_window=None))


def qwen25vl():
    text = TEXT | dict(num_attention_heads=2, num_key_value_heads=1, rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 2, 2]))
    text.pop("head_dim")
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=24, spatial_merge_size=2)
    return Qwen2_5_VLModel(Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE))


def t5():
    return T5EncoderModel(T5Config(vocab_size=VOCABULARY, d_model=24, d_kv=4, d_ff=40, num_layers=2, num_heads=5, feed_forward_proj="gated-gelu",
                                   relative_attention_num_buckets=8, relative_attention_max_distance=16))


# name: (first key, number of keys, all tokens); n 0: no masked padding
RIGHT = {"some": (0, 9, 23), "none": (0, 0, 11), "one": (0, 12, 13), "short": (0, 1, 8)}
LEFT = {"some": (14, 9, 23), "none": (0, 0, 11), "one": (1, 12, 13), "short": (7, 1, 8)}
SPECS = {
    "qwen3": dict(build=qwen3, lanes=RIGHT, layers=[1, 2, -1]),
    "mistral": dict(build=mistral, lanes=LEFT, layers=[1, 2, -1]),
    "qwen25vl": dict(build=qwen25vl, lanes=RIGHT | {"image": (0, 15, 23), "image_one": (0, 15, 16)}, layers=None),
    "t5": dict(build=t5, lanes=RIGHT, layers=None),
}


def build(spec, name):
    model = spec["build"]().eval()
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = 0.3 if p.ndim == 1 else 1.5 / p.shape[1] ** 0.5 if "embed" not in name and "shared" not in name else 0.8
            spread = 0.15 if ".SelfAttention.q" in name or ".SelfAttention.k" in name else spread  # T5 does not scale scores
            p.copy_(torch.randn(p.shape, generator=generator) * spread)
            if p.ndim == 1 and name.endswith("weight"):
                p.add_(1)  # the tensor is a norm's weight
            p.copy_(p.half())  # not the whole model, whose buffers include rope's frequencies
    return model


@torch.no_grad()
def hidden_of(model, spec, ids, mask, image):
    ids, mask = ids.long()[None], mask[None]
    if image is None:
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    else:
        model.rope_deltas = None
        embeddings = model.get_input_embeddings()(ids)
        embeddings[ids == IMAGE] = image.to(embeddings.dtype)
        grid = torch.tensor([[1, 2 * SPAN["height"], 2 * SPAN["width"]]])
        positions, _ = model.get_rope_index(ids, (ids == IMAGE).int(), grid, attention_mask=mask)
        states = model.language_model(inputs_embeds=embeddings, position_ids=positions, attention_mask=mask, output_hidden_states=True).hidden_states
    return torch.cat([states[k][0] for k in spec["layers"] or [-1]], -1).float()


def lanes_of(spec, name):
    """Yields name, ids, mask and image rows of each prompt."""
    generator = torch.Generator().manual_seed(100 + len(name))
    for lane, (first, n, T) in spec["lanes"].items():
        keys = torch.zeros(T, dtype=torch.long)
        keys[first : first + (n or T)] = 1
        ids = torch.randint(8, IMAGE, [T], generator=generator, dtype=torch.int32).where(keys == 1, PAD)
        rows = SPAN["height"] * SPAN["width"]
        image = torch.randn([rows, TEXT["hidden_size"]], generator=generator) if lane.startswith("image") else None
        if image is not None:
            ids[SPAN["first"] : SPAN["first"] + rows] = IMAGE
        yield lane, ids, keys, image


def gguf_names(state):
    """Renames a state dict of Mistral as llama.cpp's convert_hf_to_gguf.py does, which permutes rows of q and k for rope."""
    out = {}
    for name, t in state.items():
        for theirs, ours in (("model.layers", "blk"), ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"),
                             ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.o_proj", "attn_output"),
                             ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                             ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")):
            name = name.replace(theirs, ours)
        if "attn_q" in name or "attn_k" in name:
            heads = t.shape[0] // TEXT["head_dim"]
            t = t.reshape(heads, 2, TEXT["head_dim"] // 2, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
        out[name] = t.contiguous()
    return out


def write(name, spec):
    folder = os.path.join(HERE, "padded", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    model = build(spec, name)
    state = {k.replace("language_model.", ""): t.half() for k, t in model.state_dict().items() if "visual." not in k}
    if name == "t5":
        state.pop("encoder.embed_tokens.weight", None)
    else:
        state = {f"model.{k}": t for k, t in state.items()}
    save_file(state, os.path.join(folder, "model.safetensors"))
    config = Mistral3Config(text_config=model.config.to_dict()) if name == "mistral" else model.config
    config.save_pretrained(folder)
    files = {"model.safetensors": True}
    if name == "mistral":
        save_file(gguf_names(state), os.path.join(folder, "gguf.safetensors"))
        files["gguf.safetensors"] = {"general.architecture": "llama", "llama.block_count": 3, "llama.attention.head_count": 6,
                                     "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e9}
    rough, references, errors, about = build(spec, name), {}, {}, {}
    for p in rough.parameters():
        p.data = p.data.bfloat16()
    for lane, ids, keys, image in lanes_of(spec, name):
        text = hidden_of(model, spec, ids, keys, image)
        errors[f"text {lane}"] = deviation(hidden_of(rough, spec, ids, keys, image), text)
        references |= {f"{lane}.ids": ids, f"{lane}.text": text} | ({} if image is None else {f"{lane}.image": image})
        first, n, _ = spec["lanes"][lane]
        about[lane] = dict(first=first, n=n) | ({} if image is None else dict(span=SPAN))
    save_file({k: t.contiguous() for k, t in references.items()}, os.path.join(folder, "reference.safetensors"))
    expect = dict(files=files, lanes=about) | (dict(layers=spec["layers"]) if spec["layers"] else {})
    with open(os.path.join(folder, "expect.json"), "w", encoding="utf-8") as f:
        json.dump(dict(padded=expect), f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "bf16.json"), "w", encoding="utf-8") as f:
        json.dump(errors, f, indent=1)
        f.write("\n")
    block_tests.write(folder)
    for file in os.listdir(folder):
        os.chmod(os.path.join(folder, file), 0o644)
    print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")


for each in SPECS.items():
    write(*each)
