#!/usr/bin/env python3
"""Generates prompts.json: tokens and attention masks of prompts with masked padding, by diffusers' pipelines.

Needs requirements.txt. The functions of LongCatImagePipeline, LongCatImageEditPipeline and ChromaPipeline run with the tokenizers
of qwen_edit and flux_a, and a text encoder that records its input. Flux.2's two forms of padding are the tokenizer's own.
test/formats/test_prompt_padding.c reads the output: [{"form", "text", "pictures", "ids", "first_key", "n_keys", "drop_idx"}].
"""

import json
import os
import random
import re
import types

import torch
from diffusers.pipelines.chroma import pipeline_chroma
from diffusers.pipelines.longcat_image import pipeline_longcat_image, pipeline_longcat_image_edit
from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
MOST = 40  # maximum number of tokens of a prompt; the pipelines' own is 512
PICTURE = (4, 6)  # rows and columns of an image's patches; 2 x 2 patches are one token
BEFORE, AFTER = "<|im_start|>user\nsay: ", "<|im_end|>\n<|im_start|>assistant\n"  # template of forms left and right

split_original = pipeline_longcat_image.split_quotation


def split_mended(prompt):
    """split_quotation with one placeholder character for each word with an apostrophe, so that every word stays itself."""
    words = re.findall("[a-zA-Z]+'[a-zA-Z]+", prompt)
    at = iter(range(len(words)))
    marked = re.sub("[a-zA-Z]+'[a-zA-Z]+", lambda m: chr(0xE000 + next(at)), prompt)
    placed = split_original(marked)
    pattern = "'[^']*?'|\"[^\"]*?\"|‘[^‘’]*?’|“[^“”]*?”"
    parts = [re.sub("[\ue000-\uf8ff]", lambda m: words[ord(m[0]) - 0xE000], part) for part, _ in placed]
    mended = [(part, bool(re.match(pattern, part))) for part in parts]
    if len(set(words)) < 2:
        assert mended == split_original(prompt), prompt
    return mended


pipeline_longcat_image.split_quotation = pipeline_longcat_image_edit.split_quotation = split_mended
# Its warning about a long prompt takes the length of a length, which raises TypeError.
pipeline_longcat_image_edit.len = lambda x: x if isinstance(x, int) else len(x)


class Recorder:
    """Stands for a text encoder: keeps the input, returns the positions as hidden states."""

    device, dtype = "cpu", torch.float32

    def __call__(self, input_ids, attention_mask, **_):
        self.ids, self.mask = input_ids[0].tolist(), attention_mask[0].tolist()
        states = torch.arange(len(self.ids)).view(1, -1, 1)
        return types.SimpleNamespace(hidden_states=[states]) if _["output_hidden_states"] else [states.float()]


def one(form, text, ids, mask, drop=0, n=None, **more):
    """n: number of rows that the denoiser reads from row `drop` on; the rest is not listed."""
    first = mask.index(1)
    ids = ids[: drop + n] if n else ids
    keys = sum(mask[: len(ids)])
    assert set(mask[first : first + keys]) == {1}
    return {"form": form, "text": text, "ids": ids, "first_key": first, "n_keys": keys, "drop_idx": drop, **more}


def longcat(text):
    recorder = Recorder()
    pipe = types.SimpleNamespace(tokenizer=qwen, tokenizer_max_length=MOST, text_encoder=recorder, device="cpu",
                                 prompt_template_encode_prefix=PREFIX, prompt_template_encode_suffix=AFTER)
    rows = pipeline_longcat_image.LongCatImagePipeline._encode_prompt(pipe, [text])
    return one("longcat", text, recorder.ids, recorder.mask, int(rows[0, 0]), rows.shape[1])


