"""Runs the Qwen-Image reference and records inputs and outputs as reference tensors."""

import math
import os

import diffusers
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageImg2ImgPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

import autoencoders
import runs
from inputs import of_case
from runs import exactly, unpack
from watch import Watch

from . import specs

SCHEDULE_STEPS = [1, 2, 4, 7, 20, 28, 50]
SCHEDULE_TOKENS = [1, 117, 256, 1024, 1521, 4096, 6889]

BLOCK_TEXT = 24  # number of leading text tokens in block reference tensors
LATER = "latent_001"  # input of block reference tensors: case 0's latent after one step


def count_along_axes(text_encoder):
    """Passes image grids to the text encoder: diffusers 0.42 omits them, and transformers 5 then numbers image
    tokens like text."""
    def hook(module, args, kwargs):
        if kwargs.get("image_grid_thw") is not None:
            kwargs["mm_token_type_ids"] = (kwargs["input_ids"] == module.config.image_token_id).int()
        return args, kwargs

    text_encoder.register_forward_pre_hook(hook, with_kwargs=True)


def load(folder):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype, with small image areas."""
    pipeline_qwenimage_edit_plus.CONDITION_IMAGE_SIZE = specs.PLUS_TOWER
    pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE = specs.PICTURE
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus):
        module.calculate_dimensions = _of_small_areas(module.calculate_dimensions)
    parts = dict(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        vae=diffusers.AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae", dtype=torch.float32),
        text_encoder=Qwen2_5_VLForConditionalGeneration.from_pretrained(os.path.join(folder, "text_encoder"), dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(os.path.join(folder, "tokenizer")),
        transformer=diffusers.QwenImageTransformer2DModel.from_pretrained(folder, subfolder="transformer", dtype=torch.float32))
    name = diffusers.DiffusionPipeline.load_config(folder)["_class_name"]
    if os.path.isdir(os.path.join(folder, "processor")):
        pictures = Qwen2VLImageProcessor.from_pretrained(os.path.join(folder, "processor"))
        parts["processor"] = Qwen2VLProcessor(pictures, parts["tokenizer"], Qwen2VLVideoProcessor())
    pipe = getattr(diffusers, name)(**parts)
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    count_along_axes(pipe.text_encoder)
    return pipe


def _of_small_areas(calculate):
    """Returns the pipeline's size calculation for small areas; replacing it twice changes nothing."""
    if hasattr(calculate, "small"):
        return calculate

    def calculated(area, ratio):
        return calculate(specs.PICTURE if area == 1024 * 1024 else area, ratio)

    calculated.small = True
    return calculated


def resized(pipe, pictures):
    """Yields each image as the pipelines resize it: (for the vision tower, for the VAE)."""
    plus = isinstance(pipe, diffusers.QwenImageEditPlusPipeline)
    for picture in pictures:
        ratio = picture.width / picture.height
        sizes = [(pipeline_qwenimage_edit_plus if plus else pipeline_qwenimage_edit).calculate_dimensions(area, ratio)[:2]
                 for area in (specs.PLUS_TOWER if plus else specs.PICTURE, specs.PICTURE)]
        (seen_width, seen_height), (width, height) = sizes
        yield pipe.image_processor.resize(picture, seen_height, seen_width), pipe.image_processor.resize(picture, height, width)


@torch.no_grad()
def encode(pipe, prompt, pictures=(), tokens_max=512):
    """Returns the reference tensors of one prompt by the pipeline's own code, and its number of tokens before
    truncation."""
    given = {}
    keep = pipe.text_encoder.register_forward_pre_hook(lambda _m, _a, kw: given.update(ids=kw["input_ids"][0].int().clone()), with_kwargs=True)
    if hasattr(pipe, "processor"):
        seen = [tower for tower, _ in resized(pipe, pictures)]
        hidden, mask = pipe.encode_prompt(prompt, image=seen if isinstance(pipe, diffusers.QwenImageEditPlusPipeline) else seen[0],
                                          max_sequence_length=tokens_max)
    else:
        hidden, mask = pipe.encode_prompt(prompt, max_sequence_length=tokens_max)
    keep.remove()
    assert mask is None
    # attention is causal: truncated tokens have no effect on the recorded ones
    given["ids"] = given["ids"][:pipe.prompt_template_encode_start_idx + len(hidden[0])]
    uncut = len(given["ids"]) if pictures else len(pipe.tokenizer(pipe.prompt_template_encode.format(prompt)).input_ids)
    return dict(ids=given["ids"], hidden=hidden[0]), uncut


