"""Packs a run into a resumable state that is small enough to commit, and unpacks it.

Weights and their average stay f32; the optimiser's momentum and the root of its second moment become bf16. The
autoencoder is kept in f32 beside them; the tokenizer is the exported model's.
"""
import argparse
import os
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def pack(args):
    s = torch.load(f"{args.run}/checkpoint.pt", map_location="cpu")
    os.makedirs(args.state, exist_ok=True)
    save_file({"flat": s["flat"], "ema": s["ema"], "momentum": s["state"][0].bfloat16(),
               "second_root": s["state"][1].sqrt().bfloat16()}, f"{args.state}/state.safetensors",
              {"step": str(s["step"]), "samples": str(s["samples"]), "elapsed": str(s["elapsed"])})
    os.chmod(f"{args.state}/state.safetensors", 0o644)
    shutil.copytree(f"{args.work}/vae", f"{args.state}/vae", dirs_exist_ok=True)


def unpack(args):
    path = f"{args.state}/state.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    os.makedirs(args.run, exist_ok=True)
    state = torch.stack([tensors["momentum"].float(), tensors["second_root"].float() ** 2])
    torch.save({"flat": tensors["flat"], "ema": tensors["ema"], "state": state, "step": int(about["step"]),
                "samples": int(about["samples"]), "elapsed": float(about["elapsed"])}, f"{args.run}/checkpoint.pt")
    shutil.copytree(f"{args.state}/vae", f"{args.work}/vae", dirs_exist_ok=True)
    shutil.copytree(f"{args.model}/tokenizer", f"{args.work}/tokenizer", dirs_exist_ok=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("--work", default="../../build/demo_train")
    parser.add_argument("--run", default="../../build/demo_train/run")
    parser.add_argument("--state", default="state")
    parser.add_argument("--model", default="../demo")
    args = parser.parse_args()
    {"pack": pack, "unpack": unpack}[args.what](args)


if __name__ == "__main__":
    main()