def edit(text):
    recorder = Recorder()
    vision = lambda images, return_tensors: {"pixel_values": torch.zeros(1), "image_grid_thw": torch.tensor([[1, *PICTURE]])}
    processor = type("Processor", (), {"merge_size": 2, "__call__": lambda self, **k: vision(**k)})()
    pipe = types.SimpleNamespace(tokenizer=qwen, tokenizer_max_length=MOST, text_encoder=recorder, device="cpu", image_token="<|image_pad|>",
                                 image_processor_vl=processor,
                                 prompt_template_encode_prefix=PREFIX + "<|vision_start|><|image_pad|><|vision_end|>",
                                 prompt_template_encode_suffix=AFTER)
    rows = pipeline_longcat_image_edit.LongCatImageEditPipeline._encode_prompt(pipe, [text], None)
    return one("longcat", text, recorder.ids, recorder.mask, int(rows[0, 0]), rows.shape[1], pictures=[PICTURE[0] * PICTURE[1] // 4])


def chroma(text):
    recorder = Recorder()
    pipe = types.SimpleNamespace(tokenizer=t5, text_encoder=recorder)
    _, mask = pipeline_chroma.ChromaPipeline._get_t5_prompt_embeds(pipe, text, max_sequence_length=MOST, device="cpu", dtype=torch.float32)
    return one("chroma", text, recorder.ids, recorder.mask, 0, int(mask.sum()))


def padded(form, text):
    qwen.padding_side = form
    inputs = qwen(BEFORE + text + AFTER, padding="max_length", truncation=True, max_length=MOST)
    qwen.padding_side = "right"
    return one(form, text, inputs["input_ids"], inputs["attention_mask"])


FIXED = [
    "", " ", "a fox", "write 'Hello' on it", 'a sign "OPEN 24h" here', "‘red’ and “blue”", "“a ‘b’ c”", "the fox's den", "'the fox's den'",
    "it's 'fox's and dog's' and cat's", "'tis the fox's den", "a 'b", "a 'b\" c' d\"", "''", "'' \"\"", "‘a ‘b’", "’a‘", "'a'b'c'", "a'b'c'd' e'",
    "x'y'z 'w'", "3'4 'five'", "é'a 'b'", "“e\u0301”", "\"\u0301e\"", "“狐狸”和'犬'", "'line\nbreak'", "\"<|im_end|>\"", "<|im_end|> 'a'", "<|endoftext|>",
    "<|image_pad|> 'a'", "a longcat_ 'fox'", "\"🦊🏽\"", "don't don't 'a' won't", "'a''b'", "\" 'a\" '", "“a“b”c”", "‘it's’",
]
PARTS = ["'", "'", '"', "‘", "’", "“", "”", "fox", "a", " ", " ", "s", "é", "狐", "don't", "\n", "3", "in the snow"]


def drawn(i):
    draw = random.Random(i)
    return "".join(draw.choice(PARTS) for _ in range(draw.randrange(2, 14)))


LENGTHS = ["a" * 3, "fox " * 18, "9" * (MOST - 1), "9" * MOST, "9" * (MOST + 1), "9 " * 60]
qwen = AutoTokenizer.from_pretrained(os.path.join(HERE, "qwen_edit", "model", "tokenizer"))
t5 = AutoTokenizer.from_pretrained(os.path.join(HERE, "flux_a", "model", "tokenizer_2"))
PREFIX = "<|im_start|>system\nAs an expert<|im_end|>\n<|im_start|>user\n"
quotes = ['"' + "9" * n + '"' for n in (MOST - 3, MOST - 2, MOST - 1, 200)]
cases = [longcat(text) for text in FIXED + LENGTHS + quotes + [drawn(i) for i in range(50)]]
cases += [edit(text) for text in FIXED[:8] + LENGTHS[-3:]]
cases += [f(text) for text in ["", "a fox", "<|endoftext|>"] + LENGTHS for f in (chroma, lambda t: padded("left", t), lambda t: padded("right", t))]
with open(os.path.join(HERE, "prompts.json"), "w", encoding="utf-8") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")
print(len(cases), "prompts")
