"""Inputs of the reference, case by case: requests, prompts and images."""

import numpy as np


def request(spec, texts, k, wanted):
    """Returns the fields common to all image cases; `wanted` has the keys of the case's texts."""
    columns, rows = wanted["grid"]
    negative = wanted["negative"]
    return dict(
        index=k, kind="image", prompt=None if wanted["prompt"] is None else texts[wanted["prompt"]], negative_prompt=None if negative is None else texts[negative],
        width=columns * spec.pixel_multiple, height=rows * spec.pixel_multiple, steps=wanted["steps"], cfg_scale=wanted["cfg"])


def of_tokens(spec, texts, tokens_max, k, wanted):
    """Returns an image case whose grid is in tokens of 2x2 latent pixels."""
    columns, rows = wanted["grid"]
    return request(spec, texts, k, wanted) | dict(
        guidance=wanted.get("guidance"), seed=wanted["seed"], batch=wanted.get("batch", 1), flow_shift=None, max_sequence_length=tokens_max,
        channels=spec.channels, init=wanted.get("init", False), mask=wanted.get("mask", False), strength=wanted.get("strength"),
        references=wanted.get("references", []), latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows)


def of_texts(prompts, first, **more):
    """Returns cases that only encode a prompt."""
    return [dict(index=first + i, kind="text", prompt=prompt, negative_prompt=None, cfg_scale=1.0) | more for i, prompt in enumerate(prompts)]


def lanes(case):
    """Returns [(lane name, prompt)] of the prompts that a case encodes."""
    return [("cond", case["prompt"])] + ([("uncond", case["negative_prompt"])] if case["cfg_scale"] != 1 else [])


def named(case, tensors):
    """Adds the case's prefix to the names of reference tensors."""
    return {f"case{case['index']}.{name}": value for name, value in tensors.items()}


def of_case(references, index):
    """Returns the case's reference tensors, without the prefix in their names."""
    prefix = f"case{index}."
    return {name.removeprefix(prefix): value for name, value in references.items() if name.startswith(prefix)}


def picture_of(rng, width, height):
    """Generates coloured patches with noise, from black to white."""
    coarse = rng.integers(0, 256, [height // 8 + 1, width // 8 + 1, 3]).repeat(8, 0).repeat(8, 1)[:height, :width]
    return np.clip(coarse + rng.integers(-40, 41, coarse.shape), 0, 255).astype(np.uint8)


def alpha_of(rng, width, height):
    """Generates an alpha channel [H, W, 1]: opaque, transparent and half-transparent patches."""
    coarse = rng.choice([0, 0, 96, 200, 255, 255], [height // 8 + 1, width // 8 + 1, 1]).repeat(8, 0).repeat(8, 1)[:height, :width]
    return np.clip(coarse + rng.integers(-20, 21, coarse.shape), 0, 255).astype(np.uint8)


def mask_of(rng, width, height):
    """Generates a mask: one half black and white, the other half colours around the threshold."""
    mask = rng.choice([0, 255], [height // 4 + 1, width // 4 + 1, 1]).repeat(4, 0).repeat(4, 1).repeat(3, 2)[:height, :width]
    mask[:, width // 2:] = np.clip(128 + rng.integers(-24, 25, [height, width - width // 2, 3]), 0, 255)
    return mask.astype(np.uint8)


def pictures_of(spec, case, unit=1):
    """Generates the input images of a case, by name; the sizes of references are in units of `unit` pixels."""
    rng = np.random.default_rng([spec.seed, case["index"]])
    out = {}
    if case["init"]:
        out["init"] = picture_of(rng, case["width"], case["height"])
    if case.get("last"):
        out["last"] = picture_of(rng, case["width"], case["height"])
    if case.get("control"):
        out["control"] = np.stack([picture_of(rng, case["width"], case["height"]) for _ in range(case["frames"])])
    if case["mask"]:
        out["mask"] = mask_of(rng, case["width"], case["height"])
        if case.get("control"):  # a grey mask: with a control video every colour channel would be a separate mask
            out["mask"][:] = out["mask"][:, :, :1]
    for i, (width, height) in enumerate(case.get("references", [])):
        out[f"reference_{i:03}"] = picture_of(rng, width * unit, height * unit)
        if i in case.get("alpha", []):
            out[f"reference_{i:03}"] = np.concatenate([out[f"reference_{i:03}"], alpha_of(rng, width * unit, height * unit)], axis=2)
    return out