@torch.no_grad()
def look(pipe, pictures):
    """Returns the vision tower's inputs for each image (u8 [H, W, 3]; rows in the processor's order) and outputs
    (rows in raster order)."""
    out = {}
    for i, (tower, _) in enumerate(resized(pipe, pictures)):
        pixels, seen = vision_inputs(pipe.processor.image_processor, tower)
        out[f"pixels.reference_{i:03}"] = pixels
        out[f"seen.reference_{i:03}"] = pipe.text_encoder.model.visual(seen["pixel_values"], seen["image_grid_thw"]).pooler_output
    return out


def vision_inputs(processor, picture):
    """Returns a picture's pixels as the processor resizes them, u8 [H, W, 3], and the processor's output."""
    seen = processor(images=[picture], return_tensors="pt")
    (_, rows, columns), = seen["image_grid_thw"].tolist()
    flat = processor(images=[picture], return_tensors="pt", do_normalize=False, do_rescale=False)["pixel_values"]
    pixels = flat.numpy().reshape(rows // 2, columns // 2, 2, 2, 3, 2, 14, 14)[:, :, :, :, :, 0]
    pixels = pixels.transpose(0, 2, 5, 1, 3, 6, 4).reshape(14 * rows, 14 * columns, 3)
    assert (pixels == pixels.astype(np.uint8)).all()
    return torch.from_numpy(pixels.astype(np.uint8)), seen


def latents_format(pipe):
    config = pipe.vae.config
    return [torch.tensor(v).view(1, config.z_dim, 1, 1, 1) for v in (config.latents_mean, config.latents_std)]


def img2img(pipe):
    starting = QwenImageImg2ImgPipeline(**{name: part for name, part in pipe.components.items() if name != "processor"})
    starting.set_progress_bar_config(disable=True)
    return starting


def _call(pipe, case, pictures, generator):
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"] if case["cfg_scale"] > 1 else None, true_cfg_scale=case["cfg_scale"],
        height=case["height"], width=case["width"], num_inference_steps=case["steps"], generator=generator,
        max_sequence_length=case["max_sequence_length"])
    if case["init"]:
        return img2img(pipe), common | dict(image=pictures["init"], strength=case["strength"])
    if case["references"]:
        references = [pictures[name] for name in sorted(pictures)]
        return pipe, common | dict(image=references if isinstance(pipe, diffusers.QwenImageEditPlusPipeline) else references[0])
    return pipe, common


