#!/usr/bin/env python3
"""Generates the golden fixtures: tiny random models and the reference's outputs for them.

    make.py [--seed N] [--out DIR] [--only NAME] [--check]

Needs Python 3.11 and requirements.txt.  The C tests read the output and need no Python.
Without --seed it generates the committed fixtures; any other seed also varies
dimensions, sizes and prompts (specs.py).  --check adds influence.txt and sensitivity.txt (slow).

Each fixture NAME/ contains
  model/             a Hugging Face folder (folder.py, weights.py, tokens.py)
  expect.json        requests and numbers, see below
  tokenizer_cases.json   [{"text", "ids"}]: difficult texts and their ids without the template
  reference.safetensors  f32 unless noted

Outputs are computed from the written files by ZImagePipeline in f32 on
the CPU with two threads.  Case k's reference tensors have the prefix "case{k}.":
  ids.cond ids.uncond        i32, template included, truncated to 512, no padding
  hidden.cond hidden.uncond  [T, hidden]: encode_prompt: hidden_states[-2] without padding
  sigmas timesteps           n+1 and n values of the scheduler after the run
  noise                      [N, C, h, w], torch.randn on the CPU, image k from seed + k alone
  latent                     [N, C, h, w] at the end of the loop; guidance_scale = cfg_scale - 1
  latent_001 ...             case 0: after every step
  decoded                    [3, H, W], unclamped decoder output of the pipeline; not for batches
  picture                    u8 [H, W, 3] ([N, H, W, 3]): the pipeline's PIL picture
Cases of kind "text" have ids and hidden only.  uncond is absent if cfg_scale is 1.

Block reference tensors, from one forward of the transformer at case 0's step 1 (in: latent_001, hidden.cond;
batch of one, hence no mask):
  block.t                    model input t: (1000 - timestep) / 1000, before t_scale
  block.adaln_input          [1, min(dim, 256)]
  block.context_refiner.0.{in,out}  block.noise_refiner.1.{in,out}  block.layers.1.{in,out}
                             [1, tokens, dim], padding included; layers process image, then caption
  block.final.{in,out}       [1, tokens, 4 C], including rows of padding and caption
  block.final_small.{in,out} [1, 8, dim], the same rows times 0.01: only these reveal a wrong epsilon
  embed.image.{in,out}       patches [tokens, 4 C] with (ph, pw, c) per row; padding rows repeat the
                             last patch, the pad token replaces them later
  embed.caption.{in,out}     the same for hidden states
  rope.{image,caption}       [tokens, head_dim / 2, 2] cos and sin; .ids [tokens, 3] i32
  block.text.{in,out}        [1, T, hidden], the layer named in expect.json; text.embedding [T, hidden]
  t_embedder.{in,freq,out}   four timesteps, multiplied by t_scale; freq is cos | sin
  transformer.t{0..3}.{in,t,out}   complete forward passes at two timesteps and two sizes; out is the model's
                             output before the pipeline negates it
Decoder reference tensors, on a separate latent, [1, C, H, W]:
  decoder.in                 input of vae.decode: after scale and shift, before post_quant_conv
  decoder.out, vae.{resnet,resnet_shortcut,attention,upsampler,mid}.{in,out}
Without a model: schedule.{steps}.{shift}.{sigmas,timesteps}; noise.{n}.{randn,rand,rand64} (zimage_a).

expect.json: "model" dimensions and constants; "cases" with index, kind, prompt, negative_prompt, width, height,
steps, cfg_scale, seed, flow_shift (null: no flag), shift (in effect), batch, numbers of tokens;
"transformer" the calls; "blocks" locations of block reference tensors; "noise" seeds and shapes.
blocks.json: the tests that compare with block and decoder reference tensors, written by block_tests.py.
"""

import argparse
import json
import os
import random
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import anima.make
import anima.specs
import chroma.make
import chroma.specs
import files
import flux.control
import flux.make
import flux.specs
import flux2.make
import flux2.specs
import folder
import inputs
import longcat.make
import longcat.specs
import krea.make
import krea.specs
import ovis.make
import ovis.specs
import qwen.make
import qwen_control
import qwen.specs
import qwen21.make
import qwen21.specs
import reference_tensors
import sd3.make
import sd3_control
import sd3.specs
import specs
import tokens
import unet.control
import unet.make
import unet.specs
import ltx.make
import ltx.specs
import wan.make
import wan.specs
import zimage_control
import zimage_pipelines

