"""Generates held-out prompts with diffusers' ZImagePipeline and scores the images with the reader; optionally a gallery."""
import argparse
import json
import random
import re

import numpy as np
import torch
from diffusers import ZImagePipeline
from PIL import Image, ImageDraw

import draw

GALLERY = ["a large red circle on the left on a white background", "a blue square on the right on a yellow background",
           "a large yellow star in the centre on a black background", "a green triangle at the bottom on a white background",
           "two blue squares at the top on a yellow background", "two orange stars on the left on a purple background",
           "three red circles at the bottom on a white background", "three white stars at the top on a blue background",
           "a green star above an orange triangle on a black background",
           "a red circle left of a blue square on a white background",
           "two yellow circles right of a purple star on a green background",
           "a white triangle below three red stars on a black background"]


def generate(pipe, prompts, seed, steps, cfg_scale, width, height, negative=None):
    """cfg_scale s means uncond + s (cond - uncond), as in Sluice; the pipeline's guidance_scale is s - 1."""
    images = []
    for i in range(0, len(prompts), 20):
        some = prompts[i:i + 20]
        generators = [torch.Generator().manual_seed(seed + i + j) for j in range(len(some))]
        drawn = pipe(list(some), width=width, height=height, num_inference_steps=steps, guidance_scale=cfg_scale - 1,
                       negative_prompt=None if negative is None else [negative] * len(some), generator=generators,
                       output_type="np").images
        images += list((drawn * 255).round().astype(np.uint8))
    return images


def table(scenes, images):
    totals = {}
    for scene, image in zip(scenes, images):
        kind = "pair" if scene.relation else "one" if scene.groups[0].count == 1 else "many"
        for aspect, right in draw.score(scene, draw.read(image)).items():
            for row in (kind, "all") if kind == "pair" else (kind, "one group", "all"):
                totals.setdefault(row, {}).setdefault(aspect, []).append(right)
    return {row: {a: round(float(np.mean(v)), 3) for a, v in sorted(by.items())} for row, by in sorted(totals.items())}


def red_area(images):
    return float(np.mean([(draw.classes(i) == draw.COLOURS.index("red")).mean() for i in images]))


def gallery(pipe, path, seed, steps, cfg_scale):
    sheet = Image.new("RGB", (4 * 180, 3 * 180), (255, 255, 255))
    pen = ImageDraw.Draw(sheet)
    for i, (prompt, image) in enumerate(zip(GALLERY, generate(pipe, GALLERY, seed, steps, cfg_scale, 128, 128))):
        x, y = i % 4 * 180, i // 4 * 180
        sheet.paste(Image.fromarray(image), (x + 26, y + 4))
        for line, text in enumerate(re.findall(r".{1,30}(?: |$)", prompt)):
            pen.text((x + 4, y + 134 + 11 * line), text, (0, 0, 0))
    sheet.save(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="../demo")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--cfg-scale", type=float)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--height", type=int, default=128)
    parser.add_argument("--trained", action="store_true", help="use prompts of trained tuples instead of held-out ones")
    parser.add_argument("--knobs", action="store_true", help="also measure guidance, steps and a negative prompt")
    parser.add_argument("--gallery", metavar="FILE", help="write a contact sheet")
    args = parser.parse_args()
    with open(f"{args.model}/sluice.json") as file:
        defaults = json.load(file)
    steps, cfg_scale = args.steps or defaults["steps"], args.cfg_scale or defaults["cfg_scale"]
    pipe = ZImagePipeline.from_pretrained(args.model, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    if args.gallery:
        gallery(pipe, args.gallery, args.seed, steps, cfg_scale)
    rng = random.Random(args.seed)
    # Two of three prompts have one group.
    scenes = [draw.random_scene(rng, two_groups=i % 3 == 2, held_out=not args.trained) for i in range(args.n)]
    prompts = [draw.caption(s) for s in scenes]
    run = lambda steps, cfg: table(scenes, generate(pipe, prompts, args.seed, steps, cfg, args.width, args.height))
    print(f"{args.n} prompts, {steps} steps, cfg {cfg_scale}, {args.width}x{args.height}")
    for row, by in run(steps, cfg_scale).items():
        print(f"  {row:10}", by)
    if args.knobs:
        print("cfg 1:", run(steps, 1.0)["all"])
        print("2 steps:", run(2, cfg_scale)["all"])
        colourless = [f"a {s} on a white background" for s in draw.SHAPES] * 10
        with_red = generate(pipe, colourless, args.seed, steps, cfg_scale, 128, 128, negative="red")
        without = generate(pipe, colourless, args.seed, steps, cfg_scale, 128, 128)
        print(f"red area of colourless prompts: {red_area(without):.4f}, with negative 'red': {red_area(with_red):.4f}")


if __name__ == "__main__":
    main()
