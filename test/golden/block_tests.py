#!/usr/bin/env python3
"""Writes blocks.json of fixtures: the tests of single blocks and components that test/models/test_blocks.c runs.

    block_tests.py FOLDER...

Reads a fixture's expect.json and the shapes in its reference.safetensors; needs only Python. The generators of fixtures
call write().

blocks.json has a list of suites and, for a fixture without a pipeline, the components that the tests open. A suite has
  tolerances      {name: [measured error, tolerated error]}, relative L2 errors; gpu_tolerances: the same on GPUs
  lanes           {name: lane}: inputs of a component, see lane keys below
  tests           lists of steps; "bf16": the test also runs in bf16, there with tolerances from bf16.json and on GPUs;
                  "gpu": the f32 test also runs on GPUs
A step has one of these keys
  open            opens a runner on a lane: a component with one sequence, all of its state zero
  run             runs the block of this name; a name that ends with * runs all blocks with the prefix
  run_all         runs all blocks of one evaluation
  table           reads the lane's rows of this embedding table
  put, to         copies a reference tensor into a tensor of the runner; level: VAE level at whose offset in the
                  full-frame buffer the tensor "full_frame" then lies
  expect, equals, as      compares a tensor of the runner with a reference tensor; as: name of the tolerance; detail: text
                  for the printed table
  keep, name      copies a tensor of the runner; "kept.NAME" is a reference tensor from then on
  influence       zeroes each weight in turn; each must change one of these tensors, except "without_effect"
or the key of a check in test/lib/block_checks.c.

Tensors. A reference tensor is named as in reference.safetensors. A tensor of the runner is a state tensor of the family,
or "lane.NAME", a field of struct lane. Behind the name stand slices as in numpy ("[0,:,2:8]") and a permutation of the
axes as in einsum ("cyx->yxc"). ".flat" is the tensor as a vector. A list concatenates tensors by rows. Other tensors are
{"zeros": shape}, {"random": shape}, {"patches": latent, "order": order} with one patch a row, and {"scaled": tensor}. The
latter two may have a factor "scale".

Lane keys: tensors, numbers and lists of struct lane, and
  component       family of the component; "folder", "number" distinguish components of one family
  timestep        reference tensor of one value: timestep of all blocks
  settings        values that replace those of the component's configuration
  frames          shape of a video that run_all decodes in chunks into the tensor "lane.frames"
"""

import json
import os
import sys

from anima.block_tests import anima, anima_adapter
from block_steps import (
    RUN_ALL, Fixture, case_latent, expect, final_layers, influence, joined, mmdit_final, open_, patches, put, run, suite, tensors_of,
    test, two_streams, velocity, zeros,
)
from block_tests_encoders import clip, clip_kinds, clip_vision, gemma3, image_pad, ltx2_text, padded, qwen3, qwen3vl, qwen25vl, qwen25vl_vision, redux, siglip, t5
from ltx.block_tests import ltx2


def flux_like(f, component, lane, far=""):
    """Flux.1, or a family with its blocks. lane: what the family reads besides text and images."""
    about = f.blocks["block"]
    T, case0 = two_streams(f, component, lane)
    lanes = dict(case0=case0)
    begin = [open_("case0"), run("context_embedder")]

    def block(kind, name):
        name = f"{name}.{about[kind]}"
        return test(kind, *begin, put("block.temb", "condition"), put(f"block.{kind}.in", "tokens"), run(f"{name}.modulation"),
                    run(name), expect("tokens", f"block.{kind}.out", f"block.{kind}"))

    return suite(component, lanes, [
        test("conditioning", *begin, run("conditioning"), expect("condition", "block.temb", "block.temb" + far)),
        test("embedders", *begin, expect("rope", "rope", "rope"), *joined(T, run("x_embedder"))),
        block("double", "transformer_blocks"),
        block("single", "single_transformer_blocks"),
        test("final", *mmdit_final(f, lanes)),
        test("transformer", open_("case0"), RUN_ALL, velocity(f, "block.velocity" + far)),
    ], bf16=True)


def flux(f):
    lane = dict(pooled="case0.pooled.cond", guidance=f.blocks["block"]["guidance"] or 0)
    if f.has("case0.control"):
        lane["concat"] = "case0.control"
    return flux_like(f, "flux", lane, ".far" if lane["guidance"] > 10 else "")