HERE = os.path.dirname(os.path.abspath(__file__))

# A prompt with the markers of the chat template, which the reference parses as added tokens.
TEMPLATE_TEXT = "a sign that says <|im_end|>\n<|im_start|>system\nno <think> here</think>  <|endoftext|>"
UNICODE_TEXT = "Cafe\u0301 \u212bngstrom, 雪の中の狐  \u1112\u1161\u11ab\uae00\n👩\u200d👩\u200d👧 🦊🏽 12345 e\u0323\u0307 — it'S THE ﬁrst  "


def image_cases(pipe, spec):
    """Returns the spec's image cases, with prompts of the specified lengths in tokens."""
    rng = random.Random(f"prompts {spec.seed} {spec.name}")
    cases = []
    for k, wanted in enumerate(spec.cases):
        columns, rows = wanted["grid"]
        prompt = tokens.prompt_of(pipe.tokenizer, *wanted["cond"], rng)
        negative = "" if wanted["uncond"] == "empty" else tokens.prompt_of(pipe.tokenizer, *wanted["uncond"], rng)
        cases.append(dict(
            index=k, kind="image", prompt=prompt, negative_prompt=negative,
            width=columns * spec.pixel_multiple, height=rows * spec.pixel_multiple,
            steps=wanted["steps"], cfg_scale=wanted["cfg"], seed=wanted["seed"],
            flow_shift=wanted["shift"], shift=wanted["shift"] or spec.shift, batch=wanted.get("batch", 1),
            latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows))
    return cases


def text_cases(pipe, spec, first):
    rng = random.Random(f"texts {spec.seed} {spec.name}")
    prompts = [UNICODE_TEXT, TEMPLATE_TEXT, "", " ", tokens.long_prompt(pipe.tokenizer, rng)]
    return inputs.of_texts(prompts, first)


def encode_case(pipe, case, out):
    """Adds ids and hidden states of a case; the prompt above the length limit has ids only."""
    prefix = f"case{case['index']}."
    for lane, prompt in inputs.lanes(case):
        ids, hidden = reference_tensors.encode(pipe, prompt)
        uncut = pipe.tokenizer(pipe.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=True)).input_ids
        assert ids == uncut[:tokens.MAX_TOKENS]
        case[f"ids_{lane}"] = len(ids)
        case["cut"] = case.get("cut", False) or len(ids) < len(uncut)
        out[f"{prefix}ids.{lane}"] = torch.tensor(ids, dtype=torch.int32)
        if len(ids) < tokens.MAX_TOKENS:
            out[f"{prefix}hidden.{lane}"] = hidden


def write_tokenizer_cases(pipe, tokenizer, spec, path):
    cases = []
    for text in tokens.case_texts(spec.seed):
        ids = pipe.tokenizer(text, add_special_tokens=False).input_ids
        # check that transformers rebuilt the same tokenizer from the files
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "ids": ids})
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")


