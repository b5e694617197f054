"""Small tokenizers with CLIP's and T5's algorithms, in published file layouts.

CLIP: byte-level BPE with the end-of-word suffix </w>; ids in the published order (bytes, bytes
with suffix, merges, two special tokens), so that <|endoftext|> has the highest id.
T5: unigram, NFKC by SentencePiece's compiled map; 100 sentinels after the model's pieces. umT5 has one more special
piece, <s>, after <unk>, because transformers 5 assumes that T5's unknown piece is the third.
"""

import base64
import io
import json
import os

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import files
import tokens

CLIP_SPLIT = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
CLIP_FIRST, CLIP_LAST = "<|startoftext|>", "<|endoftext|>"
T5_PIECES, T5_SENTINELS = 420, 100


def _clip_shell(model):
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CLIP_SPLIT), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    return tokenizer


def clip(merges):
    """Returns (vocabulary, merges in rank order). Trains without the tokenizers library, which breaks ties between
    pairs arbitrarily."""
    shell, words = _clip_shell(models.BPE()), {}
    for text in tokens.CORPUS:
        for word, _ in shell.pre_tokenizer.pre_tokenize_str(shell.normalizer.normalize_str(text)):
            key = (*word[:-1], word[-1] + "</w>")
            words[key] = words.get(key, 0) + 1
    pairs = []
    for _ in range(merges):
        counts = {}
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + n
        pairs.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        words = {_merged(word, pairs[-1]): n for word, n in words.items()}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [c + "</w>" for c in alphabet] + list(dict.fromkeys(a + b for a, b in pairs)) + [CLIP_FIRST, CLIP_LAST]
    return {piece: i for i, piece in enumerate(pieces)}, pairs


def _merged(word, pair):
    out = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def save_clip(vocab, pairs, folder, as_json, pad=CLIP_LAST):
    os.makedirs(folder)
    special = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    if as_json:
        tokenizer = _clip_shell(models.BPE(vocab=vocab, merges=pairs, unk_token=CLIP_LAST, continuing_subword_prefix="", end_of_word_suffix="</w>"))
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (CLIP_FIRST, CLIP_LAST)])
        tokenizer.post_processor = processors.RobertaProcessing((CLIP_LAST, vocab[CLIP_LAST]), (CLIP_FIRST, vocab[CLIP_FIRST]),
                                                                trim_offsets=False, add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    else:
        with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as f:
            json.dump(vocab, f, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
            f.write("#version: 0.2\n")
            f.writelines(f"{left} {right}\n" for left, right in pairs)
    token = {"content": CLIP_LAST, **special}
    files.write_json(os.path.join(folder, "special_tokens_map.json"), {
        "bos_token": {"content": CLIP_FIRST, **special}, "eos_token": token, "pad_token": pad, "unk_token": token})
    files.write_json(os.path.join(folder, "tokenizer_config.json"), {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(vocab[t]): {"content": t, "lstrip": False, "normalized": t == CLIP_FIRST, "rstrip": False,
                                                 "single_word": False, "special": True} for t in (CLIP_FIRST, CLIP_LAST)},
        "bos_token": CLIP_FIRST, "clean_up_tokenization_spaces": True, "do_lower_case": True, "eos_token": CLIP_LAST,
        "errors": "replace", "model_max_length": 77, "pad_token": pad, "tokenizer_class": "CLIPTokenizer", "unk_token": CLIP_LAST})


def t5(starts=False):
    """Returns the serialised SentencePiece model; some of the corpus's characters are unknown to it. starts: it has
    <s>, as umT5."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tokens.CORPUS * 3), model_writer=out, vocab_size=T5_PIECES, model_type="unigram", pad_id=0, eos_id=1,
        unk_id=2, bos_id=3 if starts else -1, hard_vocab_limit=False, character_coverage=0.985, num_threads=1, minloglevel=2)
    return out.getvalue()


def t5_size(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    return len(proto.pieces) + T5_SENTINELS


def _specials(model):
    """Returns the number of special pieces before the first text piece."""
    return 4 if sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec.bos_id >= 0 else 3


def save_t5(model, folder, as_json):
    os.makedirs(folder)
    sentinels = [f"<extra_id_{i}>" for i in range(T5_SENTINELS)]
    start = {"bos_token": "<s>"} if _specials(model) == 4 else {}
    if as_json:
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(_t5_json(model, sentinels), f, ensure_ascii=False, separators=(",", ":"))
    else:
        with open(os.path.join(folder, "spiece.model"), "wb") as f:
            f.write(model)
    files.write_json(os.path.join(folder, "special_tokens_map.json"), {
        "additional_special_tokens": sentinels, **start, "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    files.write_json(os.path.join(folder, "tokenizer_config.json"), {
        "additional_special_tokens": sentinels, **start, "clean_up_tokenization_spaces": True, "eos_token": "</s>", "extra_ids": T5_SENTINELS,
        "legacy": True, "model_max_length": 512, "pad_token": "<pad>", "sp_model_kwargs": {}, "tokenizer_class": "T5Tokenizer",
        "unk_token": "<unk>"})


def _t5_json(model, sentinels):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    vocab = [[p.piece, p.score] for p in proto.pieces] + [[t, 0.0] for t in reversed(sentinels)]
    added = [(i, vocab[i][0]) for i in range(_specials(model))] + [(len(proto.pieces) + i, t) for i, t in enumerate(reversed(sentinels))]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, t in added],
        "normalizer": {"type": "Precompiled",
                       "precompiled_charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
                                    {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": False},
    }
