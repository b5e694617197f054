"""Z-Image's shards as one file with q, k and v fused, as stable-diffusion.cpp reads it, for bench/peers.sh.

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
