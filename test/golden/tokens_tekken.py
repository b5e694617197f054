"""A small tokenizer of Mistral's kind ("Tekken") in its three forms, and ids of difficult texts.

tekken.json has Mistral's layout and split pattern; tokenizer.json is transformers' conversion; tekken.gguf has
llama.cpp's layout. The ids are those of transformers' tokenizer, which recognises special tokens in texts. Output goes
to tokens/tekken, compressed with gzip.

    python3 tokens_tekken.py FOLDER
"""

import base64
import json
import os
import random
import shutil
import sys
import tempfile

import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

import tokens
from tokens_flux import write
from tokens_gguf import Type, pack

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Special tokens by id, as in Mistral Small 3.x; the ids up to N_SPECIAL have no listed token (<SPECIAL_20> ...).
SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
    "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]").split()
N_SPECIAL = 30
N_WORDS, N_CUT = 900, 50  # tokens in use, and tokens of the list beyond the vocabulary's size

# Changes of case, titlecase, modifier letters, marks, letters of Unicode 15 to 16, and special tokens.
PROBES = [
    "McDonald", "DON'T", "iPhone", "USAs", "École", "ÉCOLE", "ǅungla", "ǅ", "ʰa", "aʰB", "漢字Kanji", "A\u0301b", "a\u0301B", "\u0301", "İx", "ıI", "ΑΒΓαβγ",
    "HTTPServer", "x2Y", "_a", "/", "//", "\n/", "!/\n", "http://a/B/", "[INST]", "[/INST]", "[IMG]", "<s>", "</s>", "<pad>", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]", "<SPECIAL_20>", "<SPECIAL_29>", "<SPECIAL_30>", "[INST", "[inst]", "𝒜𝒷", "\ua7cb\ua7cc", "\ua7cd\u1c8a", "\U00010d50\U00010d70",
    "\U0001e4d0\U0001e4eb", "\u1c89\u0897a", "हिन्दी", "العَرَبِيَّة", "1234567",
]


def texts():
    rng = random.Random("tekken texts")
    out = tokens.case_texts("tekken", 420) + PROBES
    while len(out) < 700:
        out.append("".join(rng.choice(PROBES) for _ in range(rng.randint(2, 6))))
    out.append("<s>[SYSTEM_PROMPT]You are an AI that reasons about image descriptions.[/SYSTEM_PROMPT][INST]A red fox[/INST]")
    out.append(", ".join(tokens.CORPUS * 8))
    return out


def words():
    """Returns the bytes of all tokens by rank: the 256 bytes, then trained merges, then tokens that no merge makes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=N_WORDS - 3 + N_CUT, min_frequency=1, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(tokens.CORPUS * 2 + [" ".join(PROBES[:26])], trainer)
    byte_of = {c: b for b, c in zip(range(256), sorted_alphabet())}
    by_id = sorted(json.loads(tokenizer.to_str())["model"]["vocab"].items(), key=lambda item: item[1])
    trained = [bytes(byte_of[c] for c in text) for text, _ in by_id if len(text) > 1]
    # Whole pieces that are tokens stay whole (ignore_merges), although no merge makes them.
    alone = ["Zq".encode(), " xylophone".encode(), "§§".encode()]
    return [bytes([b]) for b in range(256)] + trained[:100] + alone + trained[100:]


def sorted_alphabet():
    """Returns GPT-2's character of each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + rest.index(b)) for b in range(256)]


def tekken(all_words):
    def shown(word):
        try:
            return word.decode()
        except UnicodeDecodeError:
            return None

    return {
        "config": {
            "pattern": SPLIT, "num_vocab_tokens": len(all_words), "default_vocab_size": N_WORDS + N_SPECIAL,
            "default_num_special_tokens": N_SPECIAL, "version": "v7"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(w).decode(), "token_str": shown(w)} for i, w in enumerate(all_words)],
        "special_tokens": [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(SPECIAL)],
    }


def add_gguf(writer, root):
    vocab = sorted(root["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in root["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("tekken")
    writer.add_token_list([text for text, _ in vocab])
    writer.add_token_types([Type.CONTROL if i in special else Type.NORMAL for _, i in vocab])
    writer.add_token_merges([" ".join(m) for m in root["model"]["merges"]])


def main(folder):
    place = os.path.join(folder, "tekken")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    text = json.dumps(tekken(words()), indent=1)
    write(os.path.join(place, "tekken.json"), text, True)
    with tempfile.TemporaryDirectory() as work:
        write(os.path.join(work, "tekken.json"), text, False)
        tokenizer = convert_tekken_tokenizer(os.path.join(work, "tekken.json"), chat_template="")
    backend = tokenizer.backend_tokenizer.to_str()
    write(os.path.join(place, "tokenizer.json"), backend, True)
    writer = gguf.GGUFWriter(None, "llama")
    add_gguf(writer, json.loads(backend))
    pack(os.path.join(place, "tekken.gguf"), writer)
    cases = [{"text": t, "ids": tokenizer(t, add_special_tokens=False).input_ids} for t in texts()]
    write(os.path.join(place, "cases.json"), json.dumps(cases, separators=(",", ":")), True)


if __name__ == "__main__":
    main(sys.argv[1])
