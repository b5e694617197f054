#!/usr/bin/env python3
"""Generates clip/: tiny random CLIP text encoders of each kind, and reference outputs for a prompt of two windows.

    clip.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder NAME/ contains
  model.safetensors         as saved by transformers (h: without the last layer, as in diffusers' SD2 files)
  open.safetensors          h and g: the same weights in f16, complete, under OpenCLIP's names: fused q, k and v, transposed
                            projection, and the extra tensors of text encoders in single-file checkpoints
  config.json               as saved by transformers
  reference.safetensors     f32: ids [154], two windows of 77; rows.N [22, width], every seventh row of the output with clip
                            skip N; pooled [1, width or projection] of the first window
  blocks.json               tests that read the references (block_tests.py)
  bf16.json                 bf16 error of the reference, as in bf16.py
Outputs are computed from the written files, in f32 on the CPU, window by window. For l and h the final norm applies to the rows
of any layer, as in Stable Diffusion 1 and 2; for g it does not, as in SDXL.
"""

import json
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import block_tests
from bf16 import deviation

WINDOW, VOCABULARY, EVERY = 77, 90, 7
START, END = VOCABULARY - 2, VOCABULARY - 1
SPECS = {
    "l": dict(seed=1, width=24, heads=3, ff=40, layers=3, projection=24, act="quick_gelu", pad=END, normed=True),
    "h": dict(seed=2, width=32, heads=4, ff=56, layers=3, projection=32, act="gelu", pad=0, normed=True),
    "g": dict(seed=3, width=40, heads=5, ff=48, layers=3, projection=16, act="gelu", pad=0, normed=False),
}


def build(spec):
    config = CLIPTextConfig(
        vocab_size=VOCABULARY, hidden_size=spec["width"], intermediate_size=spec["ff"], projection_dim=spec["projection"],
        num_hidden_layers=spec["layers"], num_attention_heads=spec["heads"], max_position_embeddings=WINDOW,
        hidden_act=spec["act"], bos_token_id=START, eos_token_id=END, pad_token_id=spec["pad"])
    model = (CLIPTextModelWithProjection if not spec["normed"] else CLIPTextModel)(config).eval()
    generator = torch.Generator().manual_seed(spec["seed"])
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = 0.3 if p.ndim == 1 else 1.5 / p.shape[1] ** 0.5 if "embedding" not in name else 0.8
            p.copy_(torch.randn(p.shape, generator=generator) * spread)
            if p.ndim == 1 and name.endswith("weight"):
                p.add_(1)  # the tensor is a norm's weight
    return model.half().float()


def ids_of(spec, generator, lengths):
    """Returns token ids of windows with prompts of these lengths."""
    rows = []
    for n in lengths:
        content = torch.randint(1, START, [n], generator=generator).tolist()
        rows += [START] + content + [END] + [spec["pad"]] * (WINDOW - 2 - n)
    return torch.tensor(rows, dtype=torch.int32)


@torch.no_grad()
def outputs_of(model, spec, ids):
    """Returns the output for each clip skip, recorded by hooks, and the pooled row of the first window."""
    outputs, rows, pooled = [], [], []
    text = model.text_model if hasattr(model, "text_model") else model
    for layer in text.encoder.layers:
        layer.register_forward_hook(lambda m, i, o: outputs.append(o[0] if isinstance(o, tuple) else o))
    for window in ids.long().view(-1, 1, WINDOW):
        outputs.clear()
        result = model(window)
        pooled.append(result.text_embeds if hasattr(result, "text_embeds") else result.pooler_output)
        rows.append([o[0].clone() for o in outputs])
        assert torch.equal(text.final_layer_norm(outputs[-1]), result.last_hidden_state)
    of_skips = [torch.cat(r)[::EVERY] for r in reversed(list(zip(*rows)))]
    if spec["normed"]:
        of_skips = [text.final_layer_norm(r) for r in of_skips]
    return {f"rows.{i}": r for i, r in enumerate(of_skips, 1)} | {"pooled": pooled[0]}


def open_names(state, spec):
    """Converts a text encoder's state dict from transformers' to OpenCLIP's names."""
    out = {"logit_scale": torch.tensor(4.6).half()}
    for name, t in state.items():
        name = name.removeprefix("text_model.")
        if name == "text_projection.weight":
            out["text_projection"] = t.t()
            continue
        for ours, theirs in (("embeddings.token_embedding", "token_embedding"), ("final_layer_norm", "ln_final"),
                             ("embeddings.position_embedding.weight", "positional_embedding"),
                             ("encoder.layers", "transformer.resblocks"), ("layer_norm", "ln_"),
                             ("self_attn.out_proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj")):
            name = name.replace(ours, theirs)
        out[name] = t
    for i in range(spec["layers"]):
        for end in ("weight", "bias"):
            parts = [out.pop(f"transformer.resblocks.{i}.self_attn.{x}_proj.{end}") for x in "qkv"]
            out[f"transformer.resblocks.{i}.attn.in_proj_{end}"] = torch.cat(parts)
    if "text_projection" not in out:
        out["text_projection"] = torch.eye(spec["width"]).half()
    return out


@torch.no_grad()
def write(name, spec):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clip", name)
    shutil.rmtree(folder, ignore_errors=True)
    model = build(spec)
    state = {k: t.half() for k, t in model.state_dict().items()}
    cut = f"encoder.layers.{spec['layers'] - 1}." if name == "h" else "nothing"
    os.makedirs(folder)
    save_file({k: t for k, t in state.items() if cut not in k}, os.path.join(folder, "model.safetensors"))
    model.config.num_hidden_layers -= name == "h"
    model.config.save_pretrained(folder)
    if name != "l":
        save_file({k: t.contiguous() for k, t in open_names(state, spec).items()}, os.path.join(folder, "open.safetensors"))
    generator = torch.Generator().manual_seed(10 + spec["seed"])
    references = {"ids": ids_of(spec, generator, [WINDOW - 2, 9])}
    truth, rough = (outputs_of(m, spec, references["ids"]) for m in (model, build(spec).bfloat16()))
    references |= truth
    with open(os.path.join(folder, "bf16.json"), "w", encoding="utf-8") as f:
        json.dump({k: deviation(rough[k], truth[k]) for k in truth}, f, indent=1)
        f.write("\n")
    save_file({k: t.contiguous() for k, t in references.items()}, os.path.join(folder, "reference.safetensors"))
    block_tests.write(folder)
    for file in os.listdir(folder):
        os.chmod(os.path.join(folder, file), 0o644)
    print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")


for each in SPECS.items():
    write(*each)
