"""A small tokenizer with Qwen's algorithm, prompts for it, and difficult texts.

Byte-level BPE: NFC first, Qwen2's split pattern, added tokens extracted from the raw text before
everything else, padding on the right.  (Published Qwen files specify no padding side; transformers' default is right.
Truncation is right, too, so a long prompt keeps its first 512 ids and loses the end of the template.)
"""

import json
import os
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# (text, special) of each added token. As in Qwen3, think tags are added tokens but not special.
ADDED = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True), ("<think>", False), ("</think>", False)]

# Qwen3's chat template for one user message, without tools and history.
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)

MAX_TOKENS = 512

# Training corpus of the merges.  Runs of blanks, hashes and dots yield merges like "# #" that look like
# comments in merges.txt and must not be skipped.
CORPUS = [
    "user assistant system a red fox in the snow, the quick brown fox jumps over the lazy dog",
    "a photograph of an old house by the sea in the morning light, with three trees and a small boat",
    "don't can't won't it's I'm we've they'll he'd you're THE FOX'S TAIL",
    "oil painting, high detail, soft light, golden hour, wide angle, 35 mm, bokeh, the night sky over the mountains",
    "blurry, low quality, bad hands, extra fingers, watermark, text, jpeg artifacts, ugly, noise",
    "    indented    text\n\n\nwith   blanks\t\tand tabs\r\nand lines\r\n\r\n  \n  ",
    "## heading ### more #### ... ..... !!! ??? --- === *** (a) [b] {c} <d> // /* */ ## #tag ##",
    "der schöne Fuchs läuft über die Straße, où est le café, el niño pequeño, příliš žluťoučký kůň",
    "быстрая лиса бежит по снегу, старый дом у моря, горы и небо",
    "雪の中の赤い狐、静かな夜の山と空、小さな家", "红色的狐狸在雪地里，古老的房子，山和天空的照片",
    "눈 속의 붉은 여우, 오래된 집", "الثعلب الأحمر في الثلج", "השועל האדום בשלג", "हिम में लाल लोमड़ी", "สุนัขจิ้งจอกแดง",
    "12345 2026 3.14159 1,000,000 007 1st 2nd",
]

# Pieces of prompts: composed and decomposed accents, CJK, emoji with joiners, digits, double blanks, line ends.
PIECES = [
    "a red fox in the snow", "  double  spaces ", "cafe\u0301 und Straße", "雪の中の狐", "the old house by the sea",
    "A\u030angstro\u0308m", "\u1112\u1161\u11ab\uae00", "golden hour, 35 mm", "👩‍👩‍👧‍👦 family", "line one\nline two", "3 trees & 12 birds",
    "it's THE FOX'S den", "tab\there", "naïve façade", "быстрая лиса", "\u2460 \u00bd \u0664\u0665", "🦊🏽!", "soft light...", "ﬁne Ⅷ №5",
    "## hash #tag", "e\u0323\u0307 order", "ﷺ", "wide angle; (bokeh:1.2)", "हिम में लाल", "a", "\r\nCRLF\r\n",
]


def train(merges, seed, more=()):
    """Returns vocabulary (piece -> id) and merges in rank order; more: texts that follow the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, min_frequency=1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([*CORPUS, *more], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pairs = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    # Ids are shuffled, so that code which uses ids as merge ranks fails.
    ids = list(range(len(model["vocab"])))
    random.Random(f"ids {seed}").shuffle(ids)
    vocab = {piece: ids[i] for piece, i in model["vocab"].items()}
    return vocab, pairs


def build(vocab, pairs, added=ADDED):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    for text, special in added:
        token = AddedToken(text, special=special, normalized=False)
        if special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return tokenizer


def save(tokenizer, vocab, pairs, folder, as_json, added=ADDED):
    os.makedirs(folder, exist_ok=True)
    if as_json:
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            f.write(tokenizer.to_str(pretty=False))
    else:
        by_id = dict(sorted(vocab.items(), key=lambda item: item[1]))
        with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as f:
            json.dump(by_id, f, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
            f.write("#version: 0.2\n")
            f.writelines(f"{left} {right}\n" for left, right in pairs)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(len(vocab) + i): {
                "content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                "special": special}
            for i, (text, special) in enumerate(added)
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=2)
        f.write("\n")


def templated(tokenizer, prompt):
    """Returns the ids that the text encoder gets for a prompt in the pipeline, without padding."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=True)
    return tokenizer(text, truncation=True, max_length=MAX_TOKENS).input_ids


def prompt_of(tokenizer, least, most, rng):
    """Returns a prompt of pieces whose templated length lies in least..most tokens."""
    for _ in range(10000):
        parts = [rng.choice(PIECES)]
        while len(templated(tokenizer, ", ".join(parts))) < least:
            parts.append(rng.choice(PIECES))
        prompt = ", ".join(parts)
        if len(templated(tokenizer, prompt)) <= most:
            return prompt
    raise RuntimeError(f"no prompt of {least}..{most} tokens")


def long_prompt(tokenizer, rng):
    """Returns a prompt of more than 512 tokens before truncation."""
    parts = []
    while len(parts) < 400 and len(templated(tokenizer, ", ".join(parts))) < MAX_TOKENS:
        parts += rng.choices(PIECES, k=5)
    return ", ".join(parts + PIECES[:3])


