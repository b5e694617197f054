#!/usr/bin/env python3
"""Generates qwen3vl/: a tiny random Qwen3-VL, hidden states of prompts with images, and vision features.

    qwen3vl.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  The folder tiny/ contains
  model.safetensors         both towers, as saved by transformers, in f16
  mmproj.safetensors        the vision tower with llama.cpp's names; its deepstack mergers have the numbers of layers
  config.json, preprocessor_config.json
  expect.json               images in each prompt; layers of the recorded blocks; the hidden states that are read
  reference.safetensors     f32: NAME.ids [T], NAME.text [T, columns] of each prompt; PICTURE.pixels (bytes), PICTURE.rows:
                            merged tokens, then deepstack features; inputs and outputs of blocks; rope tables
  blocks.json, bf16.json    tests that read the references (block_tests.py); bf16 error of the reference, as in bf16.py
Outputs are computed in f32 on the CPU from the written weights. hidden: hidden states as in transformers, side by side.
"""

import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import Qwen2VLImageProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

import block_tests
from bf16 import deviation
from qwen3vl_gguf import tower_names
from watch import Watch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "qwen3vl", "tiny")
PAD = 80  # token id of an image
TEXT = dict(vocab_size=90, hidden_size=32, intermediate_size=40, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
            rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[4, 2, 2], mrope_interleaved=True))
VISION = dict(depth=5, hidden_size=24, intermediate_size=28, num_heads=3, out_hidden_size=32, patch_size=16, spatial_merge_size=2,
              num_position_embeddings=49, deepstack_visual_indexes=[0, 2, 3])
LAYERS = [2, 4, -1]  # hidden states that are read; the second one follows the last deepstack feature
PICTURES = {"wide": (64, 96), "high": (160, 64)}
# Prompts: numbers of text tokens, and images between them.
PROMPTS = {"text": [13], "image": [4, "wide", 7], "two": [5, "high", 3, "wide", 6], "first": ["high", 2]}
# Layers of recorded blocks; the text layer runs on the prompt without images.
TOWER_LAYER, DEEPSTACK, TEXT_LAYER = 1, 1, 1
# Spread of values: scores of attention vary by about 1, residual streams stay near 1.
SPREAD = [("embed_tokens", 0.8), ("pos_embed", 3.0), ("patch_embed", 0.5), ("q_proj", 1.6), ("k_proj", 1.6), ("qkv", 1.4), ("mlp", 1.2)]


def build():
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=TEXT, vision_config=VISION, image_token_id=PAD, tie_word_embeddings=False)).eval()
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = next((s for part, s in SPREAD if part in name), 1)
            fan = 1 if "embed_tokens" in name else p[0].numel()
            p.copy_(torch.randn(p.shape, generator=generator) * (0.3 if p.ndim == 1 else spread / fan ** 0.5))
            if p.ndim == 1 and "norm" in name and name.endswith("weight"):
                p.add_(1)
            p.copy_(p.half())  # not the whole model, whose buffers include rope's frequencies
    return model


