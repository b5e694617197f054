"""A small tokenizer with the algorithm of Mistral's "Tekken", as Flux.2 dev's text encoder has it.

Byte-level BPE without normalisation; a piece that is in the vocabulary is one token (ignore_merges); special tokens have the
first ids and ranks follow; padding on the left.  The split pattern is tokenizer.json's; transformers' warning about Mistral's
published patterns concerns files of another form.
"""

import base64
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import tokens
from files import write_json

SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# ids as in Mistral Small 3; published files have 1000 of them
NAMED = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]", 7: "[TOOL_RESULTS]",
         8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]", 13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]",
         16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]"}
SPECIAL = [NAMED.get(i, f"<SPECIAL_{i}>") for i in range(24)]

# Mistral's chat template for a system and a user message, whose contents are lists of texts.
TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- set names = {'system': ('[SYSTEM_PROMPT]', '[/SYSTEM_PROMPT]'), 'user': ('[INST]', '[/INST]')}[message['role']] %}"
    "{{- names[0] }}"
    "{%- for block in message['content'] %}{{- block['text'] }}{%- endfor %}"
    "{{- names[1] }}"
    "{%- endfor %}"
)

# more text than Qwen's corpus has: the system message
CORPUS = tokens.CORPUS + 2 * ["You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object",
                              "attribution and actions without speculation."]


def train_bpe(corpus, size):
    """Returns the model of byte-level BPE with a vocabulary of that size, as in tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return json.loads(tokenizer.to_str())["model"]


def train(merges):
    """Returns vocabulary (piece -> id) and merges; a token's id is its rank behind the special tokens."""
    model = train_bpe(CORPUS, 256 + merges)
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    return {piece: len(SPECIAL) + rank for piece, rank in model["vocab"].items()}, pairs


def build(vocab, pairs):
    everything = {text: i for i, text in enumerate(SPECIAL)} | vocab
    tokenizer = Tokenizer(models.BPE(vocab=everything, merges=pairs, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def save(tokenizer, folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        f.write(tokenizer.to_str(pretty=False))
    write_json(os.path.join(folder, "tokenizer_config.json"), {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "clean_up_tokenization_spaces": False, "eos_token": "</s>",
        "legacy": True, "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>", "padding_side": "left",
        "processor_class": "PixtralProcessor", "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>",
        "use_default_system_prompt": False})
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)


def byte_of_character():
    """Returns the byte of each character in byte-level BPE."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def tekken(words, special, n_special, n_words):
    """Returns the contents of a tekken.json. words: bytes of the tokens by rank, of which n_words are in use; special:
    texts of special tokens; the ids up to n_special without a text are <SPECIAL_20> and so on."""
    def shown(word):
        try:
            return word.decode()
        except UnicodeDecodeError:
            return None

    return {
        "config": {
            "pattern": SPLIT, "num_vocab_tokens": len(words), "default_vocab_size": n_words + n_special,
            "default_num_special_tokens": n_special, "version": "v7"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(w).decode(), "token_str": shown(w)} for i, w in enumerate(words)],
        "special_tokens": [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)],
    }


def tekken_of(root):
    """Returns the contents of a tekken.json with the tokens of a tokenizer.json. As published, the bytes have the first
    ranks, in order, so ids differ."""
    byte_of, special = byte_of_character(), {token["content"] for token in root["added_tokens"]}
    pieces = sorted((i, piece) for piece, i in root["model"]["vocab"].items() if piece not in special)
    words = [bytes([b]) for b in range(256)] + [bytes(byte_of[c] for c in piece) for _, piece in pieces if len(piece) > 1]
    return tekken(words, NAMED.values(), len(SPECIAL), len(words))
