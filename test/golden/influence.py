#!/usr/bin/env python3
"""Shows that every tensor matters: each is zeroed in turn and the pipeline run again.

    influence.py [DIR]       writes DIR/NAME/influence.txt, exit 1 if a tensor has no say

Transformer and text encoder count by the final latent of case 0, the decoder's
tensors by the decoded picture.  Tensors that cannot matter are expected by name and must
not move anything; all others must move it by more than 1e-3.  Below them the
constants that are in no tensor, each a little wrong: a test that misses one would pass with it.
"""

import json
import os
import re
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import rings

LEAST = 1e-3   # every tensor that counts moves the result by more
NOTHING = 2e-6  # what does not count moves it by no more than rounding

# What the mathematics cancels or the pipeline never reads, with the reason.
UNUSED = [
    (r"^vae\.decoder\.mid_block\.attentions\.0\.to_k\.bias$", "a key bias adds the same to all scores of a query: softmax cancels it"),
    (r"^vae\.(encoder|quant_conv)\.", "the encoder is not used for text to image"),
    (r"^text_encoder\.layers\.{last}\.", "the hidden state used is the one before the last layer"),
    (r"^text_encoder\.norm\.", "the hidden state used is not normed"),
    (r"^text_encoder\.lm_head\.", "the head is never read"),
]


def reason(name, last):
    for pattern, why in UNUSED:
        if re.search(pattern.replace("{last}", str(last)), name):
            return why
    return None


class Probe:
    """Case 0 again, from whatever stage a change can reach."""

    def __init__(self, pipe, case, tensors):
        self.pipe, self.case = pipe, case
        self.noise = tensors["case0.noise"]
        self.captions = [[tensors["case0.hidden.cond"]], [tensors["case0.hidden.uncond"]]]
        self.final = self.latent()
        self.picture = self.decode()

    def latent(self, text=False):
        pipe, case = self.pipe, self.case
        pipe.scheduler.set_shift(case["shift"])
        captions = self.captions
        if text:
            captions = [pipe.encode_prompt(case[p], do_classifier_free_guidance=False)[0] for p in ("prompt", "negative_prompt")]
        return pipe(
            prompt=None, prompt_embeds=captions[0], negative_prompt_embeds=captions[1], height=case["height"], width=case["width"],
            num_inference_steps=case["steps"], guidance_scale=case["cfg_scale"] - 1, latents=self.noise.clone(),
            output_type="latent").images

    @torch.no_grad()
    def decode(self):
        vae = self.pipe.vae
        return vae.decode(self.final / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]

    def change(self, part):
        if part == "vae":
            return rings.relative(self.decode(), self.picture)
        return rings.relative(self.latent(text=part == "text_encoder"), self.final)


def _constants(pipe):
    """(name, part, object, attribute, wrong value): what a slip of the pen would make of it."""
    t, text, vae = pipe.transformer, pipe.text_encoder, pipe.vae
    blocks = [*t.noise_refiner, *t.context_refiner, *t.layers]
    eps = blocks[0].attention_norm1.eps
    wrong = 1e-6 if eps > 1e-6 else 1e-5
    norms = [m for b in blocks for m in (b.attention_norm1, b.attention_norm2, b.ffn_norm1, b.ffn_norm2)]
    heads = [m for b in blocks for m in (b.attention.norm_q, b.attention.norm_k)]
    used = list(text.layers)[:-1]
    text_norms = [m for layer in used for m in (layer.input_layernorm, layer.post_attention_layernorm)]
    text_heads = [m for layer in used for m in (layer.self_attn.q_norm, layer.self_attn.k_norm)]
    text_eps = text_norms[0].variance_epsilon
    groups = [m for m in vae.decoder.modules() if isinstance(m, torch.nn.GroupNorm)]
    return [
        (f"transformer norms: eps {wrong:g} for {eps:g}", "transformer", norms, "eps", wrong),
        (f"caption norm: eps {wrong:g} for {eps:g}", "transformer", [t.cap_embedder[0]], "eps", wrong),
        ("query and key norms: eps 1e-6 for 1e-5", "transformer", heads, "eps", 1e-6),
        (f"query and key norms: eps {eps if eps != 1e-5 else 2e-5:g} for 1e-5", "transformer", heads, "eps", eps if eps != 1e-5 else 2e-5),
        ("final norm: eps 1e-5 for 1e-6 (only the ring block.final_small shows it)", "transformer", [t.all_final_layer["2-1"].norm_final], "eps", 1e-5),
        ("t_scale 1 % off", "transformer", [t], "t_scale", t.t_scale * 1.01),
        ("rope theta 1 % off", "transformer", [t.rope_embedder], "theta", t.rope_embedder.theta * 1.01),
        (f"text norms: eps 1e-5 or 1e-6 for {text_eps:g}", "text_encoder", text_norms, "variance_epsilon", 1e-5 if text_eps == 1e-6 else 1e-6),
        (f"text query and key norms: eps 1e-5 or 1e-6 for {text_eps:g}", "text_encoder", text_heads, "variance_epsilon", 1e-5 if text_eps == 1e-6 else 1e-6),
        ("text rope frequencies 0.1 % off", "text_encoder", [text.rotary_emb], "inv_freq", text.rotary_emb.inv_freq * 1.001),
        ("decoder norms: eps 1e-5 for 1e-6", "vae", groups, "eps", 1e-5),
    ]