def pictures():
    """Smooth images with noise, as bytes."""
    generator = torch.Generator().manual_seed(5)
    for name, (height, width) in PICTURES.items():
        coarse = torch.rand([1, 3, height // 16, width // 16], generator=generator)
        image = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") + 0.1 * torch.randn([1, 3, height, width], generator=generator)
        yield name, (image[0].permute(1, 2, 0).clamp(0, 1) * 255).byte()


def prompts():
    generator = torch.Generator().manual_seed(9)
    for name, parts in PROMPTS.items():
        ids, spans = [], []
        for part in parts:
            if isinstance(part, int):
                ids += torch.randint(8, PAD, [part], generator=generator).tolist()
                continue
            height, width = (side // 32 for side in PICTURES[part])
            spans.append(dict(picture=part, first=len(ids), height=height, width=width))
            ids += [PAD] * (height * width)
        yield name, torch.tensor(ids, dtype=torch.int32), spans


def rope_table(cos_sin):
    half = cos_sin[0].shape[-1] // 2
    return torch.stack([part[..., :half] for part in cos_sin], -1)


@torch.no_grad()
def run(model, processor, known=None):
    """Returns all reference tensors. known: reference tensors that replace the inputs of the recorded blocks."""
    dtype, out, seen, ropes = next(model.parameters()).dtype, {}, {}, []
    model, visual, language = model.model, model.model.visual, model.model.language_model
    tower = {"tower.patches": visual.blocks[0], "block.tower": visual.blocks[TOWER_LAYER],
             "tower.deepstack": visual.deepstack_merger_list[DEEPSTACK], "tower.merger": visual.merger}
    text = {"block.language": language.layers[TEXT_LAYER]}
    visual.rotary_pos_emb.register_forward_hook(lambda _module, _args, value: ropes.append(rope_table(value)))
    for name, module in (tower | text).items():
        def put(_module, args, kwargs, name=name):
            value = known.get(f"{name}.in")
            fits = value is not None and value.numel() == args[0].numel()
            return ((value.reshape(args[0].shape).to(dtype) if fits else args[0], *args[1:]), kwargs)
        if known:
            module.register_forward_pre_hook(put, with_kwargs=True)
    for name, pixels in pictures():
        seen[name] = processor(images=[pixels.permute(2, 0, 1)], return_tensors="pt")
        with Watch(tower) as watch:
            features = visual(seen[name]["pixel_values"].to(dtype), seen[name]["image_grid_thw"])
        out[f"{name}.rows"] = torch.cat([features.pooler_output, *features.deepstack_features], -1)
        if name == "wide":
            out["tower.rope"] = ropes[-1]
            out |= {f"{part}.{end}": watch.tensors[f"{part}.{end}"] for part in tower if part != "tower.patches" for end in ("in", "out")}
            out["tower.patches.out"] = watch.tensors["tower.patches.in"]
    for name, ids, spans in prompts():
        grids = [seen[span["picture"]] for span in spans]
        pixels = dict(pixel_values=torch.cat([g["pixel_values"] for g in grids]).to(dtype), image_grid_thw=torch.cat([g["image_grid_thw"] for g in grids])) if spans else {}
        model.rope_deltas = None
        ids = ids.long()[None]
        with Watch(text) as watch:
            states = model(input_ids=ids, mm_token_type_ids=(ids == PAD).int(), output_hidden_states=True, **pixels).hidden_states
        out[f"{name}.text"] = torch.cat([states[k][0] for k in LAYERS], -1)
        if name == "text":
            out |= {"block.language.in": watch.tensors["block.language.in"][0], "block.language.out": watch.tensors["block.language.out"][0]}
        if name == "two":
            positions, _ = model.get_rope_index(ids, (ids == PAD).int(), pixels["image_grid_thw"])
            out["text.rope"] = rope_table(language.rotary_emb(torch.zeros(1), positions))[0]
    return {k: t.float().contiguous() for k, t in out.items()}


def write():
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    model = build()
    state = {k: t.half() for k, t in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, os.path.join(FOLDER, "model.safetensors"))
    vision = {k.removeprefix("model.visual."): t for k, t in state.items() if ".visual." in k}
    save_file(tower_names(vision, VISION["deepstack_visual_indexes"]), os.path.join(FOLDER, "mmproj.safetensors"))
    model.config.save_pretrained(FOLDER)
    processor = Qwen2VLImageProcessor(size=dict(shortest_edge=1024, longest_edge=65536), patch_size=16, merge_size=2, temporal_patch_size=2,
                                      image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor.save_pretrained(FOLDER)
    known = run(model, processor)
    rough = build()
    for p in rough.parameters():
        p.data = p.data.bfloat16()
    errors = {name: deviation(t, known[name]) for name, t in run(rough, processor).items()}
    bf16 = {f"text {name}": errors[f"{name}.text"] for name in PROMPTS} | {f"seen {name}": errors[f"{name}.rows"] for name in PICTURES}
    apart = run(rough, processor, known)
    bf16 |= {name.removesuffix(".out"): deviation(t, known[name]) for name, t in apart.items() if name.endswith(".out")}
    blocks = {"block.tower": TOWER_LAYER, "tower.deepstack": DEEPSTACK, "block.language": TEXT_LAYER}
    references = dict(known) | {f"{name}.pixels": pixels.contiguous() for name, pixels in pictures()} | {f"{name}.ids": ids for name, ids, _ in prompts()}
    save_file(references, os.path.join(FOLDER, "reference.safetensors"))
    expect = dict(layers=LAYERS, blocks=blocks, prompts={name: spans for name, _, spans in prompts()}, pictures=list(PICTURES),
                  gguf={"general.architecture": "clip", "clip.projector_type": "qwen3vl_merger", "clip.vision.attention.head_count": VISION["num_heads"],
                        "clip.vision.spatial_merge_size": 2})
    for file, value in (("expect.json", dict(qwen3vl=expect)), ("bf16.json", bf16)):
        with open(os.path.join(FOLDER, file), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
            f.write("\n")
    block_tests.write(FOLDER)
    for file in os.listdir(FOLDER):
        os.chmod(os.path.join(FOLDER, file), 0o644)
    print(sum(os.path.getsize(os.path.join(FOLDER, f)) for f in os.listdir(FOLDER)), "bytes")


write()
