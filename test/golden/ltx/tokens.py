"""A small tokenizer with Gemma's algorithm: BPE over the whole text with spaces replaced by U+2581, and bytes for unknown characters.

As in published files, runs of newlines and of U+2581 are added tokens, which are found in the raw text first.
"""

import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import files
import tokens

MERGES, LONGEST = 160, 9
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
TURNS = ["<start_of_turn>", "<end_of_turn>"]
ADDED = ["\n", "\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<table>"]
KNOWN = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789,.;:'-()&!?#\u2581\u00e9\u00f6\u96ea\u306e")


def _merge(sequence, pair):
    out = []
    for piece in sequence:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def train():
    """Returns (vocabulary, merges in rank order). Trains without the tokenizers library, which breaks ties between pairs
    arbitrarily."""
    sequences, pairs = [list(text.replace(" ", "\u2581")) for text in tokens.CORPUS], []
    while len(pairs) < MERGES:
        counts = {}
        for sequence in sequences:
            for a, b in zip(sequence, sequence[1:]):
                if len(a + b) <= LONGEST and set(a + b) <= KNOWN:
                    counts[a, b] = counts.get((a, b), 0) + 1
        pairs.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        sequences = [_merge(sequence, pairs[-1]) for sequence in sequences]
    pieces = SPECIAL + TURNS + ADDED + [f"<0x{i:02X}>" for i in range(256)] + [a + b for a, b in pairs] + sorted(KNOWN)
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, pairs


def build(vocab, pairs):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    # never splits: the normaliser has replaced all spaces
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL + TURNS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocab["<bos>"])])
    return tokenizer


def save(tokenizer, vocab, folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(json.loads(tokenizer.to_str()), f, ensure_ascii=False, separators=(",", ":"))
    entries = {str(vocab[t]): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": t not in ADDED}
               for t in sorted(SPECIAL + TURNS + ADDED, key=vocab.get)}
    files.write_json(os.path.join(folder, "tokenizer_config.json"), {
        "add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": entries, "bos_token": "<bos>",
        "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "model_max_length": 1024, "pad_token": "<pad>",
        "sp_model_kwargs": None, "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizerFast", "unk_token": "<unk>",
        "use_default_system_prompt": False})
