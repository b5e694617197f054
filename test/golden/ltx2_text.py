#!/usr/bin/env python3
"""Generates ltx2_text/: tiny random text projections and connectors of LTX-2 and 2.3, whose forms the pipelines' fixtures lack.

    ltx2_text.py

Needs requirements.txt.  test/models/test_blocks.c reads the output and needs no Python.  Each folder contains
  projection.safetensors, connectors.safetensors     the two components, in f32; in "authors" with the authors' names
  expect.json               configurations of both, as in config.json
  reference.safetensors     f32: source [n, states * channels], projected [n, columns], text [T, video's and sound's columns]
  blocks.json               tests that read the references (block_tests.py)
"""

import json
import os
import shutil

import torch
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from safetensors.torch import save_file

import block_tests

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ltx2_text")
PROJECTIONS = ("text_proj_in", "video_text_proj_in", "audio_text_proj_in")


def sizes(channels, states, registers, gated, video, audio):
    """video, audio: heads, their size, blocks."""
    out = dict(caption_channels=channels, text_proj_in_factor=states, per_modality_projections=gated, proj_bias=gated)
    for name, (heads, head, layers) in dict(video=video, audio=audio).items():
        connector = f"{name}_connector_"
        out |= {f"{connector}num_attention_heads": heads, f"{connector}attention_head_dim": head, f"{connector}num_layers": layers,
                f"{connector}num_learnable_registers": registers, f"{name}_gated_attn": gated, f"{name}_hidden_dim": heads * head}
    return out


# n: tokens of the prompt; rows: of the connectors. 70 tokens: more than a chunk of the projection. 5 states are no square.
FORMS = {
    "interleaved": dict(n=70, rows=96, names={}, config=dict(rope_type="interleaved", connector_rope_base_seq_len=2048, rope_theta=5000.0)
                        | sizes(24, 5, 32, False, (2, 12, 1), (3, 8, 2))),
    "authors": dict(n=9, rows=48, config=dict(rope_type="split") | sizes(20, 9, 16, True, (2, 14, 2), (3, 6, 1)),
                    names=dict(video_text_proj_in="video_aggregate_embed", audio_text_proj_in="audio_aggregate_embed",
                               video_connector="video_embeddings_connector", audio_connector="audio_embeddings_connector",
                               transformer_blocks="transformer_1d_blocks", norm_q="q_norm", norm_k="k_norm")),
}


def build(config):
    model = LTX2TextConnectors(**config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = 0.3 if p.ndim == 1 else 1 if "registers" in name else 1.2 / p.shape[1] ** 0.5
            p.copy_(torch.randn(p.shape) * spread + ("norm" in name))
    return model


def write(name, n, rows, names, config):
    folder = os.path.join(ROOT, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    torch.manual_seed(7)
    model = build(config)
    channels, states = config["caption_channels"], config["text_proj_in_factor"]
    hidden = torch.randn(1, rows, channels, states) * torch.linspace(0.5, 30, states) + 2 * torch.randn(states)
    mask = (torch.arange(rows) >= rows - n).long()[None]  # the prompt's tokens follow the padding
    projected = {}
    for part in PROJECTIONS:
        if hasattr(model, part):
            getattr(model, part).register_forward_hook(lambda _module, _args, out, part=part: projected.update({part: out[0, -n:]}))
    with torch.no_grad():
        video, audio, _ = model(hidden, mask)
    references = dict(source=hidden[0, -n:].transpose(1, 2).flatten(1), projected=torch.cat(list(projected.values()), 1),
                      text=torch.cat([video[0], audio[0]], 1))
    save_file({key: t.contiguous() for key, t in references.items()}, os.path.join(folder, "reference.safetensors"))
    parts = dict(projection={}, connectors={})
    for key, t in model.state_dict().items():
        part = "projection" if key.split(".")[0] in PROJECTIONS else "connectors"
        parts[part][".".join(names.get(word, word) for word in key.split("."))] = t.contiguous()
    for part, tensors in parts.items():
        save_file(tensors, os.path.join(folder, f"{part}.safetensors"))
    # The authors' files have no configuration of the connectors; the channels are those of the text encoder.
    short = dict(caption_channels=channels, text_proj_in_factor=states)
    with open(os.path.join(folder, "expect.json"), "w", encoding="utf-8") as f:
        json.dump(dict(ltx2_text=short if names else config), f, indent=1)
        f.write("\n")
    block_tests.write(folder)
    print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes")


if __name__ == "__main__":
    for each, form in FORMS.items():
        write(each, **form)
