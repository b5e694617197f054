"""Writes tokenizers of other fixtures as GGUF metadata.

Layout as in llama.cpp's converter (convert_hf_to_gguf.py: get_vocab_base, and T5's set_vocab), written by the
gguf package.  T5 in two variants: without its last hundred tokens, as from a spiece.model alone, and with them as
user-defined tokens.

    python3 tokens_gguf.py FOLDER
"""

import base64
import gzip
import json
import os
import sys

import gguf

HERE = os.path.dirname(os.path.abspath(__file__))
Type = gguf.TokenType
PAD_SCORE, ADDED_SCORE = -10000.0, -1000.0


def pack(path, writer):
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open(path, "rb") as f:
        data = f.read()
    os.remove(path)
    with open(path + ".gz", "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0))


def add_qwen(writer, root, rows):
    """Adds the metadata of a Qwen tokenizer.json."""
    by_id = {i: (token, Type.NORMAL) for token, i in root["model"]["vocab"].items()}
    for added in root["added_tokens"]:
        by_id[added["id"]] = (added["content"], Type.CONTROL if added["special"] else Type.USER_DEFINED)
    tokens, types = zip(*[by_id.get(i, (f"[PAD{i}]", Type.UNUSED)) for i in range(rows)])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in root["model"]["merges"]])
    writer.add_add_bos_token(False)


def add_tekken(writer, root, rows):
    """Adds the metadata of a tokenizer.json of Mistral's kind."""
    by_id = {i: (token, Type.NORMAL) for token, i in root["model"]["vocab"].items()}
    by_id |= {added["id"]: (added["content"], Type.CONTROL) for added in root["added_tokens"]}
    tokens, types = zip(*[by_id.get(i, (f"[PAD{i}]", Type.UNUSED)) for i in range(rows)])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("tekken")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in root["model"]["merges"]])


def add_t5(writer, root, rows, with_added):
    """Adds the metadata of a T5 tokenizer.json."""
    pieces = [(text, score) for text, score in root["model"]["vocab"] if not text.startswith("<extra_id_")]
    table = [n for n in root["normalizer"].get("normalizers", [root["normalizer"]]) if n["type"] == "Precompiled"][0]
    kinds = {"<pad>": Type.CONTROL, "</s>": Type.CONTROL, "<s>": Type.CONTROL, "<unk>": Type.UNKNOWN}
    tokens = [text.encode() for text, _ in pieces]
    scores = [score for _, score in pieces]
    types = [kinds.get(text, Type.NORMAL) for text, _ in pieces]
    if with_added:
        tokens += [f"<extra_id_{i}>".encode() for i in reversed(range(100))]
        scores += [ADDED_SCORE] * 100
        types += [Type.USER_DEFINED] * 100
    for i in range(len(tokens), rows):
        tokens.append(f"[PAD{i}]".encode())
        scores.append(PAD_SCORE)
        types.append(Type.UNUSED)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_precompiled_charsmap(base64.b64decode(table["precompiled_charsmap"]))


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(HERE, "zimage_a/model/tokenizer/tokenizer.json"), encoding="utf-8") as f:
        root = json.load(f)
    writer = gguf.GGUFWriter(None, "qwen3")
    add_qwen(writer, root, 800)
    pack(os.path.join(folder, "qwen.gguf"), writer)
    with gzip.open(os.path.join(HERE, "tokens/t5_json/tokenizer.json.gz"), "rt", encoding="utf-8") as f:
        root = json.load(f)
    for name, with_added in (("t5", False), ("t5_added", True)):
        writer = gguf.GGUFWriter(None, "t5encoder")
        add_t5(writer, root, 1024, with_added)
        pack(os.path.join(folder, name + ".gguf"), writer)


if __name__ == "__main__":
    main(sys.argv[1])
