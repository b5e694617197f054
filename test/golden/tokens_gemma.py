"""A small tokenizer of Gemma's kind (SentencePiece BPE) in its three forms, and ids of difficult texts.

tokenizer.model is trained with the options of Gemma's; tokenizer.json is transformers' conversion; gemma.gguf has llama.cpp's
layout. The ids are those of transformers' tokenizer. sentencepiece gives the same, except that it reads control tokens
as text. Output goes to tokens/gemma, compressed with gzip.

    python3 tokens_gemma.py FOLDER
"""

import io
import json
import os
import random
import re
import shutil
import sys
import tempfile

import gguf
import sentencepiece
from transformers import GemmaTokenizerFast

import tokens
from tokens_flux import write
from tokens_gguf import ADDED_SCORE, PAD_SCORE, pack

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
USER = ["<mask>", "\n\n", "\n\n\n", *("▁" * n for n in range(2, 7)), "<start_of_turn>", "<end_of_turn>", "<h1>", "<unused0>"]
N_PIECES, N_ROWS = 1000, 1024  # rows of the embedding: unused tokens at the end

# Runs of blanks and line ends, added tokens within texts, bytes of characters without a piece, blanks at the ends.
# U+2581 next to blanks is left out: llama.cpp's converter writes blanks in the tokens of several blanks.
PROBES = SPECIAL + [t for t in USER if "▁" not in t] + [
    "▁", "a▁b", "  ", "   ", "     ", "  a", "a  ", "a   b", "a    the", "\n\n\n\n\n", "a\n\nb", "\n \n", " \n\n", "<bos>a<eos>", "<BOS>",
    "<start_of_turn>user\nfox<end_of_turn>\n", "<0x41>", "<0x0A>", "\t", "\t\t", "\0", "a\0b", "\x7f", "𐍈𐌰", "🦊", "🦊🦊", "é", "e\u0301", "ﷺ", "\xa0", "\u3000",
    "haha", "hahahaha", "aaaaaa", "......", "12345", "</h1>", "<h1>the</h1>", "<unused0><unused1>",
]


def texts():
    rng = random.Random("gemma texts")
    out = tokens.case_texts("gemma", 420) + PROBES
    while len(out) < 700:
        out.append("".join(rng.choice(PROBES + ["the ", " fox", "in"]) for _ in range(rng.randint(2, 6))))
    # Longer runs of blanks than the longest token: merges and the longest match of added tokens (GGUF) differ.
    out = [t for t in out if not re.search("[ ▁]▁|▁[ ▁]| {7}", t)]
    out.append(", ".join(tokens.CORPUS * 8))
    return out


def model():
    rng = random.Random("gemma")
    words = " ".join(tokens.CORPUS).split()
    sentences = [" ".join(rng.choices(words, k=8)) for _ in range(2000)] + tokens.CORPUS * 10 + ["haha hahaha aaaa aaaaa  ... .... and == === ===="] * 50
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, vocab_size=N_PIECES, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        pad_piece="<pad>", bos_piece="<bos>", eos_piece="<eos>", user_defined_symbols=USER, character_coverage=0.995, minloglevel=2, num_threads=1)
    return out.getvalue()


def write_gguf(path, bytes_):
    """As llama.cpp's converter, for a folder with tokenizer.model and the added tokens of tokenizer_config.json."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=bytes_)
    tokens_, scores, types = [], [], []
    kind = gguf.TokenType
    for i in range(N_ROWS):
        text = pieces.id_to_piece(i) if i < N_PIECES else f"[PAD{i}]"
        user, control = text in USER, text in SPECIAL and text != "<unk>"
        tokens_.append((text.replace("▁", " ") if user else text).encode())
        scores.append(PAD_SCORE if i >= N_PIECES else ADDED_SCORE if user or control else pieces.get_score(i))
        types.append(kind.UNUSED if i >= N_PIECES else kind.UNKNOWN if text == "<unk>" else kind.CONTROL if control else kind.USER_DEFINED if user
                     else kind.BYTE if pieces.is_byte(i) else kind.NORMAL)
    writer = gguf.GGUFWriter(None, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens_)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    pack(path, writer)


def main(folder):
    place = os.path.join(folder, "gemma")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    bytes_ = model()
    write(os.path.join(place, "tokenizer.model"), bytes_, True)
    write_gguf(os.path.join(place, "gemma.gguf"), bytes_)
    with tempfile.TemporaryDirectory() as work:
        write(os.path.join(work, "tokenizer.model"), bytes_, False)
        write(os.path.join(work, "tokenizer_config.json"), json.dumps({"tokenizer_class": "GemmaTokenizer"}), False)
        tokenizer = GemmaTokenizerFast.from_pretrained(work)
        tokenizer.save_pretrained(work)
        with open(os.path.join(work, "tokenizer.json"), encoding="utf-8") as f:
            root = json.load(f)
    write(os.path.join(place, "tokenizer.json"), json.dumps(root, ensure_ascii=False, separators=(",", ":")), True)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=bytes_)
    cases = [{"text": t, "ids": tokenizer(t, add_special_tokens=False).input_ids} for t in texts()]
    differ = [c["text"] for c in cases if pieces.encode(c["text"]) != c["ids"] and not any(s in c["text"] for s in SPECIAL)]
    print(len(cases), "texts, of which sentencepiece splits differently:", len(differ))
    write(os.path.join(place, "cases.json"), json.dumps(cases, separators=(",", ":")), True)


if __name__ == "__main__":
    main(sys.argv[1])
