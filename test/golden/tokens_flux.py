"""Small tokenizers of CLIP, T5 and umT5 in published layouts, and ids of difficult texts.

Each is saved in both of its layouts and opened by the class that Flux's or WAN's pipeline uses: the ids are those of
diffusers. Output goes to tokens/NAME; large files are compressed with gzip.

    python3 tokens_flux.py FOLDER
"""

import gzip
import io
import json
import os
import random
import shutil
import sys
import tempfile

import sentencepiece
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5TokenizerFast

import tokens

START, END = "<|startoftext|>", "<|endoftext|>"
SPLIT = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

# Difficult inputs for these tokenizers: added tokens within text, in other case or width; SentencePiece's space
# marker; clusters whose first character has a normalisation entry; white space that no table maps to a blank;
# capitals whose lower case has another length or two characters.
PROBES = [
    START, END, "<|ENDOFTEXT|>", "<|StartOfText|>!!", "</s>", "<pad>", "<unk>", "<extra_id_0>", "<extra_id_99>", "<extra_id_100>",
    "＜unk＞", "＜unk＞＜unk＞", "＜/s＞", "＜extra_id_5＞", "▁", "▁▁", "a▁b", "²\u0897", "²\u1acf①", "\x85", "\u1680", "\u180e", "\u205f", "\r\n",
    "①\u0301", "\u2028", "ﷺ", "\xa0", "!", "!!", "'S", "İ", "ΑΣ ", "ẞ", "Ⱥ", "K", "Ა", "\U00010d50", "\ua7dc", "\U00016ea0", "ＡＢ", "ﬃ", "½", "\u0344", "\u1100\u1161\u11a8",
]


def texts():
    rng = random.Random("flux texts")
    out = tokens.case_texts("flux", 420) + PROBES
    hard = list(out)
    while len(out) < 700:
        out.append("".join(rng.choice([rng.choice(hard), rng.choice(PROBES)]) for _ in range(rng.randint(2, 4))))
    out.append(", ".join(tokens.CORPUS * 12))
    out.append("x" * 3000 + " " + "\u0301" * 3000)
    return out


def write(path, data, packed):
    if isinstance(data, str):
        data = data.encode()
    with open(path + (".gz" if packed else ""), "wb") as f:
        f.write(gzip.compress(data, 9, mtime=0) if packed else data)


def cases(tokenizer, folder):
    ids = [{"text": t, "ids": tokenizer(t, add_special_tokens=False, truncation=False).input_ids} for t in texts()]
    write(os.path.join(folder, "cases.json"), json.dumps(ids, separators=(",", ":")), True)


def alphabet():
    """Returns CLIP's byte symbols in its order: printable bytes first, which stand for themselves."""
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    return [chr(b) for b in own] + [chr(256 + n) for n in range(256 - len(own))]


def clip_files(folder, merges):
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=512 + merges, min_frequency=1, show_progress=False, initial_alphabet=alphabet(), end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(tokens.CORPUS, trainer)
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
    vocab = {}
    for token in alphabet() + [s + "</w>" for s in alphabet()] + [a + b for a, b in pairs] + [START, END]:
        vocab.setdefault(token, len(vocab))
    described = {"lstrip": False, "rstrip": False, "single_word": False}
    start, end = {"content": START, "normalized": True, **described}, {"content": END, "normalized": False, **described}
    write(os.path.join(folder, "vocab.json"), json.dumps(vocab, ensure_ascii=False, separators=(",", ":")), False)
    write(os.path.join(folder, "merges.txt"), "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs), False)
    write(os.path.join(folder, "tokenizer_config.json"), json.dumps({
        "add_prefix_space": False,
        "added_tokens_decoder": {str(vocab[START]): {**start, "special": True}, str(vocab[END]): {**end, "special": True}},
        "bos_token": START, "do_lower_case": True, "eos_token": END, "errors": "replace", "model_max_length": 77,
        "pad_token": END, "tokenizer_class": "CLIPTokenizer", "unk_token": END}, indent=1), False)
    write(os.path.join(folder, "special_tokens_map.json"), json.dumps(
        {"bos_token": start, "eos_token": end, "pad_token": END, "unk_token": end}, indent=1), False)


def t5_model(pieces, **options):
    rng = random.Random("t5")
    words = " ".join(tokens.CORPUS).split()
    sentences = [" ".join(rng.choices(words, k=8)) for _ in range(3000)] + tokens.CORPUS * 10
    sentences += ["runs of ... and .... and !!! and haha hahaha and == === ===="] * 50
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=out, vocab_size=pieces, model_type="unigram", pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, pad_piece="<pad>", character_coverage=0.9995, hard_vocab_limit=False, minloglevel=2, num_threads=1, **options)
    return out.getvalue()