def flux2(f):
    about = f.blocks["block"]
    references = [f"case0.encoded.reference_{i:03}[0]" for i in range(8) if f.has(f"case0.encoded.reference_{i:03}")]
    T = about["text_tokens"]
    h, w = f.shape("case0.latent_001")[2:]
    lanes = dict(case0=dict(component="flux2") | case_latent() | dict(
        text=f"case0.hidden.cond[0:{T}]", guidance=about["guidance"] or 0, reference=references))
    begin = [open_("case0"), run("context_embedder")]
    modulations = dict(image="double_stream_modulation_img", text="double_stream_modulation_txt", single="single_stream_modulation", final="norm_out")

    def block(kind, name, *read):
        name = f"{name}.{about[kind]}"
        return test(kind, *begin, *[put(f"block.modulation.{m}", f"{m}_modulation") for m in read], put(f"block.{kind}.in", "tokens"), run(name),
                    expect("tokens", f"block.{kind}.out", f"block.{kind}"))

    final = []
    for name in ("block.final", "block.final_small"):
        rows, channels = f.shape(f"{name}.out")[1:]
        lanes[name] = dict(component="flux2", text="case0.hidden.cond[0:1]", latent=zeros(channels, 1, rows))
        final += [open_(name), put("block.temb", "condition"), put(f"{name}.in[0]", "tokens[1:]"), run("norm_out"), run("proj_out"),
                  expect("lane.prediction[:,0] cyx->yxc", f"{name}.out[0]", name)]
    return suite("flux2", lanes, [
        test("conditioning", *begin, run("conditioning"), expect("condition", "block.temb", "block.temb"), put("block.temb", "condition"),
             *[step for m, name in modulations.items() for step in
               (run(name), expect(f"{m}_modulation", f"block.modulation.{m}", f"block.modulation.{m}"))]),
        test("embedders", *begin, expect("rope", "rope", "rope"), *joined(T, run("x_embedder"))),
        block("double", "transformer_blocks", "image", "text"),
        block("single", "single_transformer_blocks", "single"),
        test("final", *final),
        test("transformer", open_("case0"), RUN_ALL,
             expect("lane.prediction[:,0] cyx->yxc", f"block.velocity[0,0:{h * w}]", "block.velocity")),
    ], bf16=True)


def longcat_image(f):
    return flux_like(f, "longcat_image", {})


def chroma(f):
    about, model = f.blocks["block"], f.expect["model"]
    doubles, singles, rows, dim = (model[name] for name in ("doubles", "singles", "rows", "dim"))
    T, case0 = two_streams(f, "chroma", {})
    lanes = dict(case0=case0)
    begin = [open_("case0"), run("context_embedder")]
    image, text = 3 * singles, 3 * singles + 6 * doubles
    # the approximator's rows: single blocks, image and text of double blocks, shift and scale of the final layer
    parts = [("single_modulation", f"0:{image}"), ("image_modulation", f"{image}:{text}"), ("text_modulation", f"{text}:{rows - 2}"),
             (f"final_modulation[0,0:{dim}]", rows - 1), (f"final_modulation[0,{dim}:{2 * dim}]", rows - 2)]
    put_rows = [put(f"block.rows.out[0,{part}]", tensor) for tensor, part in parts]

    def block(kind, name):
        return test(kind, *begin, *put_rows, put(f"block.{kind}.in", "tokens"), run(f"{name}.{about[kind]}"),
                    expect("tokens", f"block.{kind}.out", f"block.{kind}"))

    return suite("chroma", lanes, [
        test("approximator", *begin, run("distilled_guidance_layer"),
             *[expect(tensor, f"block.rows.out[0,{part}]", "block.rows", detail=tensor.split("[")[0]) for tensor, part in parts]),
        test("embedders", *begin, expect("rope", "rope", "rope"), *joined(T, run("x_embedder"))),
        block("double", "transformer_blocks"),
        block("single", "single_transformer_blocks"),
        test("final", *final_layers(f, lanes, [run("proj_out")], put_rows, lambda n: "tokens[1:]", "channels_first")),
        test("transformer", open_("case0"), RUN_ALL, velocity(f, "block.velocity")),
    ], bf16=True)


def ovis(f):
    about = f.blocks["block"]
    prompt, T = about["prompt"], about["prompt"] + about["zeros"]
    columns = f.shape("case0.hidden.cond")[1]
    text = [f"case0.hidden.cond[0:{prompt}]", zeros(about["zeros"], columns)]
    case0 = dict(component="ovis_image") | case_latent() | dict(text=text)
    lanes = dict(case0=case0, small_text=case0 | dict(text="embed.small_text.in"))
    begin = [open_("case0"), run("context_embedder")]

    def block(kind, name):
        name = f"{name}.{about[kind]}"
        return test(kind, *begin, put("block.temb", "condition"), put(f"block.{kind}.in", "tokens"), run(f"{name}.modulation"),
                    run(name), expect("tokens", f"block.{kind}.out", f"block.{kind}"))

    return suite("ovis_image", lanes, [
        test("conditioning", *begin, run("conditioning"), expect("condition", "block.temb", "block.temb")),
        test("embedders", *begin, expect("rope", "rope", "rope"), *joined(T, run("x_embedder")), open_("small_text"), run("context_embedder"),
             run("x_embedder"), expect("tokens[0:8]", "embed.small_text.out", "embed.small_text")),
        block("double", "transformer_blocks"),
        block("single", "single_transformer_blocks"),
        test("final", *mmdit_final(f, lanes)),
        test("transformer", open_("case0"), RUN_ALL, velocity(f, "block.velocity")),
    ], bf16=True)


