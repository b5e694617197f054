"""Generates control_qwen: Qwen-Image with control networks, for make.py.

The model is qwen_image's. Networks: 0 reads a control image (Union), 1 inpaints. Case k's reference tensors have the prefix "case{k}.":
  picture.{init,control_000,control_mask_000,control_inpaint_000}   u8 [H, W, 3]: input images
  latent_000 latent_001 ... latent sigmas timesteps picture   as for qwen_image
diffusers draws a control image's latent from the posterior; here it is the posterior's mean (control.py). It has no pipeline that starts
from an image, and none with two different networks: case "loop" composes the steps of QwenImageControlNetPipeline (denoise).
"""

import dataclasses
import json
import os

import torch
from diffusers import (QwenImageControlNetInpaintPipeline, QwenImageControlNetModel, QwenImageControlNetPipeline,
                       QwenImageMultiControlNetModel)
from PIL import Image
from safetensors.torch import load_file
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

import control
import files
import inputs
import loras
import qwen.reference_tensors as reference
import qwen.specs
import runs
import specs
import weights
from flux.bf16 import disguise
from qwen.bf16 import keep_conditioning

FORMS = {"control_qwen": dict(base="qwen_image")}
TOKENS_MAX = 512
CLASSES = [QwenImageControlNetModel, QwenImageControlNetModel]
# Layers and further channels of each network; the denoiser has three layers.
NETWORKS = [dict(layers=2, extra=0, dtype="f32"), dict(layers=3, extra=4, dtype="bf16")]
RULES = [("controlnet_blocks", 0.9, 0.1), ("controlnet_x_embedder", 0.6, 0.1), ("to_k", 0.4, 0.3), ("to_v", 1.6, 0.6), *weights.QWEN]

CASES = [
    # both networks, for influence.txt; the image has another size than the output
    specs.case((7, 5), 4, 42, controls=[control.use(strength=0.7, size=(97, 61)),
                                        control.use(1, strength=0.8, image=False, mask=True, inpaint=True)]),
    # a window of the steps 2 and 3 of 5; the negative prompt is shorter
    specs.case((4, 6), 5, 7, prompt="house", cfg=4.0, negative="ugly", controls=[control.use(start=0.25, end=0.8)]),
    specs.case((5, 3), 3, 11, cfg=2.5, negative="space", controls=[control.use(1, strength=1.2, image=False, mask=True, inpaint=True)]),
    # two images for one network, one after the other
    specs.case((3, 5), 3, 4294967295, prompt="house", cfg=3.0, negative="ugly", batch=2,
               controls=[control.use(strength=0.8, end=0.5), control.use(strength=0.5, start=0.4)]),
    # from an input image, with an adapter of the transformer
    specs.case((6, 3), 5, 2024, cfg=3.5, negative="ugly", init=True, strength=0.6, adapter=0.8, controls=[control.use(strength=0.6)]),
]


def spec(name, seed):
    base = qwen.specs.spec(FORMS[name]["base"], seed)
    return dataclasses.replace(base, name=name, form=base.form | FORMS[name], cases=CASES)


def write_networks(spec, target):
    for i, about in enumerate(NETWORKS):
        model = QwenImageControlNetModel(
            in_channels=4 * spec.channels, out_channels=spec.channels, num_layers=about["layers"], attention_head_dim=spec.head_dim,
            num_attention_heads=spec.heads, joint_attention_dim=spec.text_hidden, axes_dims_rope=spec.axes,
            extra_condition_channels=about["extra"])
        control.write_network(target, i, model, RULES, f"{spec.seed} {spec.name}", about["dtype"])


def load(target):
    """Returns the base model's pipeline with the networks and the adapter of the fixture in folder `target`."""
    base = FORMS[os.path.basename(target).removesuffix(".new")]["base"]
    pipe = reference.load(os.path.join(target, "..", base, "model"))
    pipe.networks = control.load_networks(target, CLASSES)
    pipe.adapter = loras.read(os.path.join(target, "adapter.safetensors"))
    return pipe


def _loops(case):
    """Returns whether diffusers has no pipeline for the case."""
    return case["init"] or len({one["network"] for one in case["controls"]}) > 1