def t5_config(extra_ids):
    return json.dumps({
        "eos_token": "</s>", "extra_ids": extra_ids, "model_max_length": 512, "pad_token": "<pad>", "tokenizer_class": "T5TokenizerFast",
        "unk_token": "<unk>"}, indent=1)


# umT5's model has byte pieces, which the tokenizer class never uses, and more tokens after the text pieces.
T5_KINDS = {"t5": ({"normalization_rule_name": "nmt_nfkc"}, 100), "t5_json": ({"normalization_rule_tsv": None}, 100),
            "umt5": ({"normalization_rule_tsv": None, "byte_fallback": True}, 300)}


def small_rules(path):
    """Writes a small normalisation table, with some multi-character entries, for the tokenizer.json layout."""
    rules = {"A\u030a": "Å", "e\u0301": "é", "①": "1", "②": "2", "½": "1/2", "ﬁ": "fi", "\u3000": " ", "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ",
             "＜": "<", "＞": ">", "／": "/", "ﷺ": "صلى", "²": "2", "\u200b": "", "Ⅷ": "VIII", "\u0344": "\u0308\u0301"}
    with open(path, "w", encoding="utf-8") as f:
        for source, target in rules.items():
            f.write(" ".join(f"{ord(c):X}" for c in source) + "\t" + " ".join(f"{ord(c):X}" for c in target) + "\n")


def main(folder):
    places = {name: os.path.join(folder, name) for name in ("clip", "clip_json", *T5_KINDS)}
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
    clip_files(places["clip"], 400)
    clip = CLIPTokenizer.from_pretrained(places["clip"])
    cases(clip, places["clip"])
    with tempfile.TemporaryDirectory() as work:
        clip.save_pretrained(work)
        write(os.path.join(places["clip_json"], "tokenizer.json"), open(os.path.join(work, "tokenizer.json"), "rb").read(), True)
        cases(CLIPTokenizer.from_pretrained(work), places["clip_json"])
    for name, (options, extra_ids) in T5_KINDS.items():
        with tempfile.TemporaryDirectory() as work:
            if "normalization_rule_tsv" in options:
                options["normalization_rule_tsv"] = os.path.join(work, "rules.tsv")
                small_rules(options["normalization_rule_tsv"])
            write(os.path.join(work, "spiece.model"), t5_model(900, **options), False)
            write(os.path.join(work, "tokenizer_config.json"), t5_config(extra_ids), False)
            t5 = T5TokenizerFast.from_pretrained(work)
            if name == "t5_json":
                os.remove(os.path.join(work, "spiece.model"))
                t5.save_pretrained(work)
                t5 = T5TokenizerFast.from_pretrained(work)
                write(os.path.join(places[name], "tokenizer.json"), open(os.path.join(work, "tokenizer.json"), "rb").read(), True)
            else:
                write(os.path.join(places[name], "spiece.model"), open(os.path.join(work, "spiece.model"), "rb").read(), True)
                write(os.path.join(places[name], "tokenizer_config.json"), t5_config(extra_ids), False)
            cases(t5, places[name])


if __name__ == "__main__":
    main(sys.argv[1])
