"""Trains a control network for the demo model: white outlines on black decide where the shapes lie.

The network has the form of Z-Image's Union 1.0 (ZImageControlNetModel in diffusers, `--control-net` in Sluice): an
embedder of the encoded outlines, one plain refiner block, and control layers at the transformer's layers 0 and 3. It
has 0.85 million parameters, 1.7 MB in bf16, and begins as a copy of the transformer's blocks. Transformer, text encoder
and VAE stay frozen.

    python train_control.py --minutes 60           run again to resume; --out also writes the diffusers folder
    python train_control.py --minutes 0 --evaluate 100 --out ../demo/controlnet

Captions name no place: only the outlines give it. Drawings and outlines are encoded once, to work/control.pt.
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import ZImagePipeline
from diffusers.models.controlnets.controlnet_z_image import ZImageControlNetModel

import data
import draw
import model as demo
import train_vae

PLACES, IMAGE = [0, 3], demo.IMAGE_TOKENS


def outlines_of(picture, thick):
    """White outlines on black of a drawing, (Y, X, 3): pixels whose colour class differs from a neighbour's."""
    labels = draw.classes(picture)
    edges = np.zeros(labels.shape, bool)
    edges[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    edges[:-1] |= labels[:-1] != labels[1:]
    if thick:
        edges = draw.dilated(edges)
    return np.repeat((255 * edges).astype(np.uint8)[..., None], 3, 2)


def example(seed, held_out=False):
    """Returns (caption without places, drawing, outlines, scene)."""
    rng = random.Random(seed)
    scene = draw.random_scene(rng, two_groups=seed % 3 == 2, held_out=held_out)
    picture = draw.draw(scene, rng)
    for group in scene.groups:
        group.place, group.size = None, group.size if rng.random() < .3 else None
    return draw.caption(scene), picture, outlines_of(picture, rng.random() < .3), scene


@torch.no_grad()
def encode(vae, pictures):
    return data.normalised(vae, vae.encode(train_vae.to_tensor(pictures)).latent_dist.mode())


def load_examples(path, vae, captions, n):
    """Returns latents of drawings and outlines (N, 16, 16, 16) and caption ids, from the file or made and stored."""
    made = torch.load(path) if os.path.exists(path) else {"latents": [], "outlines": [], "ids": []}
    while len(made["ids"]) * 16 < n:
        some = [example(len(made["ids"]) * 16 + k) for k in range(16)]
        made["latents"].append(encode(vae, [s[1] for s in some]).half())
        made["outlines"].append(encode(vae, [s[2] for s in some]).half())
        made["ids"].append(captions([s[0] for s in some])[0])
        if len(made["ids"]) % 50 == 0 or len(made["ids"]) * 16 >= n:
            torch.save(made, path + ".tmp")
            os.rename(path + ".tmp", path)
            print(f"{16 * len(made['ids'])} of {n} examples", flush=True)
    return [torch.cat(made[name]) for name in ("latents", "outlines", "ids")]


def new_network(transformer):
    """A network that begins as a copy of the transformer's blocks and has no effect yet."""
    config = transformer.config
    net = ZImageControlNetModel(
        control_layers_places=PLACES, control_in_dim=demo.CHANNELS, dim=config.dim, n_refiner_layers=config.n_refiner_layers,
        n_heads=config.n_heads, n_kv_heads=config.n_kv_heads, norm_eps=config.norm_eps)
    net.control_all_x_embedder.load_state_dict(transformer.all_x_embedder.state_dict())
    net.control_noise_refiner.load_state_dict(transformer.noise_refiner.state_dict())
    for block, place in zip(net.control_layers, PLACES):
        block.load_state_dict(transformer.layers[place].state_dict(), strict=False)
        torch.nn.init.zeros_(block.after_proj.weight)
        torch.nn.init.zeros_(block.after_proj.bias)
    torch.nn.init.zeros_(net.control_layers[0].before_proj.weight)
    torch.nn.init.eye_(net.control_layers[0].before_proj.weight)
    torch.nn.init.zeros_(net.control_layers[0].before_proj.bias)
    return net


def denoise(t, net, latents, outlines, sigma, text, is_pad, rope, strength=1.0):
    """model.denoise with the control network; every image has 64 tokens, so there is no padding."""
    cos, sin = rope
    height, width = latents.shape[2:]
    time_ = t.t_embedder((1 - sigma) * t.t_scale)
    x, c = t.all_x_embedder["2-1"](demo.to_patches(latents)), net.control_all_x_embedder["2-1"](demo.to_patches(outlines))
    for block in t.noise_refiner:
        x = demo.modulated(block, x, cos[:IMAGE], sin[:IMAGE], time_)
    for block in net.control_noise_refiner:
        c = demo.modulated(block, c, cos[:IMAGE], sin[:IMAGE], time_)
    caption = torch.where(is_pad[..., None], t.cap_pad_token, t.cap_embedder[1](demo.norm(text, t.cap_embedder[0])))
    for block in t.context_refiner:
        caption = demo.block_forward(block, caption, cos[IMAGE:], sin[IMAGE:])
    x, c = torch.cat([x, caption], 1), torch.cat([c, caption], 1)
    c = net.control_layers[0].before_proj(c) + x
    for i, block in enumerate(t.layers):
        hint = 0
        if i in PLACES:
            control = net.control_layers[PLACES.index(i)]
            c = demo.modulated(control, c, cos, sin, time_)
            hint = strength * control.after_proj(c)
        x = demo.modulated(block, x, cos, sin, time_) + hint
    final = t.all_final_layer["2-1"]
    scale = 1 + final.adaLN_modulation(time_)[:, None]
    return demo.from_patches(final.linear(F.layer_norm(x[:, :IMAGE], (x.shape[-1],), eps=1e-6) * scale), height, width)


@torch.no_grad()
def evaluate(pipe, net, captions, n, steps=12, cfg_scale=4.0):
    """Share of n held-out examples whose shapes fill the outlines (intersection over union of foregrounds above .8),
    and the mean of that ratio."""
    ratios, t = [], pipe.transformer
    rope = demo.rope_tables(t, 16, 16)
    for first in range(0, n, 20):
        some = [example(10 ** 9 + first + k, held_out=True) for k in range(min(20, n - first))]
        outlines = encode(pipe.vae, [s[2] for s in some])
        ids, is_pad = captions([s[0] for s in some] + [""] * len(some))
        text = demo.encode_text(pipe.text_encoder, ids)
        x = torch.randn(len(some), 16, 16, 16, generator=torch.Generator().manual_seed(first))
        levels = demo.sigmas(steps)
        for now, after in zip(levels[:-1], levels[1:]):
            both = denoise(t, net, torch.cat([x, x]), torch.cat([outlines, outlines]), now.expand(2 * len(x)), text, is_pad, rope)
            with_caption, without = both.chunk(2)
            x = x + (now - after) * (without + cfg_scale * (with_caption - without))
        images = train_vae.to_images(pipe.vae.decode(data.denormalised(pipe.vae, x)).sample)
        for (_, picture, _, scene), image in zip(some, images):
            background = draw.COLOURS.index(scene.background)
            a, b = draw.classes(picture) != background, draw.classes(image) != background
            ratios.append((a & b).sum() / max(1, (a | b).sum()))
    return float(np.mean(np.array(ratios) > .8)), float(np.mean(ratios))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="../demo")
    parser.add_argument("--work", default="../../build/demo_train")
    parser.add_argument("--minutes", type=float, default=60, help="training time in total, with earlier runs")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", type=int, default=40)
    parser.add_argument("--out", help="folder of the trained network")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.makedirs(args.work, exist_ok=True)
    torch.manual_seed(0)
    pipe = ZImagePipeline.from_pretrained(args.model, torch_dtype=torch.float32)
    captions = demo.Captions(f"{args.model}/tokenizer")
    for frozen in (pipe.transformer, pipe.text_encoder, pipe.vae):
        frozen.requires_grad_(False).eval()
    net, path, done, step = new_network(pipe.transformer), f"{args.work}/control_net.pt", 0.0, 0
    optimiser = torch.optim.AdamW(net.parameters(), args.rate, betas=(.9, .98), weight_decay=.01)
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    if os.path.exists(path):
        state = torch.load(path)
        net.load_state_dict(state["net"])
        optimiser.load_state_dict(state["optimiser"])
        average, done, step = state["average"], state["seconds"], state["step"]
    rope, total = demo.rope_tables(pipe.transformer, 16, 16), 60 * args.minutes
    if done < total:
        latents, outlines, ids = load_examples(f"{args.work}/control.pt", pipe.vae, captions, args.examples)
        text = torch.cat([demo.encode_text(pipe.text_encoder, i) for i in ids.split(64)])
        empty_ids, empty_pad = captions([""])
        empty = demo.encode_text(pipe.text_encoder, empty_ids)
    began, saved, losses = time.time() - done, time.time(), []
    while done < total:
        chosen = torch.randint(len(ids), (args.batch,))
        clean, noise = latents[chosen].float(), torch.randn(args.batch, 16, 16, 16)
        sigma = torch.rand(args.batch)
        sigma = demo.SHIFT * sigma / (1 + (demo.SHIFT - 1) * sigma)
        uncaptioned = torch.rand(args.batch) < .15
        hidden = torch.where(uncaptioned[:, None, None], empty, text[chosen])
        pad = torch.where(uncaptioned[:, None], empty_pad, ids[chosen] == captions.pad)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            noisy = torch.lerp(clean, noise, sigma[:, None, None, None])
            out = denoise(pipe.transformer, net, noisy, outlines[chosen].float(), sigma, hidden, pad, rope)
        loss = (out.float() - (clean - noise)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min(1, (step + 1) / 50) * min(1, 2 * (1 - done / total) + .02)
        optimiser.step()
        step, done = step + 1, time.time() - began
        for name, p in net.named_parameters():
            average[name].lerp_(p.detach(), max(1 / (step / 4 + 1), .005))
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step}, {done / 60:.1f} min, loss {np.mean(losses[-50:]):.4f}", flush=True)
        if time.time() - saved > 60 or done >= total:
            saved = time.time()
            torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict(), "average": average, "seconds": done, "step": step}, path + ".tmp")
            os.rename(path + ".tmp", path)
    net.load_state_dict(average)
    print("parameters", sum(p.numel() for p in net.parameters()))
    if args.evaluate:
        print("share that follows the outlines, mean ratio:", evaluate(pipe, net.eval(), captions, args.evaluate))
    if args.out:
        net.to(torch.bfloat16).save_pretrained(args.out)


if __name__ == "__main__":
    main()
