"""Drawings and captions for the demo model, and a reader that recognises the content of such drawings.

A *scene* is the content of a caption: one or two groups of equal shapes on a plain background. `caption(scene)` returns
the prompt, `draw(scene, ...)` the image. `read(image)` finds background, colours, shapes and positions in any image;
`score(scene, reading)` compares them with a scene. All functions are pure, except for the `random.Random` argument.

Sizes are in pixels at 128x128 and scale with the square root of the area, as far as they fit. Centres snap to 8 px, one
latent pixel. A token covers 16 px; a few edge positions need fewer training samples than arbitrary ones.
"""
import argparse
import random
import zlib
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

PALETTE = {
    "red": (215, 30, 35), "green": (40, 165, 60), "blue": (35, 75, 220), "yellow": (250, 225, 40),
    "orange": (250, 140, 20), "purple": (150, 40, 180), "black": (20, 20, 20), "white": (245, 245, 245),
}
COLOURS = list(PALETTE)
SHAPES = ["circle", "square", "triangle", "star"]
COUNTS = [1, 2, 3]
COUNT_WORDS = {2: "two", 3: "three"}
SIZES = ["large", "small"]
PLACES = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom",
          "centre": "in the centre"}
# relation: (side of the first group, side of the second)
RELATIONS = {"left of": ("left", "right"), "right of": ("right", "left"), "above": ("top", "bottom"),
             "below": ("bottom", "top")}
SNAP = 8
# count: {size word: radii to choose from}; None: no size word in the caption.
RADII = {1: {"large": (36, 40), "small": (20, 24), None: (20, 24, 28, 32, 36, 40)},
         2: {"large": (28,), "small": (20,), None: (20, 24, 28)},
         3: {"large": (18,), "small": (16,), None: (18,)}}
# The same for scenes with two groups, each on one half of the image.
HALF_RADII = {1: {"large": (28,), "small": (20,), None: (20, 24, 28)},
              2: {"large": (24,), "small": (20,), None: (20, 24)},
              3: {"large": (18,), "small": (16,), None: (18,)}}


@dataclass
class Group:
    count: int
    colour: str | None  # None: no colour in the caption, a random one in the image
    shape: str
    size: str | None = None
    place: str | None = None


@dataclass
class Scene:
    background: str
    groups: list[Group]
    relation: str | None = None
    only: str | None = None  # caption of this one word; trains negative prompts such as "red"
    drawn_colours: list[str] = field(default_factory=list)


# --- captions and the held-out tenth ---------------------------------------------------------------------------------

def article(word):
    return "an" if word[0] in "aeiou" else "a"


def group_words(group):
    adjectives = [w for w in (group.size, group.colour) if w]
    words = adjectives + [group.shape + ("s" if group.count > 1 else "")]
    first = COUNT_WORDS[group.count] if group.count > 1 else article(words[0])
    return " ".join([first] + words)


def caption(scene):
    if scene.only:
        return scene.only
    text = group_words(scene.groups[0])
    if scene.relation:
        text += f" {scene.relation} {group_words(scene.groups[1])}"
    elif scene.groups[0].place:
        text += f" {PLACES[scene.groups[0].place]}"
    return f"{text} on {article(scene.background)} {scene.background} background"


def key(group, background):
    return f"{group.count} {group.colour} {group.shape} {group.place} {background}"


def is_held_out(scene):
    """Whether a scene contains one of the held-out (count, colour, shape, place, background) tuples, a tenth of all.

    In a relation the place of a group is its side.
    """
    return any(zlib.crc32(key(g, scene.background).encode()) % 10 == 0 for g in scene.groups)


def all_tuples():
    for count in COUNTS:
        for colour in COLOURS:
            for shape in SHAPES:
                for place in [None, *PLACES]:
                    for background in COLOURS:
                        if colour != background:
                            yield Scene(background, [Group(count, colour, shape, None, place)])


