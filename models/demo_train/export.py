"""Writes the averaged weights of a training run as a Hugging Face folder in bf16, plus sluice.json."""
import argparse
import json
import os

import torch
from diffusers import AutoencoderKL

from model import Captions, Model, save_pipeline
from muon import Layout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="../../build/demo_train")
    parser.add_argument("--run", default="../../build/demo_train/run")
    parser.add_argument("--out", required=True)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--refiners", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cfg-scale", type=float, default=4.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    state = torch.load(f"{args.run}/checkpoint.pt", map_location="cpu")
    tokenizer = f"{args.work}/tokenizer"
    model = Model(Captions(tokenizer).tokenizer.get_vocab_size(), args.dim, args.layers, args.refiners)
    Layout(model).bind(model, state["ema"])
    save_pipeline(model, AutoencoderKL.from_pretrained(f"{args.work}/vae"), tokenizer, args.out)
    with open(f"{args.out}/sluice.json", "w") as out:
        json.dump({"width": 128, "height": 128, "steps": args.steps, "cfg_scale": args.cfg_scale}, out)
        out.write("\n")
    paths = [os.path.join(d, f) for d, _, files in os.walk(args.out) for f in files]
    for path in paths:
        os.chmod(path, 0o644)  # safetensors creates files with mode 0600
    size = sum(os.path.getsize(path) for path in paths)
    print(f"step {state['step']}, {state['elapsed'] / 60:.1f} minutes trained, {size / 1e6:.2f} MB in {args.out}")


if __name__ == "__main__":
    main()
