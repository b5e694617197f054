"""Small adapters (LoRA) of transformers, for fixtures whose subject is something else."""

import contextlib

import torch
from safetensors.torch import load_file, save_file

RANK = 2


def write(path, seed, dim, layers):
    """Writes an adapter of some linear layers of a transformer's first block, in peft's names; layers: rows and columns
    of each, in units of dim."""
    generator, tensors = torch.Generator().manual_seed(seed % 2**31), {}
    for name, (rows, columns) in layers.items():
        key = f"transformer.transformer_blocks.0.{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(RANK, columns * dim, generator=generator) / (columns * dim)**0.5
        tensors[f"{key}.lora_B.weight"] = 0.5 * torch.randn(rows * dim, RANK, generator=generator)
    save_file(tensors, path, metadata={"format": "pt"})


def read(path):
    return load_file(path)


@contextlib.contextmanager
def merged(transformer, tensors, adapters):
    """Context in which the transformer's weights contain a case's adapters, all of these tensors."""
    kept = []
    for adapter in adapters:
        for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
            weight = transformer.get_submodule(key.removeprefix("transformer.").removesuffix(".lora_A.weight")).weight
            kept.insert(0, (weight, weight.clone()))
            delta = tensors[key.replace("lora_A", "lora_B")].double() @ tensors[key].double()
            weight.copy_((weight.double() + adapter["strength"] * delta).to(weight.dtype))
    yield
    for weight, before in kept:
        weight.copy_(before)
