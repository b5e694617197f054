"""Trains the demo model's autoencoder: a small standard AutoencoderKL, 16 latent channels, 8x down.

Half of the images are dense (12 to 40 shapes), because drawings of the grammar have too few edges to learn from. The
other half are such drawings, because group norm statistics differ there. A KL term keeps the latents small and smooth,
hence easy to denoise. At the end the script prints reader scores on reconstructions, and latent mean and scale.
"""
import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from diffusers import AutoencoderKL

import draw

SIZES = [(128, 128), (160, 96), (96, 160), (128, 96), (96, 128)]


def new_vae():
    levels = 4
    return AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * levels, up_block_types=["UpDecoderBlock2D"] * levels,
                         block_out_channels=[16, 16, 32, 48], layers_per_block=1, latent_channels=16, norm_num_groups=8,
                         sample_size=128, use_quant_conv=False, use_post_quant_conv=False, force_upcast=False)


def picture(seed):
    """Returns a dense image for odd seeds, a drawing of the grammar for even ones."""
    rng = random.Random(seed)
    if seed % 2:
        return draw.draw_dense(rng)
    return draw.draw(draw.random_scene(rng, two_groups=seed % 4 == 0), rng)


def pictures(n, seed):
    with ProcessPoolExecutor(2) as pool:
        return np.stack(list(pool.map(picture, range(seed, seed + n), chunksize=64)))


def to_tensor(images):
    x = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return x.contiguous(memory_format=torch.channels_last)


def to_images(x):
    return ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()


@torch.no_grad()
def readings(vae, n, seed):
    """Reader accuracy on VAE reconstructions of drawings, by aspect."""
    rng = random.Random(seed)
    totals = {}
    for i in range(n):
        scene = draw.random_scene(rng, two_groups=i % 2 == 1)
        image = draw.draw(scene, rng, *SIZES[rng.choice([0, 0, 1, 2, 3, 4])])
        x = to_tensor(image[None])
        back = to_images(vae.decode(vae.encode(x).latent_dist.mode()).sample)[0]
        for aspect, right in draw.score(scene, draw.read(back)).items():
            totals.setdefault(aspect, []).append(right)
    return {aspect: round(float(np.mean(v)), 4) for aspect, v in totals.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="../../build/demo_train/vae")
    parser.add_argument("--resume", metavar="FOLDER", help="start from the weights in this folder")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pictures", type=int, default=9000)
    parser.add_argument("--kl", type=float, default=2e-3)
    parser.add_argument("--rate", type=float, default=2.5e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    pool = pictures(args.pictures, 10 ** 6)
    vae = (AutoencoderKL.from_pretrained(args.resume) if args.resume else new_vae()).to(memory_format=torch.channels_last)
    print("parameters", sum(p.numel() for p in vae.parameters()))
    optimiser = torch.optim.AdamW(vae.parameters(), lr=args.rate, betas=(.9, .95), weight_decay=0.0)
    rng = np.random.default_rng(0)
    start, step, done = time.time(), 0, 0.0
    while done < 1:
        done = min(1.0, (time.time() - start) / args.seconds)
        for group in optimiser.param_groups:  # the schedule follows the clock
            group["lr"] = args.rate * min(1, (step + 1) / 50) * (1 if done < .4 else max(0.0, (1 - done) / .6))
        x = to_tensor(pool[rng.integers(len(pool), size=args.batch)])
        if step % 3 < 2:  # quarter images: four times the steps per second, as many edges per pixel
            top, left = 8 * rng.integers(9, size=2)
            x = x[:, :, top:top + 64, left:left + 64].contiguous(memory_format=torch.channels_last)
        else:
            x = x[:args.batch // 4]
        posterior = vae.encode(x).latent_dist
        back = vae.decode(posterior.sample()).sample
        kl = (posterior.mean ** 2 + posterior.var - 1 - posterior.logvar).mean() / 2
        error = (back - x).abs().mean() + (back - x).square().mean()
        loss = error + args.kl * min(1, step / 300) * kl
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} {time.time() - start:.0f} s error {error.item():.4f} kl {kl.item():.3f}", flush=True)
        if step % 1000 == 0:
            print("readings", readings(vae, 60, 5), flush=True)
    with torch.no_grad():
        z = torch.cat([vae.encode(to_tensor(pool[i:i + 30])).latent_dist.mode() for i in range(0, 600, 30)])
    print("latent std by channel", z.std((0, 2, 3)).numpy().round(2), "mean", z.mean((0, 2, 3)).numpy().round(2))
    vae.register_to_config(scaling_factor=round(1 / z.std().item(), 4), shift_factor=round(z.mean().item(), 4))
    vae.save_pretrained(args.out)
    print("steps", step, "final readings", readings(vae, 400, 6), dict(vae.config)["scaling_factor"],
          dict(vae.config)["shift_factor"])


if __name__ == "__main__":
    main()
