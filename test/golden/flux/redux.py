"""Flux.1 Redux: a SigLIP vision encoder and an embedder, which add rows of images to the prompt.

A fixture whose form has "redux" has the folder redux/ with the layout of FLUX.1-Redux-dev.  A case's "redux" lists sizes of its
images, "redux_strength" the factor of the prompt; its prompt may be null: then the reference takes zeros.  The reference tensors
of such a case have hidden.cond and pooled.cond as FluxPriorReduxPipeline returns them, and
  picture.redux_000 ...      u8 [H, W, 3]
  pixels.redux_000 ...       [3, h, w], input of SigLIP, without the pixels behind the last whole patch
  seen.redux_000 ...         [patches, width], last_hidden_state
  seen.redux_rows_000 ...    [patches, t5_hidden], the embedder's output
Block reference tensors: vision.patches, block.vision, vision.norm of case 0's first image, {in,out}.
"""

import os

import numpy as np
import torch
from diffusers import FluxPriorReduxPipeline
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from PIL import Image
from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

import inputs
import weights
from files import DTYPE_NAMES, cast, write_json, write_model, write_weights
from watch import Watch


def write(spec, folder):
    """Writes the folders of vision encoder, image processor and embedder, if the form has them."""
    about = spec.form.get("redux")
    if not about:
        return
    config = SiglipVisionConfig(
        hidden_size=about["width"], intermediate_size=about["ffn"], num_hidden_layers=about["layers"],
        num_attention_heads=about["heads"], image_size=about["side"], patch_size=about["patch"])
    tower = weights.randomize(SiglipVisionModel(config), weights.SIGLIP, f"{spec.seed} redux vision")
    path = os.path.join(folder, "image_encoder")
    os.makedirs(path)
    # Published files have the prefix, and tensors of the pooling head.
    write_weights(path, "model", {f"vision_model.{name.removeprefix('vision_model.')}": t for name, t in cast(tower, about["dtype"]).items()}, 1)
    write_json(os.path.join(path, "config.json"), {
        "architectures": ["SiglipVisionModel"], "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": about["width"],
        "image_size": about["side"], "intermediate_size": about["ffn"], "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
        "num_attention_heads": about["heads"], "num_channels": 3, "num_hidden_layers": about["layers"], "patch_size": about["patch"],
        "torch_dtype": DTYPE_NAMES[about["dtype"]], "transformers_version": "4.46.2"})
    embedder = ReduxImageEncoder(redux_dim=about["width"], txt_in_features=spec.t5_hidden)
    write_model(os.path.join(folder, "image_embedder"), weights.randomize(embedder, weights.REDUX, f"{spec.seed} redux"), "bf16")
    os.makedirs(os.path.join(folder, "feature_extractor"))
    write_json(os.path.join(folder, "feature_extractor", "preprocessor_config.json"), {
        "do_convert_rgb": None, "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SiglipImageProcessor", "image_std": [0.5, 0.5, 0.5], "processor_class": "SiglipProcessor", "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"height": about["side"], "width": about["side"]}})


def load(folder, pipe):
    """Loads the reference with the text encoders of a pipeline; None if the fixture has no Redux."""
    if not os.path.isdir(folder):
        return None
    import torchvision  # without it transformers resizes as Pillow does
    assert torchvision.__version__
    tower = SiglipVisionModel.from_pretrained(os.path.join(folder, "image_encoder"), dtype=torch.float32)
    embedder = ReduxImageEncoder.from_pretrained(os.path.join(folder, "image_embedder"), torch_dtype=torch.float32)
    prior = FluxPriorReduxPipeline(
        image_encoder=tower, image_embedder=embedder,
        feature_extractor=SiglipImageProcessor.from_pretrained(os.path.join(folder, "feature_extractor")),
        text_encoder=pipe.text_encoder, tokenizer=pipe.tokenizer, text_encoder_2=pipe.text_encoder_2, tokenizer_2=pipe.tokenizer_2)
    for model in (tower, embedder):
        model.requires_grad_(False).eval()
    return prior


def of_case(wanted):
    """Returns the keys that a case with images has in addition."""
    return {key: wanted[key] for key in ("redux", "redux_strength") if key in wanted}


def pictures_of(spec, case):
    rng = np.random.default_rng([spec.seed, case["index"], 2])
    return {f"redux_{i:03}": inputs.picture_of(rng, *size) for i, size in enumerate(case.get("redux", []))}


@torch.no_grad()
def encode(pipe, case, pictures):
    """Returns prompt_embeds and pooled_prompt_embeds of a case with images (arrays by name)."""
    images = [Image.fromarray(np.asarray(pictures[name])) for name in sorted(pictures) if name.startswith("redux_")]
    text, n = dict(prompt=case["prompt"]), len(images)
    if case["prompt"] is None:
        width, pooled = pipe.text_encoder_2.config.d_model, pipe.text_encoder.config.hidden_size
        text = dict(prompt_embeds=torch.zeros(n, case["max_sequence_length"], width), pooled_prompt_embeds=torch.zeros(n, pooled))
    strength = case["redux_strength"]
    return pipe.redux(image=images, prompt_embeds_scale=strength, pooled_prompt_embeds_scale=strength, return_dict=False, **text)


@torch.no_grad()
def references(pipe, case, pictures):
    """Returns the tensors of a case with images."""
    tower = pipe.redux.image_encoder
    modules = dict(tower=tower, rows=pipe.redux.image_embedder)
    pixels, seen, rows, patch = [], [], [], tower.config.patch_size
    hooks = [modules["tower"].register_forward_pre_hook(lambda _m, _a, kw: pixels.append(kw["pixel_values"].clone()), with_kwargs=True),
             modules["tower"].register_forward_hook(lambda _m, _a, out: seen.append(out.last_hidden_state.clone())),
             modules["rows"].register_forward_hook(lambda _m, _a, out: rows.append(out.image_embeds.clone()))]
    hidden, pooled = encode(pipe, case, pictures)
    for hook in hooks:
        hook.remove()
    read = tower.config.image_size // patch * patch
    out = {"hidden.cond": hidden[0], "pooled.cond": pooled[0]}
    for i in range(len(seen[0])):
        out[f"pixels.redux_{i:03}"] = pixels[0][i, :, :read, :read].clone()
        out[f"seen.redux_{i:03}"], out[f"seen.redux_rows_{i:03}"] = seen[0][i], rows[0][i]
    return out


@torch.no_grad()
def block_references(pipe, pictures):
    """Records embeddings, a middle layer and the norm of the vision encoder on the first image of case 0."""
    model = pipe.redux.image_encoder
    inner = getattr(model, "vision_model", model)
    layer = len(inner.encoder.layers) // 2
    pixels = pipe.redux.feature_extractor.preprocess(images=[Image.fromarray(pictures["redux_000"])], return_tensors="pt").pixel_values
    with Watch({"block.vision": inner.encoder.layers[layer], "vision.patches": inner.embeddings, "vision.norm": inner.post_layernorm}) as watch:
        model(pixels)
    return {k: v for k, v in watch.tensors.items() if k != "vision.patches.in"}, {"block.vision": dict(layer=layer)}
