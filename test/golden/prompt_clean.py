"""Reference data of diffusers' prompt_clean, applied to prompts before WAN's tokenizer, without ftfy.

    python3 prompt_clean.py table           the rows of engine/open/html_entities.c
    python3 prompt_clean.py cases FILE      texts before and after cleaning; FILE ends in .gz
"""

import gzip
import html
import html.entities
import json
import random
import sys
from unittest import mock

from diffusers.pipelines.wan import pipeline_wan

import tokens

WIDTH = 110


def row(name):
    codes = ", ".join(f"0x{ord(c):X}" for c in html.entities.html5[name + ";"])
    return f"{'BARE' if name in html.entities.html5 else 'NAME'}({name}, {codes}), "


def table():
    line = "    "
    for name in sorted(n.removesuffix(";") for n in html.entities.html5 if n.endswith(";")):
        if len(line + row(name).rstrip()) > WIDTH:
            print(line.rstrip())
            line = "    "
        line += row(name)
    print(line.rstrip())


def texts():
    rng = random.Random("prompt_clean")
    names = sorted(html.entities.html5)
    parts = ["&", "&#", "&#x", ";", "amp", "amp;", "lt", "notit;", "notin;", "#", "38", "x26", "X26;", "#39;", "0", "00", "1114112", "x110000;",
             "xD800", "#13;", "#x80;", "#x9f", "#1;", "#xFDD0;", "#xffff;", "#99999999999999999999;", " ", "\t", "\n", "\x0c", "\x1c", "\x1f", "\x85", "\xa0",
             "\u1680", "\u2003", "\u200b", "\u2028", "\u202f", "\u205f", "\u3000", "<b>", "fox", "狐狸", "\u00e9", "é" * 40, "a" * 40, "&" * 3, "&amp;amp;lt;"]
    out = ["", " ", "&", "&;", "&#;", "&#x;", "&#xg", "&amp;#38;", "&amp;amp;amp;amp;", " a  b ", "&nbsp;&nbsp;x&nbsp;", "&lt;b&gt;", "AT&T", "&am", "&g", "&gt",
           "a &notaword; b", "&CounterClockwiseContourIntegral;", "&CounterClockwiseContourIntegrals;", "&NotEqualTilde;", "&#x1F98A;&#129418"]
    out += [" ".join("&" + name for name in names[i:i + 60]) for i in range(0, len(names), 60)]
    out += ["".join("&" + name for name in names[i:i + 60]) for i in range(0, len(names), 60)]
    out += ["".join(f"&#{n}" + rng.choice([";", " ", "&"]) for n in range(i, i + 64)) for i in range(0, 384, 64)]
    while len(out) < 700:
        out.append("".join(rng.choice(parts) for _ in range(rng.randint(1, 12))))
    return list(dict.fromkeys(out + tokens.FIXED_TEXTS))


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
    table() if sys.argv[1] == "table" else cases(sys.argv[2])
