"""Generates control_sd3 and control_sd35: Stable Diffusion 3.5 medium and large with control networks, for make.py.

The models are those of sd35_medium and sd35_large. Networks of control_sd3: 0 in InstantX's format (zeros as pooled prompt, control latent not
shifted), 1 with the pooled prompt, the shift and blocks with two attentions, 2 inpaints (zeros as pooled prompt, shifted). Networks of
control_sd35: 0 as diffusers writes it, 1 and 2 with Stability AI's names, for canny and depth.  Case k's reference tensors have the prefix
"case{k}.":
  picture.{init,control_000,control_mask_000,control_inpaint_000}   u8 [H, W, 3]: input images
  latent_000 latent_001 ... latent sigmas timesteps picture   as for sd3_medium
diffusers draws a control image's latent from the posterior; here it is the posterior's mean (control.py). It has no pipeline that starts
from an image, and reads pooled and shift of two networks from the first: such cases compose the steps of
StableDiffusion3ControlNetPipeline (denoise).
"""

import dataclasses
import json
import os
import re

import torch
from diffusers import SD3ControlNetModel, SD3MultiControlNetModel, StableDiffusion3ControlNetInpaintingPipeline, StableDiffusion3ControlNetPipeline
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

import control
import files
import inputs
import loras
import runs
import sd3.reference_tensors as reference
import sd3.specs
import specs
import weights
from flux.bf16 import disguise
from sd3.bf16 import keep_conditioning

FORMS = {"control_sd3": dict(base="sd35_medium"), "control_sd35": dict(base="sd35_large")}
PLAIN, CANNY, DEPTH = 0, 1, 2  # tensor control_type
NETWORKS = {
    "control_sd3": [
        dict(num_layers=2, pos_embed_max_size=11, dtype="f16", control_type=None),
        dict(num_layers=1, pos_embed_max_size=12, dtype="bf16", control_type=None, force_zeros_for_pooled_projection=False, qk_norm="rms_norm",
             dual_attention_layers=(0,)),
        dict(num_layers=1, pos_embed_max_size=9, dtype="f16", control_type=None, extra_conditioning_channels=1),
    ],
    "control_sd35": [dict(num_layers=layers, pos_embed_max_size=None, pos_embed_type=None, use_pos_embed=False, joint_attention_dim=None,
                          force_zeros_for_pooled_projection=False, dtype=dtype, control_type=control_type)
                     for layers, dtype, control_type in ((3, "f32", None), (1, "f16", CANNY), (1, "bf16", DEPTH))],
}
RULES = [("controlnet_blocks", 0.8, 0.1), ("pos_embed_input", 0.6, 0.1), ("attn.to_v", 1.2, 0.3)]
# Names in Stability AI's files (diffusers, scripts/convert_sd3_controlnet_to_diffusers.py); q, k and v are one tensor there.
STABILITY = {"attn.to_out.0": "attn.proj", "ff.net.0.proj": "mlp.fc1", "ff.net.2": "mlp.fc2", "norm1.linear": "adaLN_modulation.1"}

INPAINT = dict(image=False, mask=True, inpaint=True)
CASES = {
    "control_sd3": [
        # all networks, for influence.txt; the image has another size than the output
        specs.case((7, 5), 4, 42, controls=[control.use(strength=0.5, size=(75, 91)), control.use(1, strength=0.6),
                                            control.use(2, strength=0.7, **INPAINT)]),
        # a window of the steps 2 to 4 of 5
        specs.case((4, 6), 5, 7, prompt="house", cfg=4.0, negative="ugly", controls=[control.use(1, start=0.3)]),
        # two images for one network; an absent negative prompt is encoded as an empty prompt
        specs.case((5, 3), 3, 123456789, prompt="house", cfg=2.5, batch=2,
                   controls=[control.use(strength=0.7), control.use(strength=0.5, end=0.7)]),
        specs.case((3, 5), 3, 77, cfg=3.0, negative="ugly", controls=[control.use(2, strength=1.1, **INPAINT)]),
        # from an input image, with an adapter of the transformer
        specs.case((6, 4), 5, 11, cfg=2.0, negative="house", init=True, strength=0.6, adapter=0.8, controls=[control.use(strength=0.5)]),
    ],
    "control_sd35": [
        specs.case((5, 6), 4, 42, controls=[control.use(strength=0.8, size=(55, 120)), control.use(1, strength=0.3),
                                            control.use(2, strength=0.7)]),
        specs.case((4, 7), 4, 2024, prompt="house", batch=2, controls=[control.use(1, strength=0.3, end=0.8)]),
        specs.case((5, 4), 3, 77, cfg=2.5, negative="empty", controls=[control.use(strength=0.6), control.use(start=0.3)]),
        specs.case((6, 3), 5, 78, prompt="house", cfg=2.0, init=True, strength=0.7, adapter=0.8, controls=[control.use(2, strength=0.9)]),
    ],
}


