"""Creates the training set: pools of drawings, encoded once to latents and stored on disk.

A pool holds one kind of scene at one size. The curriculum sets the share of each pool by training progress.
"""
import argparse
import os
import random
from concurrent.futures import ProcessPoolExecutor

import torch
from diffusers import AutoencoderKL

import draw
import train_vae
from model import Captions, save_tokenizer

# name: (counts, two groups (None: 40 % of scenes), sizes, pictures per size)
POOLS = {"one": ([1], False, [(128, 128)], 16000),
         "many": ([2, 3], False, [(128, 128)], 16000),
         "pair": ([1, 2, 3], True, [(128, 128)], 24000),
         "wide": ([1, 2, 3], None, [(160, 96), (96, 160), (128, 96), (96, 128)], 5000)}


def drawing(job):
    name, seed, width, height = job
    counts, two_groups, _, _ = POOLS[name]
    rng = random.Random(seed)
    if two_groups is None:
        two_groups = rng.random() < .4
    scene = draw.random_scene(rng, two_groups, counts)
    picture = draw.draw(scene, rng, width, height)
    return draw.caption(draw.loosen(scene, rng)), picture


def normalised(vae, latents):
    return (latents - vae.config.shift_factor) * vae.config.scaling_factor


def denormalised(vae, latents):
    return latents / vae.config.scaling_factor + vae.config.shift_factor


@torch.no_grad()
def encode_pool(vae, captions, jobs, executor):
    prompts, latents = [], []
    for i in range(0, len(jobs), 16):  # batches of 16 fit the CPU cache: twice as fast as 64
        drawn = list(executor.map(drawing, jobs[i:i + 16], chunksize=8))
        prompts += [p for p, _ in drawn]
        x = train_vae.to_tensor([p for _, p in drawn])
        latents.append(normalised(vae, vae.encode(x).latent_dist.mode()).half())
    ids, _ = captions(prompts)
    return {"latents": torch.cat(latents).contiguous(), "ids": ids}


def load(folder, name):
    """Returns [pool per size]; a pool is {"latents": (N, 16, Y, X) f16, "ids": (N, 32)}, memory-mapped."""
    return torch.load(f"{folder}/{name}.pt", mmap=True)


def weights(done):
    """Share of each pool at training progress `done` (0 to 1): single shapes first, then counts, then two groups."""
    if done < .15:
        return {"one": 1.0}
    if done < .55:
        return {"one": .45, "many": .55}
    return {"one": .18, "many": .36, "pair": .28, "wide": .18}


def main():
    parser = argparse.ArgumentParser(description="Creates the missing pools of the training set.")
    parser.add_argument("--work", default="../../build/demo_train")
    work = parser.parse_args().work
    folder = f"{work}/latents"
    os.makedirs(folder, exist_ok=True)
    with ProcessPoolExecutor(2) as executor:
        list(executor.map(abs, range(4)))  # fork before torch starts threads
        vae = AutoencoderKL.from_pretrained(f"{work}/vae").eval().to(memory_format=torch.channels_last)
        if not os.path.exists(f"{work}/tokenizer/tokenizer.json"):
            save_tokenizer(f"{work}/tokenizer")
        captions = Captions(f"{work}/tokenizer")
        for i, (name, (_, _, sizes, n)) in enumerate(POOLS.items()):
            path = f"{folder}/{name}.pt"
            if not os.path.exists(path):
                torch.save([encode_pool(vae, captions, [(name, (10 * i + j) * 10 ** 6 + k, *size) for k in range(n)],
                                        executor) for j, size in enumerate(sizes)], path + ".tmp")
                os.rename(path + ".tmp", path)


if __name__ == "__main__":
    main()