def krea2(f):
    about = f.blocks["block"]
    T, case0 = two_streams(f, "krea2", {})
    lanes = dict(case0=case0)
    begin = [open_("case0"), run("text_fusion.layerwise_blocks.0")]  # also fills rope

    def fusion(kind, name, state):
        return test(kind, *begin, put(f"block.{kind}.in", state), run(f"text_fusion.{name}.{about[kind]}"),
                    expect(state, f"block.{kind}.out", f"block.{kind}"))

    final = final_layers(f, lanes, [run("final_layer")], [put("block.temb", "time")], lambda rows: "tokens[1:]", "channels_first")
    small = [put("embed.small_text.in", "fused[0:8]"), run("txt_in"), expect("text[0:8]", "embed.small_text.out", "embed.small_text")]
    return suite("krea2", lanes, [
        test("conditioning", open_("case0"), run("time_embed"), expect("time", "block.temb", "block.temb"), put("block.temb", "time"),
             run("time_mod_proj"), expect("modulation", "block.modulation", "block.modulation")),
        fusion("taps", "layerwise_blocks", "taps"),
        test("projector", *begin, put("block.taps.out", "taps"), run("text_fusion.projector"), expect("fused", "block.fused", "block.fused")),
        fusion("refiner", "refiner_blocks", "fused"),
        test("embedders", *begin, expect("rope", "rope", "rope"), put("embed.text.in", "fused"), run("txt_in"), *joined(T, run("img_in")),
             *small),
        test("layer", *begin, put("block.modulation", "modulation"), put("block.layer.in", "tokens"),
             run(f"transformer_blocks.{about['layer']}"), expect("tokens", "block.layer.out", "block.layer")),
        test("final", *final),
        test("transformer", open_("case0"), RUN_ALL, velocity(f, "block.velocity")),
    ], bf16=True)


def qwen_image(f):
    about = f.blocks["block"]
    T, case0 = two_streams(f, "qwen_image", {})
    lanes = dict(case0=case0)
    two = f.shape("block.temb")[0] > 1  # row 0: the timestep, row 1: timestep 0, for reference images
    conditioning = [put("block.temb[0:1]", "condition")]
    if two and "reference" in case0:
        conditioning.append(put("block.temb[1:2]", "clean_condition"))
    begin = [open_("case0"), run("txt_in"), *conditioning]

    def block(kind):
        name = f"transformer_blocks.{about[kind]}"
        return [*begin, put(f"block.{kind}.in", "tokens"), run(f"{name}.modulation"), run(name)]

    clean = [expect("clean_condition", "block.temb[1:2]", "block.temb")] if two else []
    drawn = f.shape("block.last.out")[1]  # the last block computes only the generated image's rows
    return suite("qwen_image", lanes, [
        test("conditioning", open_("case0"), run("time_text_embed"), expect("condition", "block.temb[0:1]", "block.temb"), *clean),
        test("embedders", *begin, expect("rope", "rope", "rope"), *joined(T, run("img_in"))),
        test("dual", *block("dual"), expect("tokens", "block.dual.out", "block.dual")),
        test("last", *block("last"), expect(f"tokens[{T}:{T + drawn}]", "block.last.out", "block.last")),
        test("final", *mmdit_final(f, lanes)),
        test("transformer", open_("case0"), RUN_ALL, velocity(f, "block.velocity")),
    ], bf16=True)