def spec(name, seed):
    base = sd3.specs.spec(FORMS[name]["base"], seed)
    return dataclasses.replace(base, name=name, form=base.form | FORMS[name], cases=CASES[name])


def renamed(name):
    for ours, theirs in STABILITY.items():
        name = name.replace(ours, theirs)
    return name


def write_stability(folder, control_type):
    """Renames the tensors in a network's folder to those of Stability AI's files; their head size of 64 needs no config.json, this one does."""
    path = os.path.join(folder, "diffusion_pytorch_model.safetensors")
    tensors, out = load_file(path), {}
    for name, t in tensors.items():
        if ".attn.to_q." in name:
            parts = [tensors[name.replace("to_q", part)] for part in ("to_q", "to_k", "to_v")]
            out[name.replace("to_q", "qkv")] = torch.cat(parts)
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            out[renamed(name)] = t
    save_file(out | dict(control_type=torch.tensor([float(control_type)])), path, metadata={"format": "pt"})


def networks(spec, target=None):
    """Returns the fixture's networks in f32, as the files have them; target: also writes them there."""
    out = []
    for i, about in enumerate(NETWORKS[spec.name]):
        settings = {key: value for key, value in about.items() if key not in ("dtype", "control_type")}
        model = SD3ControlNetModel(**dict(
            sample_size=2 * spec.side, patch_size=2, in_channels=spec.channels, out_channels=spec.channels, attention_head_dim=spec.head_dim,
            num_attention_heads=spec.heads, joint_attention_dim=spec.context, caption_projection_dim=spec.dim, pooled_projection_dim=spec.pooled) | settings)
        rules = RULES + (weights.SD3_NORMED if about.get("qk_norm") else weights.SD3)
        if target:
            control.write_network(target, i, model, rules, f"{spec.seed} {spec.name}", about["dtype"])
        else:
            weights.randomize(model, rules, f"{spec.seed} {spec.name} controlnet {i}")
        if target and about["control_type"] is not None:
            write_stability(control.folder_of(target, i), about["control_type"])
        stored = files.cast(model, about["dtype"])
        model.load_state_dict({name: t.float() for name, t in stored.items()})
        model.control_type, model.stability = about["control_type"] or PLAIN, about["control_type"] is not None
        # diffusers' inpainting pipeline always passes zeros as the pooled prompt, and shifts the latent
        model.zero_pooled = model.config.force_zeros_for_pooled_projection or bool(model.config.extra_conditioning_channels)
        model.unshifted = model.config.force_zeros_for_pooled_projection and not model.config.extra_conditioning_channels
        out.append(model.requires_grad_(False).eval())
    return out


def load(spec, target):
    """Returns the base model's pipeline with the networks and the adapter of the fixture in folder `target`."""
    pipe = reference.load(os.path.join(target, "..", spec.form["base"], "model"))
    pipe.networks = networks(spec)
    pipe.adapter = loras.read(os.path.join(target, "adapter.safetensors"))
    return pipe


def pixels_of(pipe, one, case, pictures):
    """Returns what the VAE encodes for a control image, [1, 3, H, W]: see write_stability."""
    v = pipe.image_processor.preprocess(control.image_of(pictures, one), height=case["height"], width=case["width"])
    kind = pipe.networks[one["network"]].control_type
    if kind == CANNY:  # as the model card's SD3CannyImageProcessor
        return (v / 2 + 0.5) * 127.5 + 0.5
    return -v if kind == DEPTH else v


def _loops(case):
    """Returns whether diffusers has no pipeline for the case."""
    return case["init"] or len({one["network"] for one in case["controls"]}) > 1


def _call(pipe, case, pictures, generator):
    parts = {name: part for name, part in pipe.components.items() if name not in ("image_encoder", "feature_extractor")}
    wanted = case["controls"]
    used = [pipe.networks[one["network"]] for one in wanted]
    _, arguments = reference.call(pipe, case, pictures, generator)
    if wanted[0]["mask"]:
        runner = StableDiffusion3ControlNetInpaintingPipeline(**parts, controlnet=used[0])
        images = dict(control_image=control.image_of(pictures, wanted[0], "inpaint"), control_mask=control.image_of(pictures, wanted[0], "mask"))
    else:
        runner = StableDiffusion3ControlNetPipeline(**parts, controlnet=used if len(used) > 1 else used[0])
        given = [pixels_of(pipe, one, case, pictures) for one in wanted]
        images = dict(control_image=given if len(used) > 1 else given[0])
    runner.set_progress_bar_config(disable=True)
    several = dict(control_guidance_start=[one["start"] for one in wanted], control_guidance_end=[one["end"] for one in wanted],
                   controlnet_conditioning_scale=[one["strength"] for one in wanted])
    return runner, arguments | images | (several if len(wanted) > 1 else {key: values[0] for key, values in several.items()})


