"""Steps, lanes and suites of block tests, from which block_tests.py builds blocks.json; it documents their keys."""

import json
import os
import struct

from block_tolerances import GPU_TOLERANCES, TOLERANCES


class Fixture:
    """A fixture's folder: its expect.json, and names, shapes and values of its reference tensors."""

    def __init__(self, folder):
        self.folder = folder
        self.name = os.path.basename(os.path.normpath(folder))
        self.kind = os.path.basename(os.path.dirname(os.path.abspath(folder)))
        path = os.path.join(folder, "expect.json")
        self.expect = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
        self.blocks = self.expect.get("blocks", {})
        self.header, self.data = tensors_of(os.path.join(folder, "reference.safetensors"))

    def has(self, name):
        return name in self.header

    def shape(self, name):
        return self.header[name]["shape"]

    def ints(self, name):
        begin, end = self.header[name]["data_offsets"]
        return struct.unpack(f"<{(end - begin) // 4}i", self.data[begin:end])

    def json(self, *path):
        return json.load(open(os.path.join(self.folder, *path), encoding="utf-8"))


def tensors_of(path):
    """Returns the header of a safetensors file by tensor name, and the bytes behind it."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header.pop("__metadata__", None)
        return header, f.read()


def open_(lane):
    return dict(open=lane)


def run(name):
    return dict(run=name)


def put(reference, to, **more):
    return dict(put=reference, to=to) | more


def expect(tensor, equals, tolerance, **more):
    return {"expect": tensor, "equals": equals, "as": tolerance} | more


RUN_ALL = dict(run_all=True)


def patches(tensor, order, **more):
    return dict(patches=tensor, order=order) | more


def zeros(*shape):
    return dict(zeros=list(shape))


def test(name, *steps):
    return dict(name=name, steps=list(steps))


def suite(name, lanes, tests, checks=(), **where):
    """Returns a suite. where: bf16=True or gpu=True for all tests; checks run in f32 on the CPU only."""
    out = dict(name=name, tolerances=TOLERANCES[name])
    if name in GPU_TOLERANCES:
        out["gpu_tolerances"] = GPU_TOLERANCES[name]
    return out | dict(lanes=lanes, tests=[dict(name=t["name"]) | where | t for t in tests] + list(checks))


def case_latent(latent="latent_001"):
    """The lane's tensors that all denoisers read: text, latent and timestep of case 0 after its first step."""
    return dict(timestep="block.t", text="case0.hidden.cond", latent=f"case0.{latent}[0]")


def final_layers(f, lanes, run_steps, conditioning, tokens, order, **more):
    """Steps for the last layers on usual inputs, and on inputs times 0.01, which reveal a wrong epsilon. The lane's image
    has as many tokens as the reference tensor has rows."""
    steps = []
    for name in ("block.final", "block.final_small"):
        rows, values = f.shape(f"{name}.out")[1:]
        lanes[name] = dict(component=lanes["case0"]["component"], text="case0.hidden.cond[0:1]", latent=zeros(values // 4, 2, 2 * rows))
        steps += [open_(name), *conditioning, put(f"{name}.in[0]", tokens(rows)), *run_steps,
                  expect(patches("lane.prediction", order, **more), f"{name}.out[0]", name)]
    return steps


def two_streams(f, component, lane):
    """Returns the number of text tokens and the lane of a transformer with text before image tokens (Flux, Qwen-Image, SD3)."""
    T = f.blocks["block"]["text_tokens"]
    lane = dict(component=component) | case_latent() | dict(text=f"case0.hidden.cond[0:{T}]") | lane
    references = [f"case0.encoded.reference_{i:03}[0]" for i in range(8) if f.has(f"case0.encoded.reference_{i:03}")]
    return T, lane | (dict(reference=references) if references else {})


def velocity(f, tolerance):
    """Compares the prediction of a whole forward pass. Rows of reference images follow in the reference; they are ignored."""
    h, w = f.shape("case0.latent_001")[2:]
    return expect(patches("lane.prediction", "channels_first"), f"block.velocity[0,0:{h // 2 * (w // 2)}]", tolerance)


def joined(T, *middle):
    """Checks of the embedded text and image."""
    return [*middle, expect(f"tokens[0:{T}]", "embed.text.out", "embed.text"), expect(f"tokens[{T}:]", "embed.image.out", "embed.image")]


def mmdit_final(f, lanes):
    return final_layers(f, lanes, [run("norm_out"), run("proj_out")], [put("block.temb[0:1]", "condition")],
                        lambda rows: "tokens[1:]", "channels_first")


def influence(tensors, weights, without_effect=()):
    return dict(influence=tensors, weights=weights, without_effect=list(without_effect))
