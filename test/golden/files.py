"""Writes the files of a fixture: folder, JSON, and weights in one file or shards."""

import json
import os
import shutil

import block_tests
import diffusers
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64}
DTYPE_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=2)
        f.write("\n")


def write_weights(folder, stem, tensors, shards):
    """Writes tensors to one file, or to shards with the index in Hugging Face's format."""
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if shards == 1:
        save_file(tensors, os.path.join(folder, f"{stem}.safetensors"), metadata={"format": "pt"})
        return
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    parts, size = [{}], 0
    for name in sorted(tensors):
        if size >= total / shards * len(parts) and len(parts) < shards:
            parts.append({})
        parts[-1][name] = tensors[name]
        size += tensors[name].numel() * tensors[name].element_size()
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for i, part in enumerate(parts):
        file = f"{stem}-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
        index["weight_map"].update(dict.fromkeys(part, file))
    write_json(os.path.join(folder, f"{stem}.safetensors.index.json"), index)


def cast(model, dtype, exceptions=None):
    exceptions = exceptions or {}
    return {name: t.to(DTYPES[exceptions.get(name, dtype)]) for name, t in model.state_dict().items()}


def write_model(folder, model, dtype, exceptions=None, shards=1):
    """Writes a diffusers component: configuration and weights."""
    os.makedirs(folder)
    model.save_config(folder)
    write_weights(folder, "diffusion_pytorch_model", cast(model, dtype, exceptions), shards)


def begin_model(folder, form):
    """Creates the model's folder, with links to components shared with another fixture."""
    os.makedirs(folder)
    for part in form["shares"]:
        os.symlink(f"../../{form['share']}/model/{part}", os.path.join(folder, part))


def fixture_begin(out, name):
    """Creates an empty folder NAME.new; tests may still be reading the old fixture."""
    target = os.path.join(out, name + ".new")
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    return target


def fixture_end(out, spec, tensors, expect):
    """Writes reference tensors and expect.json, replaces the old fixture, and writes its block tests."""
    final = os.path.join(out, spec.name)
    target = final + ".new"
    for name, value in tensors.items():
        assert torch.isfinite(value).all() if value.is_floating_point() else True, name
    save_file({name: t.contiguous() for name, t in tensors.items()}, os.path.join(target, "reference.safetensors"))
    versions = {m.__name__: m.__version__ for m in (torch, diffusers, transformers, tokenizers)}
    with open(os.path.join(target, "expect.json"), "w", encoding="utf-8") as f:
        json.dump(dict(fixture=spec.name, seed=spec.seed, versions=versions) | expect, f, ensure_ascii=False, indent=1)
        f.write("\n")
    for kept in ("influence.txt", "bf16.json"):  # other scripts generate these files, so they move to the new folder
        if os.path.exists(os.path.join(final, kept)):
            shutil.copy(os.path.join(final, kept), target)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(target, final)
    if "blocks" in expect:
        block_tests.write(final)
    size = sum(os.path.getsize(os.path.join(root, file)) for root, _, files in os.walk(final) for file in files)
    print(f"{spec.name}: {size} bytes, {len(tensors)} reference tensors")