@torch.no_grad()
def control_latent(pipe, one, case, pictures):
    """Returns the control's latent [1, C, h, w], scaled; pictures: images by name."""
    config, network = pipe.vae.config, pipe.networks[one["network"]]
    shift = 0 if network.unshifted else config.shift_factor
    if not one["mask"]:
        return (pipe.vae.encode(pixels_of(pipe, one, case, pictures)).latent_dist.mode() - shift) * config.scaling_factor
    size = dict(height=case["height"], width=case["width"])
    mask = torch.nn.functional.interpolate(inpainting(pipe).mask_processor.preprocess(control.image_of(pictures, one, "mask"), **size), scale_factor=1)
    pixels = pipe.image_processor.preprocess(control.image_of(pictures, one, "inpaint"), **size)
    pixels[(mask > 0.5).repeat(1, 3, 1, 1)] = -1
    latent = (pipe.vae.encode(pixels).latent_dist.mode() - shift) * config.scaling_factor
    return torch.cat([latent, 1 - torch.nn.functional.interpolate(mask, size=latent.shape[2:])], 1)


def inpainting(pipe):
    parts = {name: part for name, part in pipe.components.items() if name not in ("image_encoder", "feature_extractor")}
    return StableDiffusion3ControlNetInpaintingPipeline(**parts, controlnet=pipe.networks[0])


@torch.no_grad()
def denoise(pipe, case, known, texts, pictures, image=0):
    """The pipeline's denoising loop from the reference tensors' start; texts: hidden states and pooled row of each lane.  Latents between
    steps and timesteps are f32 (f64) whatever the transformer's dtype.  Also returns the latents after each step."""
    model, dtype = pipe.transformer, pipe.transformer.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    latent, sigmas, n, steps = known["latent_000"][image:image + 1].to(wide), known["sigmas"], len(known["timesteps"]), []
    conditions = [control_latent(pipe, one, case, pictures).to(dtype) for one in case["controls"]]
    layers = len(model.transformer_blocks)
    for i, t in enumerate(known["timesteps"]):
        velocities = []
        for hidden, pooled in texts:
            added = []
            for one, condition in zip(case["controls"], conditions):
                network = pipe.networks[one["network"]]
                if not control.runs_at(one, i, n):
                    continue
                x = latent.to(dtype) if network.pos_embed is not None else model.pos_embed(latent.to(model.pos_embed.proj.weight.dtype))
                text = dict(encoder_hidden_states=hidden[None].to(dtype)) if network.context_embedder is not None else {}
                with runs.exactly(network, t[None]):
                    given = network(hidden_states=x, controlnet_cond=condition, conditioning_scale=one["strength"], timestep=t[None],
                                    pooled_projections=(0 * pooled if network.zero_pooled else pooled)[None].to(dtype), return_dict=False, **text)[0]
                # one residual for each layer, because the networks' numbers of residuals differ
                added.append([given[int(layer / (layers / len(given)))] for layer in range(layers)])
            residuals = [sum(rows) for rows in zip(*added)] if added else None
            with runs.exactly(model, t[None]):
                velocities.append(model(hidden_states=latent.to(dtype), timestep=t[None], encoder_hidden_states=hidden[None].to(dtype),
                                        pooled_projections=pooled[None].to(dtype), block_controlnet_hidden_states=residuals, return_dict=False)[0].to(wide))
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
        latent = latent + (sigmas[i + 1] - sigmas[i]) * v
        steps.append(latent)
    return latent, steps


def texts_of(pipe, case):
    encoded = [reference.encode(pipe, prompt or "")[0] for _, prompt in inputs.lanes(case)]
    return [(one["hidden"], one["pooled"]) for one in encoded]


def images_of(pictures):
    return {name: Image.fromarray(p) for name, p in pictures.items()}