@torch.no_grad()
def run_case(pipe, case, pictures):
    mean, deviation = latents_format(pipe)
    # the two pipelines normalise latents with different rounding
    references, images = runs.run_case(
        pipe, case, pictures, _call, lambda z: (z - mean) * (1.0 / deviation) if case["init"] else (z - mean) / deviation)
    case["reference_grids"] = [[z.shape[-1] // 2, z.shape[-2] // 2] for z in images[0].encoded] if case["references"] else []
    return references


def packed(pipe, latents):
    return torch.cat([pipe._pack_latents(z, 1, *z.shape[1:]) for z in latents], dim=1)


def shapes(latents):
    return [[(1, z.shape[2] // 2, z.shape[3] // 2) for z in latents]]


def reference_latents(case, known):
    """Returns the latents [1, C, h, w] of references, which follow the image's latent."""
    return [known[f"encoded.reference_{i:03}"][:1] for i in range(len(case["references"]))]


@torch.no_grad()
def velocity_of(pipe, latents, t, hidden):
    """Returns the velocity of the first latent's tokens; t: timestep / 1000 in f32."""
    dtype = pipe.transformer.dtype
    with exactly(pipe.transformer, torch.cat([t, t * 0]) if pipe.transformer.zero_cond_t else t):
        return pipe.transformer(hidden_states=packed(pipe, latents).to(dtype), timestep=t, encoder_hidden_states=hidden[None].to(dtype),
                                img_shapes=shapes(latents), return_dict=False)[0]


@torch.no_grad()
def denoise(pipe, case, known, texts, image=0, steps=None):
    """The pipeline's denoising loop from the reference tensors' start; texts: hidden states for each lane.  Latents between steps and
    timesteps are f32 (f64) whatever the transformer's dtype."""
    wide = torch.float64 if pipe.transformer.dtype == torch.float64 else torch.float32
    references, sigmas, latent = reference_latents(case, known), known["sigmas"], known["latent_000"][image:image + 1].to(wide)
    for i, t in enumerate(known["timesteps"][:steps]):
        velocities = [velocity_of(pipe, [latent, *references], t[None] / 1000, hidden)[:, :case["image_tokens"]].to(wide) for hidden in texts]
        v = velocities[0]
        if len(velocities) > 1:
            v = velocities[1] + case["cfg_scale"] * (velocities[0] - velocities[1])
            v = v * (velocities[0].norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True))
        latent = latent + (sigmas[i + 1] - sigmas[i]) * unpack(pipe, v, case)
    return latent


def positions(latents, text_tokens):
    def of_picture(frame, z):
        rows, columns = z.shape[2] // 2, z.shape[3] // 2
        y, x = torch.meshgrid(torch.arange(rows) - (rows - rows // 2), torch.arange(columns) - (columns - columns // 2), indexing="ij")
        return torch.stack([torch.full_like(y, frame), y, x], dim=-1).reshape(-1, 3)

    most = max(side // 2 for _, rows, columns in shapes(latents)[0] for side in (rows, columns))
    return torch.cat([(most + torch.arange(text_tokens))[:, None].expand(-1, 3)] + [of_picture(i, z) for i, z in enumerate(latents)])


@torch.no_grad()
def block_references(pipe, case, references):
    """Records the last two blocks in a complete forward pass, after case 0's first step, with the first text
    tokens."""
    model, out = pipe.transformer, {}
    known = of_case(references, 0)
    latents = [known[LATER], *reference_latents(case, known)]
    hidden, t = known["hidden.cond"][:BLOCK_TEXT], known["timesteps"][1:2] / 1000
    last, drawn, kept = len(model.transformer_blocks) - 1, case["image_tokens"], {}

    def keep_block(name):
        def hook(_module, _args, kwargs, result):
            kept[f"{name}.in"] = torch.cat([kwargs["encoder_hidden_states"], kwargs["hidden_states"]], 1)
            kept[f"{name}.out"] = torch.cat(result, 1) if name == "block.dual" else result[1][:, :drawn]
        return hook

    hooks = [model.transformer_blocks[i].register_forward_hook(keep_block(name), with_kwargs=True)
             for name, i in (("block.dual", last - 1), ("block.last", last))]
    hooks.append(model.time_text_embed.register_forward_hook(lambda _module, _args, result: kept.update({"block.temb": result.clone()})))
    with Watch({"block.final": model.proj_out, "block.norm_out": model.norm_out, "embed.image": model.img_in, "embed.text": model.txt_in,
                "embed.text_norm": model.txt_norm}) as watch:
        velocity = velocity_of(pipe, latents, t, hidden)
    for hook in hooks:
        hook.remove()
    seen, temb = watch.tensors, kept["block.temb"]
    out |= kept | {"block.t": t, "block.velocity": velocity[:, :drawn]}
    out["block.final.in"], out["block.final.out"] = seen["block.norm_out.in"][:, :drawn], seen["block.final.out"][:, :drawn]
    small = seen["block.norm_out.in"][:, :8] * 0.01
    out["block.final_small.in"], out["block.final_small.out"] = small, model.proj_out(model.norm_out(small, temb[:1]))
    out["embed.image.in"], out["embed.image.out"] = seen["embed.image.in"], seen["embed.image.out"]
    out["embed.text.in"], out["embed.text.out"] = seen["embed.text_norm.in"], seen["embed.text.out"]
    pictures, text = model.pos_embed(shapes(latents), max_txt_seq_len=BLOCK_TEXT, device=torch.device("cpu"))
    out["rope"] = torch.view_as_real(torch.cat([text, pictures]))
    out["rope.ids"] = positions(latents, BLOCK_TEXT).to(torch.int32)
    check_rope(model, out)
    return out, {"block": dict(text_tokens=BLOCK_TEXT, dual=last - 1, last=last)}


def check_rope(model, out):
    """Checks that the rope table corresponds to these positions."""
    angles = torch.cat([axis[:, None] / 10000 ** (torch.arange(0, d, 2) / d) for axis, d in
                        zip(out["rope.ids"].double().unbind(-1), model.pos_embed.axes_dim)], dim=-1)
    assert torch.allclose(torch.stack([angles.cos(), angles.sin()], dim=-1), out["rope"].double(), atol=1e-4)


@torch.no_grad()
def text_references(pipe, case, references):
    """Records a middle layer of the language model on case 0's tokens, including images, and the positions."""
    model, known, out = pipe.text_encoder.model, of_case(references, 0), {}
    layer = (len(model.language_model.layers) - 1) // 2
    kept = {}

    def keep(_module, _args, kwargs):
        kept.update(embedding=kwargs["inputs_embeds"][0].clone(), positions=kwargs["position_ids"])

    hook = model.language_model.register_forward_pre_hook(keep, with_kwargs=True)
    with Watch({"block.language": model.language_model.layers[layer]}) as watch:
        ids, hidden = encode(pipe, case["prompt"], [Image.fromarray(known[name].numpy()) for name in sorted(known) if name.startswith("picture.reference")],
                             case["max_sequence_length"])[0].values()
    hook.remove()
    assert torch.equal(ids, known["ids.cond"]) and torch.equal(hidden, known["hidden.cond"])
    out |= watch.tensors
    out["text.embedding"] = kept["embedding"]
    out["text.positions"] = model_positions(kept["positions"], len(ids))
    cos, sin = model.language_model.rotary_emb(kept["embedding"], out["text.positions"][:, None].long())
    half = cos.shape[-1] // 2
    out["text.rope"] = torch.stack([cos[0, :, :half], sin[0, :, :half]], dim=-1)
    return out, {"block.language": dict(layer=layer, name=f"layers.{layer}", tokens=len(ids))}


def model_positions(given_positions, n):
    """Returns positions [3, n]: frame, row and column."""
    if given_positions is None:
        return torch.arange(n, dtype=torch.int32).expand(3, -1)
    return given_positions[-3:, 0].to(torch.int32)


def walked(tower, grid, rows):
    """Reorders rows from the image processor's order to the tower's: window by window."""
    order, _ = get_vision_window_index(grid, spatial_merge_size=2, window_size=tower.window_size, patch_size=14)
    return rows.reshape(len(order), 4, -1)[order].reshape(4 * len(order), -1)


@torch.no_grad()
def tower_references(pipe, case, references):
    """Records parts of the vision tower on case 0's first image, in the tower's order: window by window."""
    tower, out = pipe.text_encoder.model.visual, {}
    picture = Image.fromarray(of_case(references, 0)["picture.reference_000"].numpy())
    seen = pipe.processor.image_processor(images=[next(resized(pipe, [picture]))[0]], return_tensors="pt")
    grid = seen["image_grid_thw"]
    full = tower.config.fullatt_block_indexes[0]
    blocks = {"block.tower": next(i for i in range(len(tower.blocks)) if i not in tower.config.fullatt_block_indexes), "block.tower_full": full}
    kept = {}
    hook = tower.rotary_pos_emb.register_forward_hook(lambda _m, _a, result: kept.update(rope=result))
    with Watch({name: tower.blocks[i] for name, i in blocks.items()} | {"tower.patches": tower.patch_embed, "tower.merger": tower.merger}) as watch:
        tower(seen["pixel_values"], grid)
    hook.remove()
    out |= {name: value for name, value in watch.tensors.items() if not name.startswith("tower.patches")}
    out["tower.patches.out"] = walked(tower, grid, watch.tensors["tower.patches.out"])
    out["tower.positions"] = walked(tower, grid, get_vision_position_ids(grid, 2).T).to(torch.int32)
    half = kept["rope"][0].shape[-1] // 2
    out["tower.rope"] = torch.stack([walked(tower, grid, table)[:, :half] for table in kept["rope"]], dim=-1)
    rows = {name: value[None] if value.dim() == 2 and name.startswith(("block.", "tower.merger", "tower.patches")) else value for name, value in out.items()}
    return rows, {name: dict(layer=i) for name, i in blocks.items()} | {"tower": dict(grid=grid[0, 1:].tolist())}


def encoder_references(pipe, spec):
    """Records encoder reference tensors; module paths differ from those of AutoencoderKL."""
    blocks = pipe.vae.encoder.down_blocks
    kinds = [type(block).__name__ for block in blocks]
    resnet = next(i for i, block in enumerate(blocks) if hasattr(block, "conv1") and block.in_dim != block.out_dim)
    return autoencoders.encoder_references(pipe, spec, f"down_blocks.{resnet}", f"down_blocks.{kinds.index('QwenImageResample')}")


def decoder_references(pipe, spec):
    shortcut = next(name for name, m in pipe.vae.decoder.named_modules() if hasattr(m, "conv1") and m.in_dim != m.out_dim)
    return autoencoders.decoder_references(pipe, spec, shortcut)


def schedule_references(pipe):
    """Returns the schedule alone, for several lengths and token counts."""
    out, scheduler = {}, pipe.scheduler
    for steps in SCHEDULE_STEPS:
        for tokens in SCHEDULE_TOKENS:
            config = scheduler.config
            mu = calculate_shift(tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
            if steps == 1 and config.shift_terminal:
                continue  # a single step's sigma is 1 and cannot be stretched to shift_terminal
            fresh = FlowMatchEulerDiscreteScheduler.from_config(config)
            fresh.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
            name = f"schedule_tokens.{steps}.{tokens}"
            out[f"{name}.sigmas"], out[f"{name}.timesteps"] = fresh.sigmas.clone(), fresh.timesteps.clone()
    assert all(math.isfinite(v) for t in out.values() for v in t.tolist())
    return out
