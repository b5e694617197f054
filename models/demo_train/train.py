"""Trains the demo model's text encoder and transformer together, from scratch, on cached latents.

Two single-threaded worker processes share the parameters. They take a step's micro-batches from a shared counter, so a
worker on a busy core takes fewer. The schedule follows the clock: training ends after `--minutes` in all, with learning
rate zero, on any machine. The same command resumes a stopped run. With a GPU there is one worker.
"""
import argparse
import csv
import os
import random
import time

import numpy as np
import torch
import torch.multiprocessing as mp
from diffusers import AutoencoderKL

import data
import draw
import train_vae
from model import (IMAGE_TOKENS, Captions, Model, block_forward, denoise, denoise_patches, encode_text, modulated,
                   rope_tables, sample, to_patches)
from muon import Layout, Optimiser

ASPECTS = ["background", "colour", "side", "shape", "count"]
KINDS = {"one": dict(counts=[1]), "many": dict(counts=[2, 3]), "pair": dict(two_groups=True)}
PROBE_SIGMAS = [.9, .7, .5]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="../../build/demo_train", help="folder of VAE, tokenizer and cached latents")
    parser.add_argument("--run", default="../../build/demo_train/run", help="folder of checkpoint and log")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--refiners", type=int, default=1)
    parser.add_argument("--hold", type=float, default=.45, help="share of the time before the learning rate decays")
    parser.add_argument("--high-noise", type=float, default=.5, help="share of samples at shift 3 (others: 1.3)")
    parser.add_argument("--misname", type=float, default=.1, help="share of colour words replaced by random ones")
    parser.add_argument("--adamw", action="store_true", help="use AdamW for all parameters")
    parser.add_argument("--curriculum", type=float, default=0, help="fixed curriculum progress (0: follow training)")
    parser.add_argument("--eval-every", type=float, default=5, help="minutes between evaluations")
    parser.add_argument("--eval-prompts", type=int, default=32, help="prompts of each kind per evaluation")
    return parser.parse_args()


# --- one micro-batch -------------------------------------------------------------------------------------------------

class Batches:
    def __init__(self, args, captions, transformer, device):
        self.args, self.transformer, self.device, self.pools = args, transformer, device, {}
        self.empty, self.pad = captions([""])[0][0], captions.pad
        self.colours = torch.tensor([captions.tokenizer.encode(f" {c}").ids[0] for c in draw.COLOURS])

    def pools_of(self, name):
        """Returns [(pool, rope)] of every size; opened at first use."""
        if name not in self.pools:
            self.pools[name] = [(p, [a.to(self.device) for a in rope_tables(self.transformer, *p["latents"].shape[2:])])
                                for p in data.load(f"{self.args.work}/latents", name)]
        return self.pools[name]

    def misname(self, ids, rng):
        """Replaces some colour words by random ones. The model becomes less sure of colours, which guidance corrects;
        otherwise guidance would have no effect on such simple images."""
        wrong = (torch.rand(ids.shape, generator=rng) < self.args.misname) & torch.isin(ids, self.colours)
        return torch.where(wrong, self.colours[torch.randint(len(self.colours), ids.shape, generator=rng)], ids)

    def __call__(self, step, index, done):
        """Returns the arguments of `loss_of` after `blocks`; deterministic in step, index and done."""
        pick = random.Random(step * 1000 + index)
        share = data.weights(self.args.curriculum or done)
        pool, rope = pick.choice(self.pools_of(pick.choices(list(share), list(share.values()))[0]))
        rng = torch.Generator().manual_seed(step * 1000 + index)
        n = self.args.micro
        rows = torch.randint(len(pool["ids"]), (n,), generator=rng)
        latents, ids = pool["latents"][rows].float(), pool["ids"][rows]
        # One caption in ten is replaced by the empty one, for classifier-free guidance.
        ids = torch.where((torch.rand(n, generator=rng) < .1)[:, None], self.empty, ids)
        ids = self.misname(ids, rng)
        # Noise levels: stratified (one per n-th of [0, 1)), then shifted; less variance than independent ones.
        u = (torch.randperm(n, generator=rng) + torch.rand(n, generator=rng)) / n
        shift = torch.where(torch.rand(n, generator=rng) < self.args.high_noise, 3.0, 1.3)
        sigma = shift * u / (1 + (shift - 1) * u)
        noise = torch.randn(latents.shape, generator=rng)
        height, width = latents.shape[2:]
        is_image = torch.arange(IMAGE_TOKENS) < height // 2 * (width // 2)
        batch = to_patches(latents), to_patches(noise), sigma, ids, ids == self.pad, is_image
        return *[a.to(self.device) for a in batch], *rope


