"""Reference data of diffusers' prompt_clean, applied to prompts before WAN's tokenizer, without ftfy.

    python3 prompt_clean.py FILE      texts before and after cleaning; FILE ends in .gz
"""

import gzip
import html
import html.entities
import json
import random
import re
import sys
from unittest import mock

from diffusers.pipelines.wan import pipeline_wan

import tokens

NAMES = ("amp", "lt", "gt", "quot", "apos", "nbsp")  # names that engine/open/prompt_clean.c decodes


def is_supported(text):
    """True if the text has no reference with another name, also after it is decoded once."""
    for name in re.findall("&([A-Za-z][A-Za-z0-9]*;?)", text + html.unescape(text)):
        known = [name[:n] for n in range(len(name), 0, -1) if name[:n] in html.entities.html5]
        if known and known[0].removesuffix(";") not in NAMES:
            return False
    return True


def texts():
    rng = random.Random("prompt_clean")
    names = [name for name in sorted(html.entities.html5) if name.removesuffix(";") in NAMES]
    parts = ["&", "&#", "&#x", ";", "amp", "amp;", "lt", "apos;", "nbsp;", "#", "38", "x26", "X26;", "#39;", "0", "00", "1114112", "x110000;",
             "xD800", "#13;", "#x80;", "#x9f", "#1;", "#xFDD0;", "#xffff;", "#99999999999999999999;", " ", "\t", "\n", "\x0c", "\x1c", "\x1f", "\x85", "\xa0",
             "\u1680", "\u2003", "\u200b", "\u2028", "\u202f", "\u205f", "\u3000", "<b>", "fox", "狐狸", "\u00e9", "é" * 40, "a" * 40, "&" * 3, "&amp;amp;lt;"]
    out = ["", " ", "&", "&;", "&#;", "&#x;", "&#xg", "&amp;#38;", "&amp;amp;amp;amp;", " a  b ", "&nbsp;&nbsp;x&nbsp;", "&lt;b&gt;", "AT&T", "&am", "&g", "&gt",
           "a &aword; b", "&apos", "&#x1F98A;&#129418"]
    out += [" ".join("&" + name for name in names), "".join("&" + name for name in names)]
    out += ["".join(f"&#{n}" + rng.choice([";", " ", "&"]) for n in range(i, i + 64)) for i in range(0, 384, 64)]
    while len(out) < 700:
        out.append("".join(rng.choice(parts) for _ in range(rng.randint(1, 12))))
    return [text for text in dict.fromkeys(out + tokens.FIXED_TEXTS) if is_supported(text)]


def cases(path):
    with mock.patch.object(pipeline_wan, "is_ftfy_available", lambda: False):
        rows = [{"text": t, "cleaned": pipeline_wan.prompt_clean(t)} for t in texts()]
    # ftfy, if installed, replaces these curly quotes by straight ones
    for r in rows:
        for curly, straight in (("\u02bc\u2018\u2019\u201a\u201b", "'"), ("\u201c\u201d\u201e\u201f", '"')):
            for c in curly:
                r["cleaned"] = r["cleaned"].replace(c, straight)
    with open(path, "wb") as f:
        f.write(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    cases(sys.argv[1])