def _call(pipe, case, pictures, generator):
    parts = {name: part for name, part in pipe.components.items() if name in ("scheduler", "vae", "text_encoder", "tokenizer", "transformer")}
    wanted, network = case["controls"], pipe.networks[case["controls"][0]["network"]]
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"] if case["cfg_scale"] > 1 else None, true_cfg_scale=case["cfg_scale"],
        height=case["height"], width=case["width"], num_inference_steps=case["steps"], generator=generator,
        max_sequence_length=case["max_sequence_length"])
    window = {f"control_guidance_{end}": [one[end] for one in wanted] for end in ("start", "end")}
    scales = [one["strength"] for one in wanted]
    if wanted[0]["mask"]:
        runner = QwenImageControlNetInpaintPipeline(**parts, controlnet=network)
        common |= dict(control_image=control.image_of(pictures, wanted[0], "inpaint"), control_mask=control.image_of(pictures, wanted[0], "mask"))
    elif len(wanted) == 1:
        runner = QwenImageControlNetPipeline(**parts, controlnet=network)
        common |= dict(control_image=control.image_of(pictures, wanted[0]))
    else:
        runner = QwenImageControlNetPipeline(**parts, controlnet=QwenImageMultiControlNetModel([network]))
        common |= dict(control_image=[control.image_of(pictures, one) for one in wanted])
    runner.set_progress_bar_config(disable=True)
    return runner, common | window | dict(controlnet_conditioning_scale=scales if len(wanted) > 1 else scales[0])


@torch.no_grad()
def control_latent(pipe, one, case, pictures):
    """Returns the control's packed latent [1, tokens, 4 C]; pictures: u8 arrays by name."""
    mean, deviation = reference.latents_format(pipe)
    size = dict(height=case["height"], width=case["width"])

    def encoded(pixels):
        return ((pipe.vae.encode(pixels[:, :, None]).latent_dist.mode() - mean) * (1.0 / deviation))[:, :, 0]

    if not one["mask"]:
        latent = encoded(pipe.image_processor.preprocess(Image.fromarray(control.image_of(pictures, one)), **size))
    else:
        mask = QwenImageControlNetInpaintPipeline(
            pipe.scheduler, pipe.vae, pipe.text_encoder, pipe.tokenizer, pipe.transformer, pipe.networks[one["network"]]).mask_processor.preprocess(
                Image.fromarray(control.image_of(pictures, one, "mask")), **size)
        pixels = pipe.image_processor.preprocess(Image.fromarray(control.image_of(pictures, one, "inpaint")), **size)
        pixels[(mask > 0.5).repeat(1, 3, 1, 1)] = -1
        latent = encoded(pixels)
        latent = torch.cat([latent, 1 - torch.nn.functional.interpolate(mask, size=latent.shape[2:])], 1)
    return pipe._pack_latents(latent, 1, *latent.shape[1:])