def qwen_image_21(f):
    about = f.blocks["block"]
    prefix, drop, drawn = about["prefix"], about["drop"], f.shape("block.last.out")[1]
    ids, spans, references, at = f.ints("case0.ids.cond"), [], [], drop
    while f.has(f"case0.encoded.reference_{len(spans):03}"):
        references.append(f"case0.encoded.reference_{len(spans):03}[0]")
        height, width = (side // 2 for side in f.shape(f"case0.encoded.reference_{len(spans):03}")[2:])
        at = ids.index(image_pad(f, "processor"), at)
        spans.append(dict(first=at - drop, height=height, width=width))
        at += height * width
    case0 = dict(component="qwen_image_21") | case_latent() | (dict(reference=references, vision_spans=spans) if spans else {})
    lanes = dict(case0=case0)
    condition = [put("block.temb[0:1]", "condition"), put("block.temb[1:2]", "prefix_condition")]
    begin = [open_("case0"), run("txt_in"), put("block.modulation[0:1]", "modulation"), put("block.modulation[1:2]", "prefix_modulation")]

    def layer(kind):
        return [*begin, put(f"block.{kind}.in[0]", "tokens"), run(f"transformer_blocks.{about[kind]}")]

    final = []
    for name in ("block.final", "block.final_small"):
        rows, channels = f.shape(f"{name}.out")[1:]
        lanes[name] = dict(component="qwen_image_21", text="case0.hidden.cond[0:1]", latent=zeros(channels, 1, rows))
        final += [open_(name), put("block.final_scale", "final_scale"), put(f"{name}.in[0]", "tokens[1:]"), run("proj_out"),
                  expect("lane.prediction[:,0] cyx->yxc", f"{name}.out[0]", name)]
    return suite("qwen_image_21", lanes, [
        test("conditioning", open_("case0"), run("time_text_embed"), expect("condition", "block.temb[0:1]", "block.temb"),
             expect("prefix_condition", "block.temb[1:2]", "block.temb"), *condition,
             run("modulation"), expect("modulation", "block.modulation[0:1]", "block.modulation"),
             expect("prefix_modulation", "block.modulation[1:2]", "block.modulation"),
             run("norm_out"), expect("final_scale", "block.final_scale", "block.final_scale")),
        test("embedders", *begin, run("img_in"), expect("rope", "rope", "rope"), expect("text", "embed.text.out[0]", "embed.text"),
             expect("tokens", "block.sequence[0]", "block.sequence")),
        test("layer", *layer("layer"), expect("keys", "block.layer.keys", "block.layer.keys"),
             expect("values", "block.layer.values", "block.layer.values"), expect("tokens", "block.layer.out[0]", "block.layer")),
        test("last", *layer("last"), expect(f"tokens[{prefix}:{prefix + drawn}]", "block.last.out[0]", "block.last")),
        test("final", *final),
        test("transformer", open_("case0"), RUN_ALL, expect("lane.prediction[:,0] cyx->yxc", "block.velocity[0]", "block.velocity")),
    ], bf16=True)


def sd3(f):
    about = f.blocks["block"]
    T, case0 = two_streams(f, "sd3", dict(pooled="case0.pooled.cond"))
    lanes = dict(case0=case0)
    begin = [open_("case0"), put("block.temb", "condition")]
    layers, calls = [], [open_("case0"), RUN_ALL, velocity(f, "block.velocity")]
    for kind in ("joint", "second", "last"):
        if f.has(f"block.{kind}.in"):
            rows = f"tokens[{T}:]" if kind == "last" else "tokens"  # the last block computes only image rows
            name = f"transformer_blocks.{about[kind]}"
            layers += [*begin, put(f"block.{kind}.in", "tokens"), run(f"{name}.modulation"), run(name),
                       expect(rows, f"block.{kind}.out", f"block.{kind}")]
    for call in f.blocks["transformer"]:
        name = call["name"]
        lanes[name] = dict(component="sd3") | case_latent(call["latent"]) | dict(
            timestep=f"{name}.t", pooled="case0.pooled.cond", skip_layers=call["left_out"])
        calls += [open_(name), RUN_ALL, expect("lane.prediction", f"{name}.out[0]", "transformer", detail=name.split(".")[1])]
    return suite("sd3", lanes, [
        test("conditioning", open_("case0"), run("time_text_embed"), expect("condition", "block.temb", "block.temb")),
        test("embedders", *begin, run("context_embedder"), dict(table=0), expect("positions", "positions", "positions"),
             *joined(T, run("pos_embed.proj"))),
        test("layers", *layers),
        test("final", *mmdit_final(f, lanes)),
        test("transformer", *calls),
    ], bf16=True)


def zimage(f):
    case0 = dict(component="zimage") | case_latent()
    lanes = dict(case0=case0)
    begin = [open_("case0"), run("cap_embedder")]
    T, image = f.shape("case0.hidden.cond")[0], f.shape("rope.image")[0]  # image: rows with padding; the caption follows
    h, w = f.shape("case0.latent_001")[2:]
    rows = h // 2 * (w // 2)
    put_time = put("block.adaln_input", "time")
    times, calls = [], []
    for i in range(f.shape("t_embedder.in")[0]):
        # The reference's timesteps are already scaled.
        lanes[f"time {i}"] = case0 | dict(timestep=f"t_embedder.in[{i}]", settings=dict(t_scale=1))
        times += [open_(f"time {i}"), run("time"), expect("time", f"t_embedder.out[{i}:{i + 1}]", "t_embedder.out")]
    for call in f.expect["transformer"]:
        name = call["name"]
        lanes[name] = dict(component="zimage", timestep=f"{name}.t", text=call["caption"], latent=f"{name}.in")
        # The sampler's velocity has the opposite sign of the transformer's output.
        calls += [open_(name), RUN_ALL, expect(dict(scaled="lane.prediction", scale=-1), f"{name}.out", "transformer", detail=name.split(".")[1])]
    return suite("zimage", lanes, [
        test("timestep", *begin, run("time"), expect("time", "block.adaln_input", "block.adaln_input"),
             dict(timestep_embedding="t_embedder.in", equals="t_embedder.freq") | {"as": "t_embedder.freq"}, *times),
        test("caption", *begin, expect(f"rope[0:{image}]", "rope.image", "rope.image"),
             expect(f"rope[{image}:]", "rope.caption", "rope.caption"),
             # Padding is compared only at the refiner's input: the reference's linear layer pads differently.
             expect(f"caption[0:{T}]", f"embed.caption.out[0:{T}]", "embed.caption.out"),
             expect("caption", "block.context_refiner.0.in", "context_refiner.in")),
        test("patches", *begin, run("embedder"), expect(patches("lane.latent", "channels_last"), f"embed.image.in[0:{rows}]", "embed.image.in"),
             expect(f"tokens[0:{rows}]", f"embed.image.out[0:{rows}]", "embed.image.out")),
        test("refiners", *begin, put("block.context_refiner.0.in", "caption"), run("context_refiner.0"),
             expect("caption", "block.context_refiner.0.out", "block.context_refiner"), put_time,
             put("block.noise_refiner.1.in", f"tokens[0:{image}]"), run("noise_refiner.1.modulation"), run("noise_refiner.1"),
             expect(f"tokens[0:{image}]", "block.noise_refiner.1.out", "block.noise_refiner")),
        test("layer", *begin, put_time, put("block.layers.1.in", "tokens"), run("layers.1.modulation"), run("layers.1"),
             expect("tokens", "block.layers.1.out", "block.layers")),
        test("final", *final_layers(f, lanes, [run("final_layer.modulation"), run("final_layer")], [put_time],
                                    lambda n: f"tokens[0:{n}]", "channels_last", scale=-1)),
        test("transformer", *calls),
    ], bf16=True)


def unet(f):
    C = f.shape("case0.latent")[1]
    channels = f.shape("unet.0.in")[1]
    lanes = {}
    for i, call in enumerate(f.expect["unet"]):
        lane = dict(component="unet", timestep=f"unet.{i}.t", text="case0.hidden.cond", latent=f"unet.{i}.in[0,0:{C}]", add_time_ids=call["numbers"])
        if channels > C:
            lane["concat"] = f"unet.{i}.in[0,{C}:]"
        if f.has("case0.pooled.cond"):
            lane["pooled"] = "case0.pooled.cond"
        lanes[f"unet.{i}"] = lane
    begin = [open_("unet.2"), put("block.temb", "condition")]  # the call with references of blocks

    def flat(buffer, shape):
        return f"{buffer}.flat[0:{shape[1] * shape[2] * shape[3]}]"

    def block(name, source, to, blocks=None):
        """Runs a module on an image in buffer `source`; its result is in buffer `to`."""
        module = f.blocks[f"block.{name}"]["module"]
        return [put(f"block.{name}.in[0] cyx->yxc", flat(source, f.shape(f"block.{name}.in"))), run(blocks or f"{module}*"),
                expect(flat(to, f.shape(f"block.{name}.out")), f"block.{name}.out[0] cyx->yxc", f"block.{name}")]

    # A down level of two resnets has three skip connections: its input, and the output of each resnet.
    level = int(f.blocks["block.transformer"]["module"].split(".")[1])
    after = f"skip{3 * level + 2}"
    joined_in = f.shape("block.resnet_joined.in")
    skipped = f.shape("block.conv_in.out")[1]  # channels of skip1, which the block concatenates to its input
    stream = [1, joined_in[1] - skipped, *joined_in[2:]]
    joined = [put(f"block.resnet_joined.in[0,0:{stream[1]}] cyx->yxc", flat("stream", stream)),
              put(f"block.resnet_joined.in[0,{stream[1]}:] cyx->yxc", "skip1"),
              *block("resnet_joined", "stream", "stream")[1:]]
    up = f.blocks["block.up"]["module"].split(".")[1]
    time = "add_embedding" if lanes["unet.2"]["add_time_ids"] else "time_embedding"
    whole = [step for i in range(len(lanes)) for step in (open_(f"unet.{i}"), RUN_ALL, expect("lane.prediction", f"unet.{i}.out[0]", f"unet.{i}"))]
    return suite("unet", lanes, [
        test("conditioning", open_("unet.2"), run(time), expect("condition", "block.temb", "block.temb")),
        test("resnets", *begin, *block("resnet", "skip3", "skip4"), *block("resnet_plain", "stream", "stream"), *joined),
        test("transformers", *begin, *block("transformer", after, after), *block("transformer_mid", "stream", "stream")),
        test("sizes", *begin, *block("down", "skip2", "skip3", "down_blocks.0.downsample"),
             *block("up", "stream", "stream", f"up_blocks.{up}.upsample")),
        test("ends", *begin, run("conv_in"), expect(flat("skip0", f.shape("block.conv_in.out")), "block.conv_in.out[0] cyx->yxc", "block.conv_in"),
             put("block.out.in[0] cyx->yxc", flat("stream", f.shape("block.out.in"))), run("conv_out"),
             expect("lane.prediction", "block.out.out[0]", "block.out")),
        test("whole", *whole),
    ], bf16=True)


def wan(f):
    about = f.blocks["block"]
    T, columns = f.shape("case0.hidden.cond")
    case0 = dict(component="wan") | case_latent() | dict(text=["case0.hidden.cond", zeros(512 - T, columns)])
    seen = [f"case0.seen.{frame}" for frame in ("init", "last") if f.has(f"case0.seen.{frame}")]
    case0 |= (dict(image=seen) if seen else {}) | (dict(concat="case0.concat") if f.has("case0.concat") else {})
    lanes = dict(case0=case0 | (dict(n_clean_frames=about["given"]) if about["given"] else {}))

    def opened(lane):
        return [open_(lane)] + ([put("case0.encoded.init", "lane.latent[:,0:1]")] if about["given"] else [])

    clean = about["given"] > 0
    last = f.shape("block.e")[0] - 1  # row 0: timestep 0 of clean frames, if there are any; last row: the timestep
    row = f"[{last}:{last + 1}]"
    put_usual = [put(f"block.e{row}", "condition"), put(f"block.e6{row}", "modulation")]
    conditioning = put_usual + ([put("block.e[0:1]", "clean_condition"), put("block.e6[0:1]", "clean_modulation")] if clean else [])
    embedders = [run("condition_embedder.text_embedder")] + ([run("condition_embedder.image_embedder")] if seen else [])
    words = f.shape("embed.text.out")[0]  # the prompt's rows and one row of padding
    layer = f"blocks.{about['layer']}"
    rows, values = f.shape("block.final_small.out")[1:]
    lanes["block.final_small"] = case0 | dict(latent=zeros(values // 4, 1, 2, 2 * rows))
    calls = [*opened("case0"), RUN_ALL, expect("lane.prediction", "block.velocity", "block.velocity")]
    for call in f.blocks["transformer"]:
        name = call["name"]
        lanes[name] = lanes["case0"] | dict(folder=call["model"], timestep=f"{name}.t", latent=f"case0.{call['latent']}[0]")
        calls += [*opened(name), RUN_ALL, expect("lane.prediction", f"{name}.out", "transformer", detail=name.split(".")[1])]

    def final(name):
        return [put(f"{name}.in[0]", "tokens"), run("proj_out"), expect(patches("lane.prediction", "channels_last"), f"{name}.out[0]", name)]

    return suite("wan", lanes, [
        test("conditioning", *opened("case0"), run("condition_embedder.time_embedder"), expect("condition", f"block.e{row}", "block.e"),
             *([expect("clean_condition", "block.e[0:1]", "block.e")] if clean else []), *conditioning,
             run("condition_embedder.time_proj"), expect("modulation", f"block.e6{row}", "block.e6"),
             *([expect("clean_modulation", "block.e6[0:1]", "block.e6")] if clean else [])),
        test("embedders", *opened("case0"), *embedders, expect("rope", "rope", "rope"),
             expect(f"text[0:{words}]", "embed.text.out", "embed.text"),
             expect("text[511:512]", f"embed.text.out[{words - 1}:{words}]", "embed.text"),
             *([expect("image", "embed.seen.out", "embed.seen")] if seen else []),
             run("patch_embedding"), expect("tokens", "embed.image.out", "embed.image")),
        test("layer", *opened("case0"), *embedders, *conditioning, run(f"{layer}.seen"), put("block.layer.in", "tokens"), run(layer),
             expect("tokens", "block.layer.out", "block.layer")),
        test("final", *opened("case0"), *conditioning, *final("block.final"),
             open_("block.final_small"), *put_usual, *final("block.final_small")),
        test("transformer", *calls),
    ], bf16=True)


def module_block(f, name):
    """Name of the engine's block for a VAE module, such as "up_blocks.0.upsample" for "decoder.up_blocks.0.upsamplers.0"."""
    half, _, module = f.blocks[name]["module"].partition(".")
    assert half in ("decoder", "encoder"), half
    return module.replace("upsamplers.0", "upsample").replace("downsamplers.0", "downsample")


def vae_module(f, name, blocks, level):
    """Runs blocks on an image at the start of a level's place in the full-frame buffer."""
    return [put(f"{name}.in[0] cyx->yxc", "full_frame", level=level), *map(run, blocks),
            expect("full_frame", f"{name}.out[0] cyx->yxc", name)]


MID = ["mid_block.resnets.0", "mid_block.attentions.0", "mid_block.resnets.1"]


def vae(f, component):
    C, Y, X = f.shape("decoder.out")[1:]
    lanes = dict(case0=dict(component=component, latent="decoder.in[0]", picture=zeros(Y, X, C)))
    first, blocks = open_("case0"), []
    for name in ("vae.resnet", "vae.resnet_shortcut", "vae.attention", "vae.upsampler"):
        block = module_block(f, name)
        level = int(block.split(".")[1]) if block.startswith("up_blocks.") else 0
        blocks += [first, *vae_module(f, name, [block], level)]
    return suite("vae", lanes, [
        test("blocks", *blocks),
        test("mid", first, *vae_module(f, "vae.mid", MID, 0)),
        # The reference's latent is already scaled and shifted.
        test("decoder", first, dict(unscale_latent=True), RUN_ALL, expect("lane.picture", "decoder.out[0] cyx->yxc", "decoder")),
    ], [test("places", first, dict(places=True)), test("tiled", dict(tiled=component, least=2, saves=True))], gpu=True)


def encoder_checks(component, pixel_factor):
    return [test("tiled", dict(tiled=component, least=1, saves=pixel_factor == 8)), test("lanes", dict(lanes_in_one_stage=component))]


def vae_encoder(f, component, parts):
    config = f.json("model", "vae", "config.json")
    lanes, steps = {}, [open_("case0")]
    if parts:
        C, Y, X = f.shape("encoder.out")[1:]
        lanes["case0"] = dict(component=component, picture="encoder.in[0] cyx->yxc", moments=zeros(Y, X, C))
        for name in ("encoder.resnet", "encoder.downsampler"):
            block = module_block(f, name)
            # Block numbers run through all levels: a level's resnets, then its downsampler.
            level = int(block.split(".")[1]) // (config["num_res_blocks"] + 1)
            steps += [*vae_module(f, name, [block], level), open_("case0")]
        steps += [*vae_module(f, "encoder.mid", MID, len(config["dim_mult"]) - 1), RUN_ALL,
                  expect("lane.moments", "encoder.out[0] cyx->yxc", "encoder")]
    tests = [test("parts", *steps)] if parts else []
    return suite("vae_encoder", lanes, tests, encoder_checks(component, 2 ** (len(config["dim_mult"]) - 1)), gpu=True)


def only_vae_encoder(f):
    """An encoder without a pipeline."""
    names = tensors_of(os.path.join(f.folder, "diffusion_pytorch_model.safetensors"))[0]
    lanes = {}
    for i in range(2):
        lanes[f"picture{i}"] = dict(component="vae_kl_encoder", picture=f"picture{i}", moments=zeros(*f.shape(f"moments{i}")))
    steps = [s for i in range(2) for s in (open_(f"picture{i}"), RUN_ALL, expect("lane.moments", f"moments{i}", "moments"))]
    factor = f.shape("picture0")[0] // f.shape("moments0")[0]
    # A key bias adds the same to all scores of a query; softmax cancels it.
    moves = test("influence", open_("picture0"), influence(["lane.moments"], len(names), ["to_k.bias", "attn_1.k.bias"]))
    return suite("vae_encoder", lanes, [test("moments", *steps)], [moves, *encoder_checks("vae_kl_encoder", factor)], gpu=True)


def vae_halves(f):
    """Both halves of an autoencoder (Flux.2's, Qwen-Image-2.1's) in one file."""
    names = [n for n in tensors_of(os.path.join(f.folder, "diffusion_pytorch_model.safetensors"))[0] if "time_conv" not in n]
    lanes, moments, pictures = {}, [], []
    for i in range(2):
        lanes[f"picture{i}"] = dict(component=f"{f.kind}_encoder", picture=f"picture{i}", moments=zeros(*f.shape(f"moments{i}")))
        lanes[f"latent{i}"] = dict(component=f.kind, latent=f"latent{i}", picture=zeros(*f.shape(f"decoded{i}")))
        moments += [open_(f"picture{i}"), RUN_ALL, expect("lane.moments", f"moments{i}", "moments")]
        pictures += [open_(f"latent{i}"), RUN_ALL, expect("lane.picture", f"decoded{i}", "decoder")]

    # Names of the 1x1 convolutions next to the latent, which lack the half's prefix.
    half_of = dict(post_quant_conv="decoder", conv2="decoder", quant_conv="encoder", conv1="encoder")

    def moves(half, lane, output):
        n = sum(half in (name.split(".")[0], half_of.get(name.split(".")[0])) for name in names)
        return test(f"influence on {output}", open_(lane), influence([output], n, ["to_k.bias", "attn_1.k.bias"]))

    small, banded = f.name == "small", f.kind == "vae_qwen21"
    bands = [test("bands", open_("latent0"), dict(bands=True))] if small and banded else []
    # Tiling does not make the full-frame buffers of Qwen-Image-2.1's decoder smaller: the last levels have none.
    tiled = [] if banded else [test("tiled", dict(tiled=f.kind, least=2, saves=True))]
    return suite(f.kind, lanes, [test("moments", *moments), test("decoded", *pictures), *bands], [
        moves("encoder", "picture0", "lane.moments"),
        moves("decoder", "latent0", "lane.picture"),
        *([*tiled, *encoder_checks(f"{f.kind}_encoder", 8)] if small else []),
    ], gpu=True)


def taesd(f):
    names = tensors_of(os.path.join(f.folder, "diffusion_pytorch_model.safetensors"))[0]
    lanes = {f"latent{i}": dict(component="taesd", latent=f"latent{i}", picture=zeros(*f.shape(f"picture{i}"))) for i in range(2)}
    C, Y = f.shape("latent0")[:2]
    factor = f.shape("picture0")[0] // Y  # 16 with pooled branches, which the operators of "whole" lack
    lanes["random"] = dict(component="taesd", latent=dict(random=[C, 9, 40]), picture=zeros(9 * factor, 40 * factor, 3))
    name = "picture" if factor == 8 else "pooled picture"
    steps = [s for i in range(2) for s in (open_(f"latent{i}"), RUN_ALL, expect("lane.picture", f"picture{i}", name))]
    return suite("taesd", lanes, [test("picture", *steps)], [
        test("influence", open_("latent0"), influence(["lane.picture"], len(names))),
        *([test("whole", dict(whole_picture=True))] if factor == 8 else []),
        test("places", open_("random"), dict(places=True)),
    ], gpu=True)


def taehv(f):
    names = tensors_of(os.path.join(f.folder, "diffusion_pytorch_model.safetensors"))[0]
    decoder = [name for name in names if name.startswith("decoder.")]
    joined = sum(name.endswith(("conv.0.weight", "conv1.weight")) for name in decoder)  # read as two weights
    F, h, w = f.shape("video.decoder.out")[2:]
    lanes = dict(video=dict(component="taehv", latent="video.decoder.in[0]", picture=zeros(4 if F > 1 else 1, h, w, 3), frames=[F, h, w, 3]))
    return suite("taehv", lanes, [
        test("frames", open_("video"), RUN_ALL, expect("lane.frames", "video.decoder.out[0] cnyx->nyxc", "frames")),
    ], [
        test("influence", open_("video"), influence(["lane.frames"], len(decoder) + joined)),
        test("whole", dict(whole_video=True)),
    ], gpu=True)


def suites(f):
    """Returns the suites of a fixture."""
    if f.kind == "gemma3":
        return gemma3(f)
    if f.kind == "qwen3vl":
        return qwen3vl(f)
    if f.kind == "ltx2_text":
        return ltx2_text(f)
    if f.kind == "padded":
        return [padded(f)]
    if f.kind in ("clip", "taesd", "taehv", "vae_encoder", "vae_flux2", "vae_qwen21"):
        kinds = dict(clip=clip_kinds, taesd=taesd, taehv=taehv, vae_encoder=only_vae_encoder, vae_flux2=vae_halves, vae_qwen21=vae_halves)
        return [kinds[f.kind](f)]
    family = f.expect.get("family", "zimage")
    # weights are those of zimage_a and qwen_image_21, whose blocks are tested
    if family == "zimage_base" or f.name == "qwen_image_21_distilled":
        return []
    denoisers = dict(flux=flux,
                     flux2=flux2,
                     longcat_image=longcat_image,
                     chroma=chroma,
                     ovis=ovis,
                     krea2=krea2,
                     qwen=qwen_image, qwen21=qwen_image_21, sd3=sd3, anima=anima, zimage=zimage, unet=unet, wan=wan, ltx2=ltx2)
    if f.name == "flux_redux":  # the transformer is flux_a's
        return [siglip(f), redux(f)]
    out = [denoisers[family](f)] if f.blocks else []
    if family == "flux" and f.has("block.clip.in"):
        out += [clip(f), t5(f, "t5", "ids_2")]
    if f.has("block.umt5.in"):
        out.append(t5(f, "umt5", "ids"))
    if f.has("block.vision.in"):
        out.append(clip_vision(f))
    if f.has("block.text.in"):
        out.append(qwen3(f))
    if f.has("block.adapter.in"):
        out.append(anima_adapter(f))
    if f.has("projection.out"):
        out += ltx2_text(f)
    if f.has("block.mistral.in"):
        out.append(qwen3(f, "mistral", "block.mistral"))
    if f.has("block.language.in"):
        out.append(qwen25vl(f))
    if f.has("block.tower.in"):
        out.append(qwen25vl_vision(f))
    # SDXL has no VAE suite: the first two levels of its test VAE are equally wide, unlike in published VAEs, so tiling
    # would save nothing.
    if f.has("decoder.in") and f.name != "sdxl":
        out.append(vae(f, "vae_wan" if family == "qwen" else "vae_kl"))
    if family == "qwen":
        out.append(vae_encoder(f, "vae_wan_encoder", f.has("encoder.in")))
    return out


def components(f):
    """Describes the components of a fixture without a pipeline. config: true: the configuration is in config.json."""
    usual = dict(file="diffusion_pytorch_model.safetensors")
    if f.kind == "taesd":
        return [dict(family="taesd", config=f.name in ("f32", "bf16"), latent_format=[0.7, 0.1] if f.name == "bf16" else [1, 0]) | usual]
    if f.kind == "taehv":
        return [dict(family="taehv", video=True, config=f.name == "bf16") | usual]
    if f.kind == "vae_encoder":
        shift = dict(f32=0.05, bf16=0.1, authors=0.15)[f.name]
        return [dict(family="vae_kl_encoder", config=True, latent_format=[0.7, shift]) | usual]
    if f.kind in ("vae_flux2", "vae_qwen21"):
        return [dict(family=family, config=True) | usual for family in (f.kind, f"{f.kind}_encoder")]
    if f.kind == "clip":
        # Hidden states and pooled row that SD1, SD2 and SDXL read of this CLIP.
        reads = dict(tokens=True) | dict(l=dict(final_norm=True, pooled=True), h=dict(layers=[-2], final_norm=True),
                                         g=dict(layers=[-2], pooled=True, projected=True))[f.name]
        files = [dict(family="clip", file="model.safetensors", config=True, reads=reads)]
        if f.name != "l":
            # Single files have no configuration; the fixture's heads do not have the usual width of 64.
            heads = f.json("config.json")["num_attention_heads"]
            config, erf_gelu = dict(num_attention_heads=heads), dict(hidden_act=1)
            files.append(dict(family="clip", file="open.safetensors", config=config, reads=reads, published=erf_gelu))
        return files
    if f.kind == "gemma3":
        return [dict(family="gemma3", prefix="model.language_model.", file="model.safetensors", config=True),
                dict(family="gemma3", file="llama.safetensors", config=f.expect["gemma3"]["metadata"])]
    if f.kind == "qwen3vl":
        about, usual = f.expect["qwen3vl"], dict(file="model.safetensors", config=True)
        vision = dict(family="qwen3vl_vision", pictures=True)
        return [dict(family="qwen3vl", prefix="model.language_model.", reads=dict(tokens=True, layers=about["layers"])) | usual,
                vision | dict(prefix="model.visual.") | usual, vision | dict(file="mmproj.safetensors", config=about["gguf"])]
    if f.kind == "ltx2_text":
        return [dict(family=f"ltx2_{part}", file=f"{part}.safetensors", config=f.expect["ltx2_text"]) for part in ("projection", "connectors")]
    if f.kind == "padded":
        # The other file has llama.cpp's names, and metadata as in GGUF files.
        reads = dict(tokens=True) | (dict(layers=f.expect["padded"]["layers"]) if "layers" in f.expect["padded"] else {})
        return [dict(family=f.name, file=file, config=config, reads=reads) for file, config in f.expect["padded"]["files"].items()]
    return None


def text_of(value, indent=0, wide=150):
    """JSON with one step, lane or tolerance a line."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list)) or (len(line) + indent <= wide and not ("steps" in value or "tests" in value)):
        return line
    inner = "\n" + " " * (indent + 1)
    if isinstance(value, list):
        return "[" + ",".join(inner + text_of(v, indent + 1) for v in value) + "\n" + " " * indent + "]"
    return "{" + ",".join(inner + json.dumps(k) + ": " + text_of(v, indent + 1) for k, v in value.items()) + "\n" + " " * indent + "}"


def write(folder):
    """Writes blocks.json into a fixture's folder."""
    f = Fixture(folder)
    about = components(f)
    out = (dict(components=about) if about else {}) | dict(suites=suites(f))
    with open(os.path.join(folder, "blocks.json"), "w", encoding="utf-8") as file:
        file.write(text_of(out) + "\n")


if __name__ == "__main__":
    for each in sys.argv[1:]:
        write(each)