def model_numbers(spec):
    return dict(
        dim=spec.dim, heads=spec.heads, head_dim=spec.head_dim, axes=spec.axes, layers=spec.layers, refiners=spec.refiners,
        ffn=int(spec.dim / 3 * 8), channels=spec.channels, norm_eps=spec.norm_eps, qk_norm_eps=1e-5, final_norm_eps=1e-6,
        rope_theta=spec.rope_theta, t_scale=spec.t_scale,
        text_hidden=spec.text_hidden, text_heads=spec.text_heads, text_kv_heads=spec.text_kv_heads,
        text_head_dim=spec.text_head_dim, text_layers=spec.text_layers, text_layers_used=spec.text_layers - 1,
        text_ffn=spec.text_ffn, text_rope_theta=spec.text_theta, text_eps=spec.text_eps,
        vae_channels=spec.vae_channels, vae_groups=spec.vae_groups, vae_layers=spec.vae_layers, vae_eps=1e-6,
        scaling_factor=spec.scaling_factor, shift_factor=spec.shift_factor, pixel_multiple=spec.pixel_multiple,
        shift=spec.shift)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    tokenizer = folder.write(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    assert pipe.tokenizer.padding_side == pipe.tokenizer.truncation_side == "right"
    write_tokenizer_cases(pipe, tokenizer, spec, os.path.join(target, "tokenizer_cases.json"))

    cases = image_cases(pipe, spec)
    cases += text_cases(pipe, spec, len(cases))
    tensors = {}
    for case in cases:
        encode_case(pipe, case, tensors)
        if case["kind"] == "image":
            tensors |= inputs.named(case, reference_tensors.run_case(pipe, case))
    block, blocks = reference_tensors.block_references(pipe, spec, tensors)
    calls, transformer = reference_tensors.transformer_calls(pipe, cases, tensors)
    vae, vae_blocks = reference_tensors.decoder_references(pipe, spec)
    noise, noise_about = reference_tensors.noise_references() if spec.form["extra_references"] else ({}, [])
    tensors |= block | calls | vae | noise | reference_tensors.schedule_references()
    files.fixture_end(out, spec, tensors, dict(
        family="zimage", model=model_numbers(spec), cases=cases, transformer=transformer, blocks=blocks | vae_blocks, noise=noise_about))


def main():
    parser = argparse.ArgumentParser(description="Generates the golden fixtures.")
    parser.add_argument("--seed", type=int, default=specs.DEFAULT_SEED)
    parser.add_argument("--out", default=HERE)
    # in this order, because a fixture may link to earlier ones
    families = {name: (specs, make) for name in sorted(specs.FORMS)} | {
        name: (zimage_pipelines, zimage_pipelines.make) for name in zimage_pipelines.FORMS}
    families |= {name: (flux.specs, flux.make.make) for name in flux.specs.FORMS}
    families |= {name: (flux.control, flux.control.make) for name in flux.control.FORMS}
    families |= {name: (longcat.specs, longcat.make.make) for name in longcat.specs.FORMS}
    families |= {name: (flux2.specs, flux2.make.make) for name in flux2.specs.FORMS}
    families |= {name: (chroma.specs, chroma.make.make) for name in chroma.specs.FORMS}
    families |= {name: (ovis.specs, ovis.make.make) for name in ovis.specs.FORMS}
    families |= {name: (unet.specs, unet.make.make) for name in unet.specs.FORMS}
    families |= {name: (qwen.specs, qwen.make.make) for name in qwen.specs.FORMS}
    families |= {name: (krea.specs, krea.make.make) for name in krea.specs.FORMS}
    families |= {name: (qwen21.specs, qwen21.make.make) for name in qwen21.specs.FORMS}
    families |= {name: (ltx.specs, ltx.make.make) for name in ltx.specs.FORMS}
    families |= {name: (wan.specs, wan.make.make) for name in wan.specs.FORMS}
    families |= {name: (sd3.specs, sd3.make.make) for name in sd3.specs.FORMS}
    families |= {name: (anima.specs, anima.make.make) for name in anima.specs.FORMS}
    families |= {name: (unet.control, unet.control.make_fixture) for name in unet.control.FORMS}
    families |= {name: (zimage_control, zimage_control.make) for name in zimage_control.FORMS}
    families |= {name: (module, module.make) for module in (qwen_control, sd3_control) for name in module.FORMS}
    parser.add_argument("--only", choices=families)
    parser.add_argument("--check", action="store_true", help="also write influence.txt and sensitivity.txt")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    for name in [args.only] if args.only else families:
        family_specs, family_make = families[name]
        family_make(family_specs.spec(name, args.seed), args.out)
    if args.check:
        import influence
        import sensitivity
        names = [args.only] if args.only else list(families)
        failed = [name for name in names if not influence.report(os.path.join(args.out, name))]
        sensitivity.report(args.out, [name for name in names if name in specs.FORMS])
        if failed:
            sys.exit(f"tensors without effect in fixtures: {failed}")


if __name__ == "__main__":
    main()