def loss_of(model, blocks, latents, noise, sigma, ids, is_pad, is_image, cos, sin):
    """Mean squared error of latent - noise over image tokens without padding. latents, noise: patches (B, 64, 64)."""
    noisy = torch.lerp(latents, noise, sigma[:, None, None])
    text = encode_text(model.text, ids)
    out = denoise_patches(model.transformer, noisy, sigma, text, is_pad, is_image, cos, sin, *blocks)
    error = (out.float() - (latents - noise)).square().mean(-1) * is_image
    return error.sum() / (len(error) * is_image.sum())


# --- measuring -------------------------------------------------------------------------------------------------------

def scenes(kind, n, seed):
    rng = random.Random(seed)
    return [draw.random_scene(rng, held_out=True, **KINDS[kind]) for _ in range(n)]


def reader_scores(model, vae, captions, which, seed, device, steps=12, cfg_scale=3.0):
    """Generates the scenes `which`, runs the reader on them, returns (correct, total) per aspect."""
    totals = np.zeros((len(ASPECTS), 2))
    for i in range(0, len(which), 16):
        some = which[i:i + 16]
        noise = torch.randn(len(some), 16, 16, 16, generator=torch.Generator().manual_seed(seed + i))
        latents = sample(model, captions, [draw.caption(s) for s in some], noise.to(device), steps, cfg_scale).cpu()
        with torch.no_grad():
            images = train_vae.to_images(vae.decode(data.denormalised(vae, latents)).sample)
        for scene, image in zip(some, images):
            for aspect, right in draw.score(scene, draw.read(image)).items():
                totals[ASPECTS.index(aspect)] += right, 1
    return totals


@torch.no_grad()
def word_probe(model, vae, captions, seed, device, n=64):
    """Share of held-out images that the true shape word denoises best, by noise level. An early indicator."""
    which = scenes("one", n, seed)
    rng = random.Random(seed)
    x = train_vae.to_tensor([draw.draw(s, rng) for s in which])
    latents = data.normalised(vae, vae.encode(x).latent_dist.mode()).to(device)
    noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(seed)).to(device)
    rope = [a.to(device) for a in rope_tables(model.transformer, 16, 16)]
    errors = torch.zeros(len(PROBE_SIGMAS), len(draw.SHAPES), n)
    for j, shape in enumerate(draw.SHAPES):
        prompts = [draw.caption(draw.Scene(s.background, [draw.Group(1, s.groups[0].colour, shape, s.groups[0].size,
                                                                     s.groups[0].place)])) for s in which]
        ids, is_pad = (a.to(device) for a in captions(prompts))
        text = encode_text(model.text, ids)
        for i, sigma in enumerate(PROBE_SIGMAS):
            noisy = torch.lerp(latents, noise, sigma)
            out = denoise(model.transformer, noisy, torch.full((n,), sigma, device=device), text, is_pad, rope)
            errors[i, j] = (out - (latents - noise)).square().mean((1, 2, 3)).cpu()
    truth = torch.tensor([draw.SHAPES.index(s.groups[0].shape) for s in which])
    return (errors.argmin(1) == truth).float().mean(1).numpy()


# --- the workers -----------------------------------------------------------------------------------------------------

class Shared:
    """State shared by the workers: parameters, moving average, optimiser state, gradients, counters."""

    def __init__(self, size, workers, device):
        make = lambda *shape: torch.zeros(*shape, device=device).share_memory_()
        self.flat, self.ema, self.state, self.grads = make(size), make(size), make(2, size), make(workers, size)
        self.loss, self.scores, self.probe = make(workers), make(workers, len(KINDS), len(ASPECTS), 2), make(3)
        self.next, self.barrier = mp.Value("i", 0), mp.Barrier(workers)
        self.step, self.samples, self.elapsed = mp.Value("l", 0), mp.Value("l", 0), mp.Value("d", 0.0)

    def take(self):
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1


def rate_at(args, step, done):
    return args.rate * min(1, (step + 1) / 100) * min(1.0, (1 - done) / (1 - args.hold))


def save(args, shared):
    state = {"flat": shared.flat, "ema": shared.ema, "state": shared.state, "step": shared.step.value,
             "samples": shared.samples.value, "elapsed": shared.elapsed.value}
    torch.save(state, f"{args.run}/checkpoint.pt.tmp")
    os.rename(f"{args.run}/checkpoint.pt.tmp", f"{args.run}/checkpoint.pt")


