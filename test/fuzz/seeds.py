"""Writes fuzzing seeds, small valid files, to build/fuzz/seeds/TARGET/seed_*. Add them with: ar rDS test/fuzz/TARGET.ar FILES
Needs Python with gguf, numpy and safetensors. Some seeds are copied from the fixtures in test/golden."""
import base64
import json
import os
import struct

import gguf
import numpy

GOLDEN = "test/golden"


def put(target, name, data):
    os.makedirs(f"build/fuzz/seeds/{target}", exist_ok=True)
    with open(f"build/fuzz/seeds/{target}/seed_{name}", "wb") as file:
        file.write(data)


def get(path):
    with open(f"{GOLDEN}/{path}", "rb") as file:
        return file.read()


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def f32(*values):
    return numpy.array(values, dtype=numpy.float32).tobytes()


def quantised():
    described = json.dumps({"format_version": "1.0", "layers": {"m.a": {"format": "float8_e4m3fn"}}})
    comfy = json.dumps({"format": "int8_tensorwise"}).encode()
    put("safetensors", "plain", safetensors({"a": ("F32", [2, 2], f32(1, 2, 3, 4)), "b": ("BF16", [2], b"1234")}, {"format": "pt", "config": "{}"}))
    put("safetensors", "scaled", safetensors({
        "m.scaled_fp8": ("F8_E4M3", [0], b""), "m.a.weight": ("F8_E4M3", [2, 4], b"12345678"),
        "m.a.scale_weight": ("F32", [], f32(0.5)), "m.a.scale_input": ("F32", [1], f32(1))}))
    put("safetensors", "described", safetensors({
        "m.a.weight": ("F8_E4M3", [2, 4], b"12345678"), "m.a.weight_scale": ("F32", [1], f32(2))}, {"_quantization_metadata": described}))
    put("safetensors", "int8", safetensors({
        "a.comfy_quant": ("U8", [len(comfy)], comfy), "a.weight": ("I8", [2, 4], b"12345678"), "a.weight_scale": ("F32", [2, 1], f32(2, 3))}))
    rotated = json.dumps({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}).encode()
    put("safetensors", "rotated", safetensors({
        "a.comfy_quant": ("U8", [len(rotated)], rotated), "a.weight": ("I8", [2, 16], bytes(32)), "a.weight_scale": ("F32", [2], f32(2, 3))}))
    nvfp4 = json.dumps({"format": "nvfp4"}).encode()
    put("safetensors", "nvfp4", safetensors({
        "a.comfy_quant": ("U8", [len(nvfp4)], nvfp4), "a.weight": ("U8", [16, 8], bytes(128)),
        "a.weight_scale": ("F8_E4M3", [128, 4], bytes(512)), "a.weight_scale_2": ("F32", [], f32(1))}))


def shards():
    put("shards", "two", json.dumps({"metadata": {"total_size": 24}, "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}}).encode())
    put("shards", "escaped", b'{"weight_map":{"\\u0061":"one.safetensors"}}')


def written(name, architecture, fill):
    path = f"/tmp/seed_{os.getpid()}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(path, "rb") as file:
        data = file.read()
    os.remove(path)
    return data


def fill_weights(writer):
    writer.add_custom_alignment(64)
    writer.add_block_count(2)
    writer.add_array("comfy.gguf.orig_shape.q", [8, 2, 2, 2])
    writer.add_array("x.strings", ["a", "bc"])
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_int64("x.i64", -5)
    writer.add_tensor("q", numpy.zeros((2, 18), dtype=numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("k", numpy.zeros((1, 144), dtype=numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.add_tensor("n", numpy.zeros(3, dtype=numpy.float32))


def fill_part(writer):
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 2)
    writer.add_int32("split.tensors.count", 2)
    writer.add_tensor("n", numpy.zeros(3, dtype=numpy.float32))


def fill_bpe(writer):
    model = json.loads(get("zimage_a/model/tokenizer/tokenizer.json"))
    vocab = sorted(model["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [text for text, _ in vocab] + [token["content"] for token in model["added_tokens"]]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(vocab) + [3] * len(model["added_tokens"]))
    writer.add_token_merges(merges)


def fill_unigram(writer):
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", "a", "b", "\u2581a", "ab", "e", "d", "r"]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(i) for i in range(len(pieces))])
    writer.add_token_types([3, 3, 2] + [1] * 8)
    writer.add_unk_token_id(2)
    writer.add_eos_token_id(1)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def spiece():
    out = b""
    for text, score, kind in [("<pad>", 0, 3), ("</s>", 0, 3), ("<unk>", 0, 2), ("\u2581", -1, 1), ("a", -2, 1), ("\u2581a", -1.5, 1), ("re", -3, 4)]:
        out += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind]))
    trainer = b"\x18\x01" + b"\xc0\x02\x02" + b"\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\xd0\x02\x01" + b"\xd8\x02\x00"
    return out + field(2, trainer) + field(3, field(1, b"identity") + b"\x18\x01\x20\x01\x28\x01")


def tekken():
    words = [bytes([b]) for b in range(256)] + [b"ab", b"re", b" re", b"red"]
    return json.dumps({
        "config": {"pattern": r" ?[\p{L}\p{M}]+|\p{N}|\s+(?!\S)|\s+", "default_vocab_size": 265, "default_num_special_tokens": 5, "version": "v7"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(w).decode()} for i, w in enumerate(words)],
        "special_tokens": [{"rank": i, "token_str": text} for i, text in enumerate(("<unk>", "<s>", "</w>"))]}, separators=(",", ":")).encode()


def tokenizers():
    put("tokenizer", "tekken", b"\0" + tekken())
    put("tokenizer", "bpe_json", b"\0" + get("zimage_a/model/tokenizer/tokenizer.json"))
    put("tokenizer", "clip_json", b"\0" + get("flux_b/model/tokenizer/tokenizer.json"))
    unigram = json.loads(get("flux_a/model/tokenizer_2/tokenizer.json"))
    unigram["model"]["vocab"] = unigram["model"]["vocab"][:40]
    # An empty character map (a root without children, no texts): the published one has 300 KB.
    charsmap = base64.b64encode(struct.pack("<I256I", 1024, *[0] * 256)).decode()
    for step in unigram["normalizer"].get("normalizers", [unigram["normalizer"]]):
        if step["type"] == "Precompiled":
            step["precompiled_charsmap"] = charsmap
    unigram["added_tokens"] = [token for token in unigram["added_tokens"] if token["id"] < 40]
    put("tokenizer", "uni_json", b"\0" + json.dumps(unigram).encode())
    put("tokenizer", "spiece", b"\1" + spiece())
    put("tokenizer", "bpe_gguf", b"\2" + written("x", "qwen3", fill_bpe))
    put("tokenizer", "uni_gguf", b"\2" + written("x", "t5encoder", fill_unigram))
    for name, folder in (("bpe_dir", "zimage_b/model/tokenizer"), ("clip_dir", "flux_a/model/tokenizer")):
        names = ("vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json")
        files = [get(f"{folder}/{file}") if os.path.exists(f"{GOLDEN}/{folder}/{file}") else b"{}" for file in names]
        put("tokenizer", name, b"\3" + b"\n%\n".join(files))


quantised()
shards()
put("gguf", "weights", written("x", "lumina2", fill_weights))
put("gguf", "part", written("x", "flux", fill_part))
put("gguf", "aligned", get("gguf/aligned.gguf"))
tokenizers()