FIXED_TEXTS = [
    "", " ", "  ", "   ", "\n", "\r", "\r\n", "\n\n", "\t", " \n", "\n ", " \n \n  x", "a ", "a  ", "a  b", "a   b", "  a", "a\n", "a \n b",
    "a\u00a0b", "a\u3000b", "a\u2003 b", "\u200b", "a\u200db", "\ufeff", "\u2028", "\u0085", "x\u000bx\u000cx", "\u001c\u001d\u001e\u001f",
    "'s", "'S", "'ſ", "don't", "DON'T", "they'LL", "we'Ve", "I'm'd", "'re're", "''s", "x's's", "’s", "'sa", "'ta're", "a'", "'", "' s",
    "0", "12", "1234567890", "3.14", "1,000", "½", "①②", "٤٥", "Ⅷ", "x²", "5th", "a1b2", " 1", "  12", "１２",
    "<|im_end|>", "<|im_start|>user\n", "<|endoftext|>", "<think>", "</think>", "<think>x</think>", "<|im_end|><|im_end|>", " <|im_end|> ",
    "<|im_end|", "|im_end|>", "<|IM_END|>", "<|im_en\u0064|>", "e<|im_end|>\u0301", "<|im_start|", "<<|im_end|>>", "<|im_<|im_end|>end|>",
    "< think>", "<|endoftext|>\n\n", "a<|im_start|>b<think>c", "<\u0338|im_end|>", "<|im_end|>\u0338",
    "e\u0301", "\u00e9", "e\u0323\u0307", "e\u0307\u0323", "\u1e69", "s\u0323\u0307", "\u212b", "A\u030a", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u1112\u1161\u11ab",
    "\u2126", "\u0340\u0341", "\u0344", "\uf900", "\U0002f800", "\u0958", "\u0915\u093c", "\ufb1d", "\u05d9\u05b4", "\u2adc", "\u0f43", "\u0301", "\u0301\u0301a",
    "a\u0315\u0300\u05ae\u0062", "\u0061\u0334\u0300", "\U0001d15e", "\U00011099\U000110ba", "q\u0307\u0323", "ﬁ", "ǅ", "ß", "ẞ", "İ", "ı",
    "👍", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇯🇵", "1️⃣", "❤️", "🦊", "😀😀", " 😀", "a😀b", "\U0010fffd", "\ue000",
    "#", "##", "###", "# #", " ##", "##\n", "##\r\n\r\n", "...\n", "!?\n\n\nx", "a.b", "a_b", "__x__", "$5", "-5", "--x", "(a)", " (a)", "\"q\"", "`c`",
    "https://ex.am/ple?q=1&r=%20#z", "C:\\path\\to", "{\"k\": [1, 2]}", "\\n", "a\\", "/", "<", ">", "|", "<|", "|>",
    "中文", "日本語テキスト", "한국어", "العربية", "עברית", "हिन्दी", "ไทย", "ελληνικά", "Кириллица", "ქართული", "አማርኛ", "தமிழ்", "မြန်မာ", "ᐃᓄᒃ", "𐍈𐌰", "𝒳𝓎", "𒀀",
    "ＦＵＬＬ", "ﾊﾝｶｸ", "ㄅㄆ", "々〆", "〇", "ー", "゛か\u3099", "か\u3099",
]


def _random_text(rng, pool):
    kind = rng.randrange(4)
    if kind == 0:  # arbitrary characters
        return "".join(rng.choice(pool) for _ in range(rng.randint(1, 12)))
    if kind == 1:  # white space and line ends between short words
        blanks = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", " \n", "\r", "\u3000"]
        return "".join(rng.choice(["a", "The", "12", "!", "é", "'s", "狐", rng.choice(pool)]) + rng.choice(blanks) * rng.randint(0, 3)
                       for _ in range(rng.randint(1, 6)))
    if kind == 2:  # letters with several combining marks, in any order
        marks = ["\u0301", "\u0323", "\u0307", "\u0338", "\u0327", "\u0345", "\u05b4", "\u3099", "\u093c", "\u0334", "\u031b"]
        return "".join(rng.choice("aeiosAEUqżượכक狐=<") + "".join(rng.choices(marks, k=rng.randint(0, 4)))
                       for _ in range(rng.randint(1, 5)))
    return "".join(rng.choice(PIECES + [t for t, _ in ADDED] + FIXED_TEXTS) for _ in range(rng.randint(2, 4)))


def case_texts(seed, count=400):
    """Returns fixed difficult texts, then random ones over all assigned characters of Python's Unicode."""
    rng = random.Random(f"texts {seed}")
    pool = [chr(c) for c in range(1, 0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    # equal probability per category; otherwise most characters would be CJK
    by_category = {}
    for c in pool:
        by_category.setdefault(unicodedata.category(c), []).append(c)
    draw = [rng.choice(by_category[k]) for k in sorted(by_category) for _ in range(60)]
    texts = list(dict.fromkeys(FIXED_TEXTS))
    while len(texts) < count:
        text = _random_text(rng, draw)
        if text not in texts:
            texts.append(text)
    return texts
