"""Reference drawings for the test of the C reader (test/lib/demo_reader.h): a PNG sheet per image size; scenes.

    python drawings.py --out ../../test/golden/demo

Each line of scenes.txt describes a drawing, in the sheet's order (12 per row): size, background, relation, group,
group, caption, separated by tabs. A group is "count colour shape size place"; absent values are None.
"""
import argparse
import random

import numpy as np
from PIL import Image

import draw

ACROSS = 12
SIZES = {(128, 128): 140, (160, 96): 40, (96, 160): 40, (128, 96): 30, (96, 128): 30, (192, 192): 20}


def group_line(group):
    return f"{group.count} {group.colour} {group.shape} {group.size} {group.place}"


def scene_line(scene, width, height):
    groups = [group_line(g) for g in scene.groups] + ["None"] * (2 - len(scene.groups))
    return "\t".join([f"{width}x{height}", scene.background, str(scene.relation), *groups, draw.caption(scene)])


def sheet_of(pictures, width, height):
    sheet = np.zeros((-(-len(pictures) // ACROSS) * height, ACROSS * width, 3), np.uint8)
    for i, picture in enumerate(pictures):
        y, x = i // ACROSS * height, i % ACROSS * width
        sheet[y:y + height, x:x + width] = picture
    return Image.fromarray(sheet)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="../../test/golden/demo")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    lines = []
    for (width, height), n in SIZES.items():
        scenes = [draw.random_scene(rng, two_groups=i % 3 == 2, held_out=rng.random() < .5) for i in range(n)]
        pictures = [draw.draw(scene, rng, width, height) for scene in scenes]
        sheet_of(pictures, width, height).save(f"{args.out}/{width}x{height}.png", optimize=True)
        lines += [scene_line(scene, width, height) for scene in scenes]
    with open(f"{args.out}/scenes.txt", "w") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
