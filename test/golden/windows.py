#!/usr/bin/env python3
"""Generates windows.json: prompts split into windows, with weighted words, by AUTOMATIC1111's web UI.

    windows.py WEBUI

WEBUI is a checkout of stable-diffusion-webui 1.10; also needs requirements.txt. The script runs its own functions
(modules/prompt_parser.py and modules/sd_hijack_clip.py, with stubs for unneeded imports) with the tokenizer of tokens/clip.
test/formats/test_prompt_windows.c reads the output: [{"text", "weighs", "ids", "weights"}], for each window the ids between start and end
without padding, and their weights, which are omitted if all are 1.
"""

import json
import os
import random
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, sys.argv[1])
for name in ("devices", "sd_hijack", "sd_emphasis", "shared"):
    sys.modules[f"modules.{name}"] = types.ModuleType(name)
options = types.SimpleNamespace(emphasis="Original", comma_padding_backtrack=20)
sys.modules["modules.shared"].opts = options

from modules import sd_hijack_clip  # noqa: E402
from transformers import CLIPTokenizer  # noqa: E402


class Encoder(sd_hijack_clip.FrozenCLIPEmbedderWithCustomWordsBase):
    def __init__(self):
        database = types.SimpleNamespace(find_embedding_at_position=lambda tokens, i: (None, None))
        super().__init__(None, types.SimpleNamespace(embedding_db=database))
        self.words = CLIPTokenizer.from_pretrained(os.path.join(HERE, "tokens", "clip"))
        self.comma_token = self.words.get_vocab()[",</w>"]
        self.id_start, self.id_end = self.words.bos_token_id, self.words.eos_token_id

    def tokenize(self, texts):
        return self.words(texts, truncation=False, add_special_tokens=False)["input_ids"]


FIXED = [
    "", " ", "a fox", "a (red) fox", "an [old] house", "a (red:1.3) fox", "a ((red)) [[fox]]", "(open", "[open", "a) b] c",
    r"a \(red\) \[fox\] \\ c:\path", "(a:1.5", "a:1.5)", "(a: 1.25 )", "(a:+2)(b:-.5)", "(a:1.)(b:.5)", "(a:x)", "(a:)", ":", "(:1.2)",
    "a BREAK b", "BREAK", "BREAK a", "a BREAK", "a BREAK BREAK b", "aBREAK b", "a BREAK_ b", "a,BREAK,b", "a\tBREAK\n b",
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).", "(a (b [c (d:1.4) e] f:0.7) g", "(a [b) c]", "(unnecessary)(parens)",
    "(0:0)", "(two words:1.1) (two words)", "a\\", "\\a", "(a:1.1)(b)", "at 10:30 (noon)", "(naïve café 🦊:1.2) 狐, (犬)",
]


def drawn(i):
    """Returns a random text of words and emphasis marks, sometimes long enough for several windows."""
    draw = random.Random(i)
    words = ["fox", "a", "extraordinary", "red,", ",", "in the snow,", "(", ")", "[", "]", ":1.2)", ":0.5)", "\\(", "sky", "9"]
    if i % 3 == 0:
        words += ["BREAK"] * (i % 2)
    if i % 4 == 0:
        words = [w for w in words if "(" not in w and ")" not in w and "[" not in w and "]" not in w]
    text = ""
    for _ in range(draw.randrange(5, 40 if i % 2 else 160)):
        text += draw.choice(words) + draw.choice([" ", "", " "])
    return text.replace("BREAK", " BREAK ") if not any(c in text for c in "([") else text.replace("BREAK", "")


def case(encoder, text, weighs):
    options.emphasis = "Original" if weighs else "None"
    chunks, _ = encoder.tokenize_line(text)
    one = {"text": text, "weighs": weighs, "ids": [], "weights": []}
    for chunk in chunks:
        n = len(chunk.tokens)
        while chunk.tokens[n - 1] == encoder.id_end:
            n -= 1
        assert set(chunk.multipliers[n:]) | {chunk.multipliers[0]} == {1.0}
        one["ids"].append(chunk.tokens[1:n])
        one["weights"].append(chunk.multipliers[1:n])
    if all(w == 1 for row in one["weights"] for w in row):
        del one["weights"]
    return one


encoder = Encoder()
cases = [case(encoder, text, True) for text in FIXED + [drawn(i) for i in range(40)]]
# lengths around window boundaries, with a comma at different positions before them
for n in (73, 74, 75, 76, 150, 151):
    for comma in (None, 3, 53, 54, 55, 73, 74, 75):
        text = " ".join("," if i == comma else "a" for i in range(n))
        cases.append(case(encoder, text, True))
cases += [case(encoder, text, False) for text in FIXED[3:25] + [drawn(2)]]
with open(os.path.join(HERE, "windows.json"), "w", encoding="utf-8") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")
print(len(cases), "prompts,", max(len(c["ids"]) for c in cases), "windows at most")