@torch.no_grad()
def denoise(pipe, case, known, texts, pictures, image=0):
    """The pipeline's denoising loop from the reference tensors' start; texts: hidden states of each lane.  Latents between steps and
    timesteps are f32 (f64) whatever the transformer's dtype.  Also returns the latents after each step."""
    dtype = pipe.transformer.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    latent, sigmas, n, steps = known["latent_000"][image:image + 1].to(wide), known["sigmas"], len(known["timesteps"]), []
    conditions = [control_latent(pipe, one, case, pictures).to(dtype) for one in case["controls"]]
    layers = len(pipe.transformer.transformer_blocks)
    for i, timestep in enumerate(known["timesteps"]):
        t, rows, added = timestep[None] / 1000, pipe._pack_latents(latent, 1, *latent.shape[1:]).to(dtype), []
        common = dict(hidden_states=rows, timestep=t, img_shapes=reference.shapes([latent]), return_dict=False)
        for one, condition in zip(case["controls"], conditions):
            if not control.runs_at(one, i, n):
                continue
            network = pipe.networks[one["network"]]
            with runs.exactly(network, t):
                given = network(controlnet_cond=condition, conditioning_scale=one["strength"], encoder_hidden_states=texts[0][None].to(dtype), **common)
            # one residual for each layer, because the networks' numbers of residuals differ
            added.append([given[layer // -(-layers // len(given))] for layer in range(layers)])
        residuals, velocities = [sum(rows) for rows in zip(*added)] if added else None, []
        for hidden in texts:
            with runs.exactly(pipe.transformer, t):
                velocities.append(pipe.transformer(encoder_hidden_states=hidden[None].to(dtype), controlnet_block_samples=residuals, **common)[0].to(wide))
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
            v = v * (velocities[0].norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True))
        latent = latent + (sigmas[i + 1] - sigmas[i]) * runs.unpack(pipe, v, case)
        steps.append(latent)
    return latent, steps


def hidden_of(pipe, case):
    return [reference.encode(pipe, prompt)[0]["hidden"] for _, prompt in inputs.lanes(case)]


def loop_case(pipe, case, pictures):
    """Runs a case for which diffusers has no pipeline: start and schedule of the plain pipelines, the loop of denoise()."""
    plain = dict(case, controls=[])
    known = reference.run_case(pipe, plain, {name: p for name, p in pictures.items() if name == "init"})
    case["steps_run"] = plain["steps_run"]
    latent, steps = denoise(pipe, case, known, hidden_of(pipe, case), pictures)
    mean, deviation = reference.latents_format(pipe)
    decoded = pipe.vae.decode(latent[:, :, None] / (1.0 / deviation) + mean, return_dict=False)[0][0, :, 0]
    out = {f"picture.{name}": torch.from_numpy(p.copy()) for name, p in pictures.items()}
    out |= {name: known[name] for name in ("latent_000", "sigmas", "timesteps", "moments.init", "encoded.init") if name in known}
    out |= {f"latent_{i + 1:03}": step for i, step in enumerate(steps[:-1])}
    return out | dict(latent=latent, picture=((decoded / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous())


@torch.no_grad()
def run_case(pipe, case, pictures):
    with loras.merged(pipe.transformer, pipe.adapter, case["adapters"]):
        if _loops(case):
            return loop_case(pipe, case, pictures)
        with control.posterior_mean(pipe.vae):
            out = runs.run_case(pipe, case, pictures, _call, lambda z: z)[0]
        out.pop("decoded", None)  # the VAE is compared in the base model's fixture
        for k in range(case["batch"]):  # the loop is the pipeline's
            again, _ = denoise(pipe, case, out, hidden_of(pipe, case), pictures, k)
            assert (again - out["latent"][k:k + 1]).norm() < 1e-5 * again.norm(), case["index"]
        return out


def everything(folder, dtype, known, expect):
    """Returns the final latents by reference tensor name (../bf16.py)."""
    pipe, out = load(os.path.dirname(folder)), {}
    _CAN_RECORD_REGISTRY[pipe.text_encoder] = pipe.text_encoder._can_record_outputs
    for model in (pipe.transformer, pipe.text_encoder, *pipe.networks):
        disguise(model, dtype)
    for model in (pipe.transformer, *pipe.networks):
        model.zero_cond_t = False
        keep_conditioning(model, dtype)
    for case in expect["cases"]:
        mine = inputs.of_case(known, case["index"])
        pictures = {name.removeprefix("picture."): t.numpy() for name, t in mine.items() if name.startswith("picture.")}
        with loras.merged(pipe.transformer, pipe.adapter, case["adapters"]):
            hidden = hidden_of(pipe, case)
            out[f"case{case['index']}.latent"] = torch.cat([denoise(pipe, case, mine, hidden, pictures, k)[0] for k in range(case["batch"])])
    return out


def influence(target):
    """Writes influence.txt: the change of case 0's latent when a tensor of a network is zero. Returns False if one has no effect."""
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        case = json.load(f)["cases"][0]
    pipe, known = load(target), inputs.of_case(load_file(os.path.join(target, "reference.safetensors")), 0)
    pictures = {name.removeprefix("picture."): t.numpy() for name, t in known.items() if name.startswith("picture.")}
    texts = hidden_of(pipe, case)
    named = [{name: [weight] for name, weight in network.named_parameters()} for network in pipe.networks]
    last = [rf"transformer_blocks\.{about['layers'] - 1}\.(attn\.(to_add_out|add_q_proj|norm_added_q)|txt_mlp)\." for about in NETWORKS]
    return control.influence(target, named, lambda: denoise(pipe, case, known, texts, pictures)[0], known["latent"],
                             [[(pattern, "the last layer's text goes nowhere")] for pattern in last])


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    write_networks(spec, target)
    loras.write(os.path.join(target, "adapter.safetensors"), spec.seed, spec.dim, {
        "attn.to_q": (1, 1), "attn.to_out.0": (1, 1), "img_mlp.net.0.proj": (4, 1)})
    pipe = load(target)
    cases, tensors = [], {}
    for k, wanted in enumerate(spec.cases):
        case = inputs.of_tokens(spec, qwen.specs.TEXTS, TOKENS_MAX, k, wanted)
        case["adapters"] = [dict(file="adapter.safetensors", strength=wanted["adapter"])] if "adapter" in wanted else []
        pictures = inputs.pictures_of(spec, case) | control.pictures_of(spec, case, wanted["controls"])
        tensors |= inputs.named(case, run_case(pipe, case, pictures))
        cases.append(case)
    files.fixture_end(out, spec, tensors, dict(family="control_qwen", cases=cases, blocks={}))
