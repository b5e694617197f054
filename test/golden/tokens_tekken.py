"""A small tokenizer of Mistral's kind ("Tekken") in its three forms, and ids of difficult texts.

tekken.json has Mistral's layout and split pattern; tokenizer.json is transformers' conversion; tekken.gguf has
llama.cpp's layout. The ids are those of transformers' tokenizer, which recognises special tokens in texts. Output goes
to tokens/tekken, compressed with gzip.

    python3 tokens_tekken.py FOLDER
"""

import json
import os
import random
import shutil
import sys
import tempfile

import gguf
from transformers.integrations.mistral.tokenizer import convert_tekken_tokenizer

import tokens
from flux2.tokens import byte_of_character, tekken, train_bpe
from tokens_flux import write
from tokens_gguf import add_tekken, pack

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
    model = train_bpe(tokens.CORPUS * 2 + [" ".join(PROBES[:26])], N_WORDS - 3 + N_CUT)
    byte_of = byte_of_character()
    by_id = sorted(model["vocab"].items(), key=lambda item: item[1])
    trained = [bytes(byte_of[c] for c in text) for text, _ in by_id if len(text) > 1]
    # Whole pieces that are tokens stay whole (ignore_merges), although no merge makes them.
    alone = ["Zq".encode(), " xylophone".encode(), "§§".encode()]
    return [bytes([b]) for b in range(256)] + trained[:100] + alone + trained[100:]


def main(folder):
    place = os.path.join(folder, "tekken")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    text = json.dumps(tekken(words(), SPECIAL, N_SPECIAL, N_WORDS), indent=1)
    write(os.path.join(place, "tekken.json"), text, True)
    with tempfile.TemporaryDirectory() as work:
        write(os.path.join(work, "tekken.json"), text, False)
        tokenizer = convert_tekken_tokenizer(os.path.join(work, "tekken.json"), chat_template="")
    backend = tokenizer.backend_tokenizer.to_str()
    write(os.path.join(place, "tokenizer.json"), backend, True)
    writer = gguf.GGUFWriter(None, "llama")
    root = json.loads(backend)
    add_tekken(writer, root, len(root["model"]["vocab"]))
    pack(os.path.join(place, "tekken.gguf"), writer)
    cases = [{"text": t, "ids": tokenizer(t, add_special_tokens=False).input_ids} for t in texts()]
    write(os.path.join(place, "cases.json"), json.dumps(cases, separators=(",", ":")), True)


if __name__ == "__main__":
    main(sys.argv[1])