def log(args, shared, loss, samples_per_s):
    scores = shared.scores.sum(0).cpu().numpy()
    row = {"minutes": round(shared.elapsed.value / 60, 2), "step": shared.step.value,
           "samples": shared.samples.value, "samples_per_s": round(samples_per_s, 1), "loss": round(loss, 5)}
    row |= {f"word_{s}": round(float(p), 3) for s, p in zip(PROBE_SIGMAS, shared.probe)}
    for kind, by_aspect in zip(KINDS, scores):
        row |= {f"{kind}_{a}": round(float(right / max(asked, 1)), 3) for a, (right, asked) in zip(ASPECTS, by_aspect)}
    path = f"{args.run}/log.csv"
    is_new = not os.path.exists(path)
    with open(path, "a", newline="") as out:
        writer = csv.DictWriter(out, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    print(row, flush=True)


def worker(me, args, shared, layout, model, device):
    torch.set_num_threads(1 if args.workers > 1 else max(1, torch.get_num_threads()))
    captions = Captions(f"{args.work}/tokenizer")
    vae = AutoencoderKL.from_pretrained(f"{args.work}/vae").eval()
    layout.bind(model, shared.flat, shared.grads[me])
    averaged = Model(captions.tokenizer.get_vocab_size(), args.dim, args.layers, args.refiners).to(device)
    layout.bind(averaged, shared.ema)
    optimiser = Optimiser(layout, shared.flat, shared.state, me, args.workers)
    batches = Batches(args, captions, model.transformer, device)
    blocks = torch.compile(modulated, dynamic=False), torch.compile(block_forward, dynamic=False)

    def backward(step, index, done):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(model, blocks, *batches(step, index, done)) / micros
        loss.backward()
        return loss.detach()

    mine = slice(layout.size * me // args.workers, layout.size * (me + 1) // args.workers)
    total, micros = args.minutes * 60, args.batch // args.micro
    last_eval, last_save, losses, since = shared.elapsed.value, time.time(), [], (time.time(), shared.step.value)
    for turn in range(args.workers):  # one after another: the first fills the compile cache for the others
        if turn == me:
            backward(0, 0, 0)
        shared.barrier.wait()
    started = time.time() - shared.elapsed.value
    while True:
        step, done = shared.step.value, min(1.0, shared.elapsed.value / total)
        if done >= 1:
            break
        shared.grads[me].zero_()
        shared.loss[me] = 0
        while (index := shared.take()) < micros:
            shared.loss[me] += backward(step, index, done)
        shared.barrier.wait()
        optimiser.step(list(shared.grads), rate_at(args, step, done), step + 1)
        if me == 0:
            losses.append(shared.loss.sum().item())
            shared.next.value, shared.step.value, shared.elapsed.value = 0, step + 1, time.time() - started
            shared.samples.value += args.batch
        shared.barrier.wait()
        # The averaging window grows with the step.
        shared.ema[mine].lerp_(shared.flat[mine], max(1 / (step / 4 + 1), .001))
        is_last = shared.elapsed.value >= total
        if shared.elapsed.value - last_eval >= 60 * args.eval_every or is_last:
            shared.barrier.wait()  # wait for the other workers' parts of the average
            last_eval = shared.elapsed.value
            for i, kind in enumerate(KINDS):
                if kind not in data.weights(args.curriculum or done):
                    continue
                which = scenes(kind, args.eval_prompts, 77)[me::args.workers]
                shared.scores[me, i] = torch.from_numpy(
                    reader_scores(averaged, vae, captions, which, 1000 * me, device))
            if me == args.workers - 1:
                shared.probe.copy_(torch.from_numpy(word_probe(averaged, vae, captions, 78, device)))
            shared.barrier.wait()
            if me == 0:
                speed = (shared.step.value - since[1]) * args.batch / (time.time() - since[0])
                log(args, shared, float(np.mean(losses)), speed)
                losses, since = [], (time.time(), shared.step.value)
        elif me == 0 and (step + 1) % 200 == 0:
            print(f"step {step + 1} {shared.elapsed.value / 60:.1f} min loss {np.mean(losses[-200:]):.4f}", flush=True)
        if me == 0 and (time.time() - last_save > 180 or is_last):
            last_save = time.time()
            save(args, shared)


def main():
    args = arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        args.workers, args.micro = 1, args.batch
    torch.set_num_threads(torch.get_num_threads() if args.workers == 1 else 1)  # threads do not survive a fork
    os.makedirs(args.run, exist_ok=True)
    captions = Captions(f"{args.work}/tokenizer")
    model = Model(captions.tokenizer.get_vocab_size(), args.dim, args.layers, args.refiners).to(device)
    layout = Layout(model, muon=not args.adamw)
    shared = Shared(layout.size, args.workers, device)
    layout.bind(model, shared.flat, fill=True)
    shared.ema.copy_(shared.flat)
    path = f"{args.run}/checkpoint.pt"
    if os.path.exists(path):
        state = torch.load(path, map_location=device)
        for name in ("flat", "ema", "state"):
            getattr(shared, name).copy_(state[name])
        shared.step.value, shared.samples.value = state["step"], state["samples"]
        shared.elapsed.value = state["elapsed"]
    print("trained parameters", layout.size, "from step", shared.step.value, flush=True)
    if args.workers == 1:
        worker(0, args, shared, layout, model, device)
    else:
        mp.start_processes(worker, (args, shared, layout, model, device), args.workers, start_method="fork")


if __name__ == "__main__":
    main()
