"""Block tests of text and vision encoders, for block_tests.py."""

import os

from block_steps import RUN_ALL, expect, influence, open_, patches, put, run, suite, tensors_of, test, zeros


def prompts(f, hidden):
    """Returns (case, branch) of all prompts that have a reference tensor `hidden`."""
    return [(k, branch) for k in range(len(f.expect["cases"])) for branch in ("cond", "uncond") if f.has(f"case{k}.{hidden}.{branch}")]


def two_hidden_states(family, lane):
    return test("two hidden states", dict(two_hidden_states=lane, family=family))


def clip(f):
    columns = f.shape("case0.pooled.cond")[0]
    ids = f.ints("case0.ids.cond")
    base = dict(component="clip", pooled=zeros(1, columns))
    lanes = dict(case0=base | dict(tokens="case0.ids.cond"), layer=base | dict(n_tokens=len(ids)))
    pooled = []
    for k, case in enumerate(f.expect["cases"]):
        ids = f.ints(f"case{k}.ids.cond")
        end = ids.index(ids[min(case["ids_cond"], len(ids)) - 1])  # the first end-of-text token
        lanes[f"pooled {k}"] = base | dict(tokens=f"case{k}.ids.cond", pooled_row=end)
        pooled += [open_(f"pooled {k}"), RUN_ALL, expect("lane.pooled", f"case{k}.pooled.cond", "pooled", detail=f"case {k} cond")]
    return suite("clip", lanes, [
        test("embedding", open_("case0"), dict(table=0), run("position_embedding"), expect("tokens", "clip.embedding", "clip.embedding")),
        test("layer", open_("layer"), put("block.clip.in", "tokens"), run(f"layers.{f.blocks['block.clip']['layer']}"),
             expect("tokens", "block.clip.out", "block.clip")),
        test("pooled", *pooled),
    ], [test("tokens", open_("case0"), dict(token_rows_in_wider_tensor=True))], bf16=True)


