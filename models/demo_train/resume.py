"""Creates a checkpoint to continue training from the shipped model: weights, VAE, tokenizer and elapsed minutes.

The optimiser state starts at zero with a new warm-up of 100 steps, so the model alone is sufficient.
"""
import argparse
import csv
import os
import shutil

import torch
from diffusers import ZImagePipeline

from model import Captions, Model
from muon import Layout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="../demo")
    parser.add_argument("--log", default="log.csv", help="log of the training so far")
    parser.add_argument("--work", default="../../build/demo_train")
    parser.add_argument("--run", default="../../build/demo_train/run")
    args = parser.parse_args()
    with open(args.log) as file:
        last = list(csv.DictReader(file))[-1]
    pipe = ZImagePipeline.from_pretrained(args.model, torch_dtype=torch.float32)
    os.makedirs(args.run, exist_ok=True)
    pipe.vae.save_pretrained(f"{args.work}/vae")
    shutil.copytree(f"{args.model}/tokenizer", f"{args.work}/tokenizer", dirs_exist_ok=True)
    config = pipe.transformer.config
    model = Model(Captions(f"{args.work}/tokenizer").tokenizer.get_vocab_size(), config.dim, config.n_layers,
                  config.n_refiner_layers)
    model.text.load_state_dict(pipe.text_encoder.state_dict())
    model.transformer.load_state_dict(pipe.transformer.state_dict())
    layout = Layout(model)
    flat = torch.zeros(layout.size)
    layout.bind(model, flat, fill=True)
    torch.save({"flat": flat, "ema": flat.clone(), "state": torch.zeros(2, layout.size), "step": 0,
                "samples": int(last["samples"]), "elapsed": 60 * float(last["minutes"])}, f"{args.run}/checkpoint.pt")
    print(f"{last['minutes']} minutes trained so far; next: python data.py && python train.py --minutes TOTAL")


if __name__ == "__main__":
    main()