def random_group(rng, counts, colours, place):
    return Group(rng.choice(counts), rng.choice(colours), rng.choice(SHAPES), rng.choice([None, None, *SIZES]), place)


def random_scene(rng, two_groups=False, counts=COUNTS, held_out=False, places=(None, *PLACES)):
    """Returns a random scene, without held-out tuples or (held_out) with one."""
    while True:
        background = rng.choice(COLOURS)
        colours = [c for c in COLOURS if c != background]
        if two_groups:
            relation = rng.choice(list(RELATIONS))
            side_a, side_b = RELATIONS[relation]
            a = random_group(rng, counts, colours, side_a)
            b = random_group(rng, counts, [c for c in colours if c != a.colour], side_b)
            scene = Scene(background, [a, b], relation)
        else:
            scene = Scene(background, [random_group(rng, counts, colours, rng.choice(places))])
        if is_held_out(scene) == held_out:
            scene.drawn_colours = [g.colour for g in scene.groups]
            return scene


def loosen(scene, rng):
    """Sometimes reduces the caption: no colour (4 %), or only the colour (3 %), for negative prompts."""
    u = rng.random()
    if u < 0.04:
        scene.groups[0].colour = None
    elif u < 0.07 and not scene.relation:
        scene.only = scene.groups[0].colour
    return scene


# --- pictures --------------------------------------------------------------------------------------------------------

def outline(shape, cx, cy, r):
    """Corner points of a shape inside the box of half-side r around (cx, cy)."""
    if shape == "square":
        unit = [(-.9, -.9), (.9, -.9), (.9, .9), (-.9, .9)]
    elif shape == "triangle":
        unit = [(0, -.9), (1, .9), (-1, .9)]
    else:
        angles = np.arange(10) * np.pi / 5
        radii = np.where(np.arange(10) % 2 == 0, 1.05, .45)
        unit = [(s * np.sin(a), -s * np.cos(a) + .1) for a, s in zip(angles, radii)]
    return [(cx + r * x, cy + r * y) for x, y in unit]


def paint(canvas, shape, colour, cx, cy, r, scale):
    if shape == "circle":
        canvas.ellipse([scale * (cx - r), scale * (cy - r), scale * (cx + r) - 1, scale * (cy + r) - 1],
                       fill=PALETTE[colour])
    else:
        canvas.polygon([(scale * x, scale * y) for x, y in outline(shape, cx, cy, r)], fill=PALETTE[colour])


def snapped(rng, low, high):
    """Returns a random multiple of SNAP in [low, high], or the midpoint if there is none."""
    choices = [v for v in range(0, int(high) + 1, SNAP) if low <= v]
    return rng.choice(choices) if choices else (low + high) / 2


def layout(group, rng, width, height, halved):
    """Returns [(cx, cy, r)] for the shapes of one group, in a row or column at the group's place."""
    unit = (width * height) ** .5 / 128
    place = group.place or rng.choice(list(PLACES))
    column = place in ("left", "right") or (place == "centre" and height > width)
    n = group.count
    along, across = (height, width) if column else (width, height)
    r = unit * rng.choice((HALF_RADII if halved else RADII)[n][group.size])
    r = min(r, .4 * min(width, height), along / (2 * n) - 3, .22 * across if halved else along)
    spacing = {1: 0, 2: max(64 * unit, .4 * along), 3: 42 * unit}[n]
    if n == 2:
        spacing = rng.choice([spacing, max(2 * r + 8 * unit, .85 * spacing)])
    spacing = min(spacing, (along - 2 * r - 2) / max(1, n - 1))
    half = r + spacing * (n - 1) / 2  # half-extent along the line
    # Along the line: centred, with a random offset too small to look like another place.
    play = min(along / 2 - half, 12 * unit)
    mid_along = snapped(rng, along / 2 - play, along / 2 + play) if n < 3 else along / 2
    if place == "centre":
        mid_across = snapped(rng, across / 2 - 8 * unit, across / 2 + 8 * unit)
        if n == 1:
            mid_along = snapped(rng, along / 2 - 8 * unit, along / 2 + 8 * unit)
    else:
        near = max(r, .19 * across)
        far = max(near, .25 * across if halved else .38 * across)
        mid_across = snapped(rng, near, far)
        if place in ("right", "bottom"):
            mid_across = across - mid_across
    line = [mid_along + spacing * (i - (n - 1) / 2) for i in range(n)]
    return [(mid_across, a, r) if column else (a, mid_across, r) for a in line]


