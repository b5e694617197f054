"""Files of stored weights: renamed and fused tensors, GGUF, ComfyUI's formats."""

import json
import os

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

import stored_types

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 20261122


def fuse(state, to, parts):
    for tail in (".weight", ".bias"):
        if parts[0] + tail in state:
            state[to + tail] = torch.cat([state.pop(p + tail) for p in parts])


def rename(state, pairs):
    out = {}
    for name, tensor in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = tensor
    return out


QWEN_GGUF = [("embed_tokens", "token_embd"), ("layers.", "blk."), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
             ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("self_attn.q_proj", "attn_q"),
             ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"),
             ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")]


def qwen_names(state):
    state = rename(state, QWEN_GGUF)
    return {("output_norm.weight" if name == "norm.weight" else name): tensor for name, tensor in state.items()}


def type_of(name, types, fallback):
    return next((kind for part, kind in types if part in name), fallback)


def write_gguf(path, writer, state, types):
    """Writes a GGUF file: matrices in the types given for their names, other tensors in f32. Returns the decoded
    values and counts of types."""
    rng, values, used = np.random.default_rng(SEED), {}, {}
    for name, tensor in state.items():
        kind = type_of(name, types, "F32") if tensor.dim() == 2 else "F32"
        data, value = stored_types.of_gguf(tensor.numpy(), kind, rng)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
        values[name] = torch.from_numpy(value.copy())
        used[kind] = used.get(kind, 0) + 1
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values, used


def write_comfy(path, state, types, prefix, by_metadata):
    """Writes a model in ComfyUI's format; tensors without a type keep theirs. Layer descriptions are tensors, or
    (by_metadata) in the file's metadata.
    Returns the decoded values and counts of types."""
    tensors, values, described, used = {}, {}, {}, {}
    for name, tensor in state.items():
        layer, kind = name.removesuffix(".weight"), type_of(name, types, None)
        if kind is None or tensor.dim() != 2:
            tensors[prefix + name], values[name] = tensor, tensor.float()
            continue
        stored, values[name], form = stored_types.of_comfy(tensor.float(), kind)
        tensors |= {f"{prefix}{layer}.{end}": t for end, t in stored.items()}
        used[kind] = used.get(kind, 0) + 1
        if form and any(part in name for part in by_metadata):
            described[layer] = form
        elif form:
            text = json.dumps(form).encode()
            tensors[f"{prefix}{layer}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": described})} if described else None
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, metadata=metadata)
    return values, used


def write_scaled_fp8(path, state):
    """Writes a model in ComfyUI's older scaled fp8: a marker for the file, and scale_weight for each matrix except
    the embedding."""
    tensors, values = {"scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn)}, {}
    for name, tensor in state.items():
        if tensor.dim() != 2 or "shared" in name or "bias" in name:
            values[name] = tensor.half().float()
            tensors[name] = tensor.half()
            continue
        stored, values[name], _ = stored_types.of_comfy(tensor, "f8_e4m3")
        tensors[name] = stored["weight"]
        tensors[name.removesuffix("weight") + "scale_weight"] = stored["weight_scale"]
        tensors[name.removesuffix("weight") + "scale_input"] = torch.ones(())
    save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return values


def link(folder, name, to):
    """Links a component of another fixture into the folder."""
    os.symlink(os.path.relpath(os.path.join(HERE, to), os.path.join(HERE, "stored", "NAME", "model")), os.path.join(folder, name))


def part(folder, *names):
    path = os.path.join(folder, *names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def guided_case(columns, rows):
    """Returns a guided image case; its grid is in tokens of 2x2 latent pixels of 8x8 pixels."""
    return dict(index=0, kind="image", prompt="a red fox in the snow, golden hour", negative_prompt="blurry, low quality", steps=3, cfg_scale=2.5,
                width=16 * columns, height=16 * rows, seed=42, batch=1, flow_shift=None, channels=5, init=False, mask=False, references=[],
                latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows)