def t5(f, family, ids):
    """T5, or umT5, in which each layer has its own table of relative positions."""
    columns = f.shape("case0.hidden.cond")[1]
    layer = f.blocks[f"block.{family}"]["layer"]
    bias = run(f"relative_attention_bias.{layer if family == 'umt5' else 0}")
    distances, rows = f.shape(f"{family}.distance_bias")[1], f.shape(f"block.{family}.in")[1]

    def of_rows(n):
        return dict(component=family, n_tokens=n, text=zeros(n, columns))

    def of_ids(k):
        name = f"case{k}.{ids}.cond"
        return of_rows(f.shape(name)[0]) | dict(tokens=name)

    lanes = {"ids 0": of_ids(0), "bias": of_rows((distances + 1) // 2), "layer": of_rows(rows)}
    hidden = []
    for k, branch in prompts(f, "hidden"):
        if branch == "cond":
            lanes[f"ids {k}"] = of_ids(k)
            hidden += [open_(f"ids {k}"), RUN_ALL, expect("lane.text", f"case{k}.hidden.cond", "hidden", detail=f"case {k} cond")]
    return suite(family, lanes, [
        test("embedding", open_("ids 0"), dict(table=0), expect("lane.text", f"{family}.embedding", "t5.embedding")),
        # The position bias consists of unmodified values of the table, so the bits are equal.
        test("distance bias", open_("bias"), bias, expect("bias", f"{family}.distance_bias", "t5.distance_bias")),
        test("layer", open_("layer"), put(f"block.{family}.in", "lane.text"), bias, run(f"block.{layer}"),
             expect("lane.text", f"block.{family}.out", "block.t5")),
        test("hidden", *hidden),
    ], [two_hidden_states(family, "ids 0")], bf16=True)


def qwen3(f, component="qwen3", name="block.text"):
    """Qwen3, or another language model; text.ids: with padding, which is masked. If several hidden states are read, the
    rows are not in lane.text."""
    n, columns = f.shape("text.embedding")
    about = f.blocks[name]
    lane, rows = dict(tokens="case0.ids.cond", text=zeros(n, columns)), "lane.text"
    if f.has("text.ids"):  # the recipe reads several hidden states
        lane, rows = {"tokens": "text.ids", "text": zeros(n, f.shape("case0.hidden.cond")[1]), "keys.first": about["first_key"], "keys.n": about["keys"]}, "tokens"
    return suite(component, dict(case0=dict(component=component) | lane), [
        test("text layer", open_("case0"), dict(table=0), expect(rows, "text.embedding", "text.embedding"),
             put(f"{name}.in", rows), run(about["name"]), expect(rows, f"{name}.out", name)),
    ], bf16=True)


def image_pad(f, folder="tokenizer"):
    added = f.json("model", folder, "tokenizer_config.json")["added_tokens_decoder"]
    return next(int(number) for number, token in added.items() if token["content"] == "<|image_pad|>")


def reference_grid(f, k, i):
    """Rows and columns of tokens of a case's reference image: a token is 28x28 pixels."""
    h, w = f.shape(f"case{k}.pixels.reference_{i:03}")[:2]
    return h // 28, w // 28


def qwen25vl(f):
    columns = f.shape("text.embedding")[1]

    def lane(k, branch):
        name = f"case{k}.ids.{branch}"
        ids, spans, at = f.ints(name), [], 0
        while f.has(f"case{k}.seen.reference_{len(spans):03}"):
            at = ids.index(image_pad(f), at)
            height, width = reference_grid(f, k, len(spans))
            spans.append(dict(rows=f"case{k}.seen.reference_{len(spans):03}", first=at, height=height, width=width))
            at += height * width
        out = dict(component="qwen25vl", tokens=name, text=zeros(len(ids), columns))
        return out | (dict(vision_spans=spans) if spans else {})

    lanes, hidden = {"case0 cond": lane(0, "cond")}, []
    for k, branch in prompts(f, "hidden"):
        lanes[f"case{k} {branch}"] = lane(k, branch)
        n, kept = f.shape(f"case{k}.ids.{branch}")[0], f.shape(f"case{k}.hidden.{branch}")[0]
        # The template's first tokens are dropped.
        hidden += [open_(f"case{k} {branch}"), RUN_ALL,
                   expect(f"lane.text[{n - kept}:]", f"case{k}.hidden.{branch}", "hidden", detail=f"case {k} {branch}")]
    return suite("qwen25vl", lanes, [
        test("embedding", open_("case0 cond"), dict(table=0), expect("lane.text", "text.embedding", "text.embedding"),
             expect("rope", "text.rope", "text.rope")),
        test("layer", open_("case0 cond"), dict(table=0), put("block.language.in", "lane.text"),
             run(f"layers.{f.blocks['block.language']['layer']}"), expect("lane.text", "block.language.out", "block.language")),
        test("hidden", *hidden),
    ], [two_hidden_states("qwen25vl", "case0 cond")], bf16=True)


def vision_tokens(f, lanes, pictures, lane):
    """Lanes and steps of all images that the vision encoder reads."""
    steps = []
    for k in range(len(f.expect["cases"])):
        for picture in pictures:
            if f.has(f"case{k}.seen.{picture}") and f.has(f"case{k}.pixels.{picture}"):
                lanes[f"case{k} {picture}"] = lane(k, picture)
                steps += [open_(f"case{k} {picture}"), RUN_ALL,
                          expect("lane.text", f"case{k}.seen.{picture}", "seen", detail=f"case {k} {picture}")]
    return steps


def qwen25vl_vision(f):
    def lane(k, picture):
        return dict(component="qwen25vl_vision", picture=f"case{k}.pixels.{picture}", text=zeros(*f.shape(f"case{k}.seen.{picture}")))

    lanes = {}
    first = open_("case0 reference_000")
    steps = vision_tokens(f, lanes, [f"reference_{i:03}" for i in range(8)], lane)
    layers = []
    for name in ("block.tower", "block.tower_full"):  # window attention, full attention
        layers += [first, run("patch_embed"), put(f"{name}.in", "tokens"), run(f"blocks.{f.blocks[name]['layer']}"),
                   expect("tokens", f"{name}.out", name)]
    # The reference orders the merger's rows by windows, the engine by rows of the image.
    (height, width), window = reference_grid(f, 0, 0), f.expect["model"]["tower_window"] // 28
    windows = [f"lane.text[{y * width + x}:{y * width + min(x + window, width)}]"
               for top in range(0, height, window) for x in range(0, width, window) for y in range(top, min(top + window, height))]
    return suite("qwen25vl_vision", lanes, [
        test("patches", first, run("patch_embed"), expect("tokens", "tower.patches.out", "tower.patches"),
             expect("rope", "tower.rope", "tower.rope")),
        test("layers", *layers),
        test("merger", first, put("tower.merger.in", "tokens"), run("merger"), expect(windows, "tower.merger.out[0]", "tower.merger")),
        test("vision tokens", *steps),
    ], bf16=True)


def clip_vision(f):
    def lane(k, picture):
        return dict(component="clip_vision", picture=f"case{k}.pixels.{picture} cyx->yxc", text=zeros(*f.shape(f"case{k}.seen.{picture}")))

    lanes = {}
    steps = vision_tokens(f, lanes, ["init", "last"], lane)
    first = open_("case0 init")
    return suite("clip_vision", lanes, [
        test("patches", first, run("embeddings"), expect("tokens", "vision.norm.out", "vision.norm")),
        test("layer", first, put("block.vision.in", "tokens"), run(f"layers.{f.blocks['block.vision']['layer']}"),
             expect("tokens", "block.vision.out", "block.vision")),
        test("vision tokens", *steps),
    ], [test("pixels", dict(resized_pixels="clip_vision"))], bf16=True)


def siglip(f):
    def lane(k, picture):
        return dict(component="siglip", picture=f"case{k}.pixels.{picture} cyx->yxc", text=zeros(*f.shape(f"case{k}.seen.{picture}")))

    lanes = {}
    steps = vision_tokens(f, lanes, ["redux_000", "redux_001"], lane)
    first = open_("case0 redux_000")
    return suite("siglip", lanes, [
        test("patches", first, run("embeddings"), expect("tokens", "vision.patches.out", "vision.patches")),
        test("layer", first, put("block.vision.in", "tokens"), run(f"layers.{f.blocks['block.vision']['layer']}"),
             expect("tokens", "block.vision.out", "block.vision")),
        test("norm", first, put("vision.norm.in", "tokens"), run("post_layernorm"), expect("lane.text", "vision.norm.out", "vision.norm")),
        test("vision tokens", *steps),
    ], [test("pixels", dict(resized_pixels="siglip"))], bf16=True)


def redux(f):
    lanes, steps = {}, []
    for k, case in enumerate(f.expect["cases"]):
        for i in range(len(case.get("redux", []))):
            name = f"case{k}.seen.redux_rows_{i:03}"
            lanes[name] = dict(component="redux", source=f"case{k}.seen.redux_{i:03}", text=zeros(*f.shape(name)))
            steps += [open_(name), RUN_ALL, expect("lane.text", name, "seen", detail=f"case {k} redux_rows_{i:03}")]
    return suite("redux", lanes, [test("rows", *steps)], bf16=True)


def clip_kinds(f):
    """One CLIP in files with transformers' names and, except L, with OpenCLIP's names."""
    n, window, every = len(f.ints("ids")), 77, 7  # the references have only every 7th row of a window
    columns = f.shape("rows.1")[1]
    files = 1 if f.name == "l" else 2
    usual = 1 if f.name == "l" else 2  # clip_skip of the recipe that reads this encoder
    pools = f.name != "h"
    lanes, rows, pooled, names = {}, [], [], []

    def lane(file, skip, with_pooled):
        name = f"file {file} skip {skip}{' pooled' if with_pooled else ''}"
        lanes[name] = dict(component="clip", number=file, tokens="ids", window=window, clip_skip=skip, pooled_row=window - 1,
                           text=zeros(n, columns)) | (dict(pooled=zeros(*f.shape("pooled"))) if with_pooled else {})
        return [open_(name), RUN_ALL]

    for file in range(files):
        # Only the layers that a clip_skip needs are visited. The first file of H lacks the last layer.
        for skip in range(2 if f.name == "h" and not file else 1, 4):
            rows += [*lane(file, skip, False), expect(f"lane.text[::{every}]", f"rows.{skip}", f"rows.{skip}")]
            if files == 2:
                keep = [dict(keep="lane.text", name="text")] + ([dict(keep="lane.pooled", name="pooled")] if pools else [])
                same = [expect("lane.text", "kept.text", "the other file")]
                same += [expect("lane.pooled", "kept.pooled", "the other file")] if pools else []
                if file == 0:
                    names += [*lane(0, skip, pools), *keep, *lane(1, skip, pools), *same]
        rows += [*lane(file, 0, pools), expect(f"lane.text[::{every}]", f"rows.{usual}", f"rows.{usual}")]
        if pools:
            pooled += [*lane(file, 0, True), expect("lane.pooled", "pooled", "pooled")]
    for skip in range(1, 4):
        lane(0, skip, pools)  # counted by "visits"
    outputs = ["lane.text"] + (["lane.pooled"] if pools else [])
    weights = sum("token_embedding" not in name for name in tensors_of(os.path.join(f.folder, "model.safetensors"))[0])
    return suite("clip_kinds", lanes, [
        test("rows", *rows),
        *([test("pooled", *pooled)] if pools else []),
        *([test("names", *names)] if names else []),
    ], [
        test("visits", dict(visits_of_clip_skip=True, least=[2 if f.name == "h" else 1, 1][:files], most=3)),
        test("influence", *lane(0, usual, pools)[:1], influence(outputs, weights, ["k_proj.bias"])),
        # Only of L, the last blocks are the last layer and the final norm.
        *([two_hidden_states("clip", lane(0, 0, False)[0]["open"])] if f.name == "l" else []),
    ], bf16=True)


def padded(f):
    """A text encoder alone, whose prompts have masked padding. The references name the range of keys."""
    expect_ = f.expect["padded"]
    lanes, rows, names = {}, [], []
    for name, about in expect_["lanes"].items():
        n, columns = f.shape(f"{name}.text")
        for file in range(len(expect_["files"])):
            lane = dict(component=f.name, number=file, tokens=f"{name}.ids", text=zeros(n, columns))
            lane |= {"keys.first": about["first"], "keys.n": about["n"]} if about["n"] else {}
            if "span" in about:
                lane["vision_spans"] = [dict(rows=f"{name}.image") | about["span"]]
            lanes[f"{name} {file}"] = lane
            rows += [open_(f"{name} {file}"), RUN_ALL, expect("lane.text", f"{name}.text", "text", detail=name)]
    weights = sum("embed" not in name and "shared" not in name for name in tensors_of(os.path.join(f.folder, "model.safetensors"))[0])
    first = next(iter(lanes))
    return suite(f"padded_{f.name}", lanes, [test("text", *rows)], [
        test("influence", open_(first), influence(["lane.text"], weights))], bf16=True)


def gemma3(f):
    """A Gemma 3 without a pipeline: all hidden states, from a file of transformers and one with llama.cpp's names."""
    about = f.expect["gemma3"]
    lanes, rows = {}, []
    for name in about["prompts"]:
        for number in range(2):
            lanes[f"{name} {number}"] = dict(component="gemma3", number=number, tokens=f"{name}.ids", text=zeros(*f.shape(f"{name}.text")))
            rows += [open_(f"{name} {number}"), RUN_ALL, expect("lane.text", f"{name}.text", "text", detail=name)]
    begin, layers = [open_("short 0"), dict(table=0)], []
    for name, number in about["layers"].items():
        layers += [put(f"{name}.in", "tokens"), run(f"layers.{number}"), expect("tokens", f"{name}.out", name)]
    weights = len(tensors_of(os.path.join(f.folder, "model.safetensors"))[0]) - 1
    return [suite("gemma3", lanes, [
        test("embedding", *begin, expect("tokens", "embedding", "embedding"), expect("rope", "rope", "rope"), expect("local_rope", "local_rope", "local_rope")),
        test("layers", *begin, *layers),
        test("text", *rows),
    ], [test("influence", open_("short 0"), influence(["lane.text"], weights))], bf16=True)]


def ltx2_text(f):
    """Text projection and connectors of LTX-2, without a pipeline or with one. A pipeline pads the prompt: other positions
    of Gemma's rope change its states and so the projection by the rounding of angles."""
    def component(name, source, out, tolerance="text"):
        lanes = {"prompt": dict(component=f"ltx2_{name}", source=source, text=zeros(*f.shape(out)))}
        path = os.path.join(f.folder, f"{name}.safetensors")
        weights = len(tensors_of(path)[0]) if os.path.exists(path) else 0
        return suite(f"ltx2_{name}", lanes, [test("text", open_("prompt"), RUN_ALL, expect("lane.text", out, tolerance))],
                     [test("influence", open_("prompt"), influence(["lane.text"], weights))] if weights else [], gpu=True)

    if f.has("source"):
        return [component("projection", "source", "projected"), component("connectors", "projected", "text")]
    states = [component("projection", "gemma.states", "projection.out", "padded")] if f.has("gemma.states") else []
    return states + [component("connectors", "projection.out", "case0.hidden.cond")]


def qwen3vl(f):
    """Both towers of a Qwen3-VL, without a pipeline; the vision tower also in a file with llama.cpp's names."""
    about = f.expect["qwen3vl"]
    text, lanes, seen, rows = {}, {}, [], []
    for name, spans in about["prompts"].items():
        n, columns = f.shape(f"{name}.text")
        text[name] = dict(component="qwen3vl", tokens=f"{name}.ids", text=zeros(n, columns))
        if spans:
            text[name]["vision_spans"] = [dict(rows=f"{span['picture']}.rows") | {k: span[k] for k in ("first", "height", "width")} for span in spans]
        rows += [open_(name), RUN_ALL, expect("lane.text", f"{name}.text", "text", detail=name)]
    for name in about["pictures"]:
        for number in range(2):
            lanes[f"{name} {number}"] = dict(component="qwen3vl_vision", number=number, picture=f"{name}.pixels", text=zeros(*f.shape(f"{name}.rows")))
            seen += [open_(f"{name} {number}"), RUN_ALL, expect("lane.text", f"{name}.rows", "seen", detail=name)]
    blocks, columns = about["blocks"], f.shape("tower.merger.out")[1]

    def merged(name, block, part):
        return [put(f"{name}.in", "tokens"), run(block), expect(f"lane.text[:,{part * columns}:{(part + 1) * columns}]", f"{name}.out", name)]

    begin, deepstack = [open_("wide 0"), run("patch_embed")], blocks["tower.deepstack"]
    names = tensors_of(os.path.join(f.folder, "model.safetensors"))[0]
    vision = [name for name in names if ".visual." in name]
    language = [name for name in names if ".visual." not in name and "embed_tokens" not in name]
    weights = len(vision) + 2 * sum(".qkv." in name for name in vision) + 1  # q, k and v, both slices of the patch kernel
    return [suite("qwen3vl", text, [
        test("embedding", open_("two"), dict(table=0), expect("rope", "text.rope", "text.rope")),
        test("layer", open_("text"), dict(table=0), put("block.language.in", "tokens"), run(f"layers.{blocks['block.language']}"),
             expect("tokens", "block.language.out", "block.language")),
        test("text", *rows),
    ], [test("influence", open_("two"), influence(["lane.text"], len(language)))], bf16=True),
            suite("qwen3vl_vision", lanes, [
                test("patches", *begin, expect("tokens", "tower.patches.out", "tower.patches"), expect("rope", "tower.rope", "tower.rope")),
                test("layers", *begin, put("block.tower.in", "tokens"), run(f"blocks.{blocks['block.tower']}"),
                     expect("tokens", "block.tower.out", "block.tower"),
                     *merged("tower.deepstack", f"deepstack_merger_list.{deepstack}", 1 + deepstack), *merged("tower.merger", "merger", 0)),
                test("seen", *seen),
            ], [test("influence", open_("wide 0"), influence(["lane.text"], weights))], bf16=True)]