def draw(scene, rng, width=128, height=128, supersample=4):
    image = Image.new("RGB", (width * supersample, height * supersample), PALETTE[scene.background])
    canvas = ImageDraw.Draw(image)
    for group, colour in zip(scene.groups, scene.drawn_colours):
        for cx, cy, r in layout(group, rng, width, height, scene.relation is not None):
            paint(canvas, group.shape, colour, cx, cy, r, supersample)
    return np.asarray(image.reduce(supersample))


def draw_dense(rng, width=128, height=128, supersample=4):
    """Draws 12 to 40 random shapes, to train the VAE: drawings of the grammar have too few edges."""
    image = Image.new("RGB", (width * supersample, height * supersample), PALETTE[rng.choice(COLOURS)])
    canvas = ImageDraw.Draw(image)
    for _ in range(rng.randint(12, 40)):
        paint(canvas, rng.choice(SHAPES), rng.choice(COLOURS), rng.uniform(0, width), rng.uniform(0, height),
              rng.uniform(10, 32), supersample)
    return np.asarray(image.reduce(supersample))


# --- the reader ------------------------------------------------------------------------------------------------------

def classes(image):
    palette = np.array(list(PALETTE.values()), np.float32)
    return ((image[:, :, None].astype(np.float32) - palette) ** 2).sum(-1).argmin(-1)


def eroded(mask):
    inner = mask.copy()
    inner[1:] &= mask[:-1]
    inner[:-1] &= mask[1:]
    inner[:, 1:] &= mask[:, :-1]
    inner[:, :-1] &= mask[:, 1:]
    return inner


def dilated(mask):
    return ~eroded(~mask)


def components(mask):
    """4-connected components as boolean masks, by flood fill."""
    left = mask.copy()
    height, width = mask.shape
    for start in np.argwhere(mask):
        if not left[tuple(start)]:
            continue
        part, stack = np.zeros_like(mask), [tuple(start)]
        left[tuple(start)] = False
        while stack:
            y, x = stack.pop()
            part[y, x] = True
            for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= ny < height and 0 <= nx < width and left[ny, nx]:
                    left[ny, nx] = False
                    stack.append((ny, nx))
        yield part


def shape_of(part):
    """Returns the shape whose template, scaled to the component's box, has the largest intersection over union."""
    ys, xs = np.nonzero(part)
    box = part[ys.min():ys.max() + 1, xs.min():xs.max() + 1]
    fit = np.asarray(Image.fromarray(box).resize((32, 32)))
    overlap = {s: (fit & t).sum() / (fit | t).sum() for s, t in TEMPLATES.items()}
    return max(overlap, key=overlap.get)


def templates():
    out = {}
    for shape in SHAPES:
        image = Image.new("1", (256, 256))
        canvas = ImageDraw.Draw(image)
        if shape == "circle":
            canvas.ellipse([28, 28, 228, 228], fill=1)
        else:
            canvas.polygon(outline(shape, 128, 128, 100), fill=1)
        out[shape] = np.asarray(image.crop(image.getbbox()).resize((32, 32)))
    return out


TEMPLATES = templates()