@torch.no_grad()
def constants(probe):
    lines = []
    for name, part, objects, attribute, wrong in _constants(probe.pipe):
        kept = [getattr(o, attribute) for o in objects]
        for o in objects:
            setattr(o, attribute, wrong)
        if attribute == "theta":
            objects[0].freqs_cis = None
        lines.append(f"  {probe.change(part):.2e}  {name}")
        for o, value in zip(objects, kept):
            setattr(o, attribute, value)
        if attribute == "theta":
            objects[0].freqs_cis = None
    return lines


@torch.no_grad()
def report(target):
    pipe = rings.load(os.path.join(target, "model"))
    tensors = load_file(os.path.join(target, "rings.safetensors"))
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        case = json.load(f)["cases"][0]
    probe = Probe(pipe, case, tensors)
    again = rings.relative(probe.final, tensors["case0.latent"])
    assert again < 1e-6, again
    last = len(pipe.text_encoder.layers) - 1
    counted, silent, failed = [], [], []
    for part in ("text_encoder", "transformer", "vae"):
        for name, parameter in getattr(pipe, part).named_parameters():
            full = f"{part}.{name}"
            kept = parameter.clone()
            parameter.zero_()
            moved = probe.change(part)
            parameter.copy_(kept)
            why = reason(full, last)
            (silent if why else counted).append((moved, full, why))
            if not (moved <= NOTHING if why else moved > LEAST):
                failed.append(full)
    # what is in the files but in no module
    for folder, _, files in os.walk(os.path.join(target, "model", "text_encoder")):
        for file in files:
            if file.endswith(".safetensors"):
                with safe_open(os.path.join(folder, file), "pt") as f:
                    silent += [(0.0, f"text_encoder.{k}", reason(f"text_encoder.{k}", last)) for k in f.keys() if k.startswith("lm_head")]
    counted.sort()
    lines = [
        f"{os.path.basename(target)}: {len(counted)} tensors counted, least influence {counted[0][0]:.2e} (gate {LEAST:g}), {len(failed)} failed.",
        "Relative L2 change of case 0's final latent (text encoder, transformer) or decoded picture (vae) when the tensor is zero.",
        "", "Zeroed tensors, least influence first:"]
    lines += [f"  {moved:.2e}  {name}" for moved, name, _ in counted]
    lines += ["", "Tensors that the mathematics cancels or that are never used:"]
    for why in dict.fromkeys(why for _, _, why in silent):
        lines.append(f"  {why}:")
        lines += [f"    {moved:.2e}  {name}" for moved, name, w in silent if w == why]
    lines += ["", "Constants a little wrong:"] + constants(probe)
    if failed:
        lines += ["", "FAILED:"] + [f"  {name}" for name in failed]
    with open(os.path.join(target, "influence.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(lines[0])
    return not failed


if __name__ == "__main__":
    torch.set_num_threads(2)
    where = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    found = sorted(n for n in os.listdir(where) if os.path.exists(os.path.join(where, n, "expect.json")))
    sys.exit(0 if all([report(os.path.join(where, n)) for n in found]) else 1)