@torch.no_grad()
def loop_case(pipe, case, pictures):
    """Runs a case for which diffusers has no pipeline: start and schedule of the plain pipelines, the loop of denoise()."""
    plain = dict(case, controls=[])
    known = reference.run_case(pipe, plain, {name: p for name, p in pictures.items() if name == "init"})
    case["steps_run"] = plain["steps_run"]
    latent, steps = denoise(pipe, case, known, texts_of(pipe, case), images_of(pictures))
    config = pipe.vae.config
    decoded = pipe.vae.decode(latent / config.scaling_factor + config.shift_factor, return_dict=False)[0][0]
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
        for k in range(case["batch"]):  # the loop is the pipeline's
            again, _ = denoise(pipe, case, out, texts_of(pipe, case), images_of(pictures), k)
            assert (again - out["latent"][k:k + 1]).norm() < 1e-5 * again.norm(), case["index"]
        out.pop("decoded", None)  # the VAE is compared in the base model's fixture
        return out


def everything(folder, dtype, known, expect):
    """Returns the final latents by reference tensor name (../bf16.py)."""
    target = os.path.dirname(folder)
    pipe, out = load(spec(os.path.basename(target), expect["seed"]), target), {}
    for name in ["transformer", *reference.encoders(pipe)]:
        model = getattr(pipe, name)
        disguise(model, dtype)
        if hasattr(model, "_can_record_outputs"):
            _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
    for network in pipe.networks:
        disguise(network, dtype)
    for model in (pipe.transformer, *pipe.networks):
        keep_conditioning(model, dtype)
    for case in expect["cases"]:
        mine = inputs.of_case(known, case["index"])
        pictures = {name.removeprefix("picture."): t.numpy() for name, t in mine.items() if name.startswith("picture.")}
        with loras.merged(pipe.transformer, pipe.adapter, case["adapters"]):
            texts = texts_of(pipe, case)
            out[f"case{case['index']}.latent"] = torch.cat(
                [denoise(pipe, case, mine, texts, images_of(pictures), k)[0] for k in range(case["batch"])])
    return out


KEY_BIAS = "a key bias adds the same to all scores of a query: softmax cancels it"


def weights_of_tensors(network):
    """Returns the parameters behind each tensor of a network's file."""
    parameters, out = dict(network.named_parameters()), {}
    for name, weight in parameters.items():
        if network.stability and ".attn.to_" in name and ".attn.to_out" not in name:
            out.setdefault(re.sub("to_[qkv]", "qkv", name), []).append(weight)
        else:
            out[renamed(name) if network.stability else name] = [weight]
    return out


def influence(target):
    """Writes influence.txt: the change of case 0's latent when a tensor of a network is zero. Returns False if one has no effect."""
    with open(os.path.join(target, "expect.json"), encoding="utf-8") as f:
        expect = json.load(f)
    case, pipe = expect["cases"][0], load(spec(os.path.basename(target), expect["seed"]), target)
    known = inputs.of_case(load_file(os.path.join(target, "reference.safetensors")), 0)
    pictures = {name.removeprefix("picture."): t.numpy() for name, t in known.items() if name.startswith("picture.")}
    texts, unused = texts_of(pipe, case), []
    for network in pipe.networks:
        last = len(network.transformer_blocks) - 1
        rows = [(rf"transformer_blocks\.{last}\.(attn\.(to_add_out|add_q_proj|norm_added_q)|ff_context)\.", "the last block's text goes nowhere")]
        layers = len(pipe.transformer.transformer_blocks)
        used = max(int(layer / (layers / (last + 1))) for layer in range(layers - 1))
        rows += [(rf"^(transformer_blocks|controlnet_blocks)\.{i}\.", "the transformer's last layer gets no residual") for i in range(used + 1, last + 1)]
        rows += [(r"text_embedder\.linear_1\.weight", "the pooled prompt is zeros")] if network.zero_pooled else []
        unused.append(rows + ([(r"attn\.to_k\.bias", KEY_BIAS)] if network.context_embedder is None else []))
    return control.influence(target, [weights_of_tensors(network) for network in pipe.networks],
                             lambda: denoise(pipe, case, known, texts, images_of(pictures))[0], known["latent"], unused)


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    networks(spec, target)
    loras.write(os.path.join(target, "adapter.safetensors"), spec.seed, spec.dim, {
        "attn.to_q": (1, 1), "attn.to_out.0": (1, 1), "ff.net.0.proj": (4, 1)})
    pipe = load(spec, target)
    cases, tensors = [], {}
    for k, wanted in enumerate(spec.cases):
        case = inputs.of_tokens(spec, sd3.specs.TEXTS, reference.TOKENS_MAX, k, wanted) | dict(slg_layers=[])
        case["adapters"] = [dict(file="adapter.safetensors", strength=wanted["adapter"])] if "adapter" in wanted else []
        pictures = inputs.pictures_of(spec, case) | control.pictures_of(spec, case, wanted["controls"])
        tensors |= inputs.named(case, run_case(pipe, case, pictures))
        cases.append(case)
    files.fixture_end(out, spec, tensors, dict(family="control_sd3", cases=cases, blocks={}))
