"""Merges Z-Image's shards into one file with fused q, k and v, as stable-diffusion.cpp expects, for bench/peers.sh.

  peers_fuse.py FOLDER OUT.safetensors
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file


def main():
    tensors = {}
    for shard in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
        tensors.update(load_file(shard))
    for name in [n for n in tensors if n.endswith(".to_q.weight")]:
        block = name.removesuffix("to_q.weight")
        rows = [tensors.pop(f"{block}to_{which}.weight") for which in "qkv"]
        tensors[block + "qkv.weight"] = torch.cat(rows)
    save_file(tensors, sys.argv[2])


main()