def read(image):
    """Returns {"background": colour, "parts": [(colour, shape, dx, dy)]}; dx, dy: from the centre, in shorter sides."""
    labels = classes(image)
    height, width = labels.shape
    border = np.concatenate([labels[:3].ravel(), labels[-3:].ravel(), labels[:, :3].ravel(), labels[:, -3:].ravel()])
    background = int(np.bincount(border, minlength=len(COLOURS)).argmax())
    parts = []
    for index, colour in enumerate(COLOURS):
        if index == background:
            continue
        # Erosion removes the mixed-colour edges that anti-aliasing leaves around shapes.
        for part in components(eroded(labels == index)):
            if part.sum() < .008 * height * width:
                continue
            part = dilated(part)
            ys, xs = np.nonzero(part)
            side = min(height, width)
            dx = ((xs.min() + xs.max() + 1) / 2 - width / 2) / side
            dy = ((ys.min() + ys.max() + 1) / 2 - height / 2) / side
            parts.append((colour, shape_of(part), dx, dy))
    return {"background": COLOURS[background], "parts": parts}


def is_at(place, dx, dy):
    if place == "centre":
        return max(abs(dx), abs(dy)) < .14
    along, across = (dx, dy) if place in ("left", "right") else (dy, dx)
    toward = -along if place in ("left", "top") else along
    return toward > .07 and toward > abs(across)


def score(scene, reading):
    """Returns {aspect: correct}, only for aspects that the scene specifies."""
    parts = reading["parts"]
    by_group = [[p for p in parts if p[0] == g.colour] for g in scene.groups]
    mean = [np.mean([p[2:] for p in ps], axis=0) if ps else None for ps in by_group]
    out = {"background": reading["background"] == scene.background,
           "colour": {p[0] for p in parts} == {g.colour for g in scene.groups},
           "shape": all(2 * sum(p[1] == g.shape for p in ps) > len(ps) for g, ps in zip(scene.groups, by_group)),
           "count": all(len(ps) == g.count for g, ps in zip(scene.groups, by_group))}
    if scene.relation:
        horizontal = scene.relation.endswith("of")
        sign = 1 if scene.relation in ("left of", "above") else -1
        gap = None if mean[0] is None or mean[1] is None else sign * (mean[1] - mean[0])[0 if horizontal else 1]
        out["side"] = gap is not None and bool(gap > .15)
    elif scene.groups[0].place:
        out["side"] = mean[0] is not None and is_at(scene.groups[0].place, *mean[0])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sheet", metavar="FILE", help="write a contact sheet of random drawings")
    parser.add_argument("--check-reader", type=int, metavar="N", help="run the reader on N drawings and print its accuracy")
    parser.add_argument("--held-out", metavar="FILE", help="write the held-out tuples, one per line")
    args = parser.parse_args()
    rng = random.Random(1)
    if args.sheet:
        sheet = Image.new("RGB", (8 * 132, 6 * 132), (128, 128, 128))
        for i in range(48):
            sheet.paste(Image.fromarray(draw(random_scene(rng, two_groups=i % 3 == 2), rng)),
                        (i % 8 * 132, i // 8 * 132))
        sheet.save(args.sheet)
    if args.check_reader:
        totals = {}
        for i in range(args.check_reader):
            scene = random_scene(rng, two_groups=i % 2 == 1)
            width, height = rng.choice([(128, 128), (128, 128), (160, 96), (96, 160), (128, 96), (96, 128)])
            result = score(scene, read(draw(scene, rng, width, height)))
            result["everything"] = all(result.values())
            if not result["everything"]:
                print("misread:", width, height, caption(scene), result)
            for aspect, right in result.items():
                totals.setdefault(aspect, []).append(right)
        print({aspect: f"{np.mean(v):.4f} of {len(v)}" for aspect, v in totals.items()})
    if args.held_out:
        with open(args.held_out, "w") as out:
            out.write("# count colour shape place background: never trained (crc32 of the line % 10 == 0)\n")
            out.writelines(key(s.groups[0], s.background) + "\n" for s in all_tuples() if is_held_out(s))


if __name__ == "__main__":
    main()
