"""Writes the model folder of a UNet pipeline in the layouts of published files."""

import os

from diffusers import UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

import folder as zimage_folder
import weights
from files import DTYPE_NAMES, begin_model, cast, write_json, write_model, write_weights
from flux import tokens

# Kind and subfolder of each text encoder; OpenCLIP pads with token 0.
CLIPS = {
    "clip_l": dict(kind=CLIPTextModel, act="quick_gelu", pad=tokens.CLIP_LAST),
    "clip_h": dict(kind=CLIPTextModel, act="gelu", pad="!"),
    "clip_g": dict(kind=CLIPTextModelWithProjection, act="gelu", pad="!"),
}


def places(spec):
    """Returns the folder suffix of each text encoder: the second of two, and the refiner's only one, end in _2."""
    return {name: "_2" if name == "clip_g" else "" for name in spec.form["encoders"]}


def unet(spec):
    attends = [layers > 0 for _, layers, _ in spec.levels]
    heads = [heads for _, _, heads in spec.levels]
    more = {}
    if spec.form["vector"]:
        width = spec.form["vector"] * spec.time_width + spec.clips["clip_g"][0]
        more = dict(addition_embed_type="text_time", addition_time_embed_dim=spec.time_width, projection_class_embeddings_input_dim=width)
    model = UNet2DConditionModel(
        in_channels=spec.form["in_channels"], block_out_channels=[channels for channels, _, _ in spec.levels], norm_num_groups=spec.groups,
        down_block_types=["CrossAttnDownBlock2D" if a else "DownBlock2D" for a in attends],
        up_block_types=["CrossAttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)],
        transformer_layers_per_block=_layers(spec), cross_attention_dim=spec.context, sample_size=64,
        attention_head_dim=heads if spec.form["linear"] else heads[0], use_linear_projection=spec.form["linear"],
        upcast_attention=spec.name == "sd2", **more)
    return weights.randomize(model, weights.UNET, f"{spec.seed} {spec.name} unet")


def _layers(spec):
    """Returns transformer_layers_per_block as published: one number if all are equal; a level without transformers
    has any number."""
    layers = [layers or 1 for _, layers, _ in spec.levels]
    if spec.levels[-1][1] == 0:  # the last entry is then the mid block's
        layers[-1] = layers[-2]
    return layers if len(set(layers)) > 1 else layers[0]


def clip(spec, name, about, folder, vocabulary):
    """Creates a text encoder of a kind in CLIPS, with the spec's dimensions of that name."""
    hidden, heads, layers, ffn = spec.clips[name]
    config = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads,
        max_position_embeddings=77, hidden_act=about["act"], projection_dim=hidden)
    model = weights.randomize(about["kind"](config), weights.CLIP, f"{spec.seed} {name}")
    dtype = spec.form["text_dtype"]
    # Layout of published files: prefix "text_model." except for the projection, and an eos_token_id that is not the
    # tokenizer's.
    os.makedirs(folder)
    tensors = {(n if n.startswith(("text_model.", "text_projection.")) else f"text_model.{n}"): t for n, t in cast(model, dtype).items()}
    write_weights(folder, "model", tensors, 1)
    write_json(os.path.join(folder, "config.json"), {
        "architectures": [about["kind"].__name__], "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0, "eos_token_id": 2,
        "hidden_act": about["act"], "hidden_size": hidden, "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": ffn,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 77, "model_type": "clip_text_model", "num_attention_heads": heads,
        "num_hidden_layers": layers, "pad_token_id": 1, "projection_dim": hidden, "torch_dtype": DTYPE_NAMES[dtype],
        "transformers_version": "4.32.0.dev0", "vocab_size": vocabulary})


def _scheduler(spec, folder):
    os.makedirs(folder)
    about = dict(spec.form["scheduler"])
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": about.pop("_class_name"), "_diffusers_version": "0.19.0.dev0", "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "beta_start": 0.00085, "num_train_timesteps": 1000, "trained_betas": None, **about})


def _index(spec, scheduler):
    """Returns model_index.json with every component of the pipeline's class; absent ones are [null, null]."""
    used = places(spec).items()
    out = {"scheduler": ["diffusers", scheduler], "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]}
    if spec.form["vector"]:
        out |= {f"{part}{place}": [None, None] for part in ("text_encoder", "tokenizer") for place in ("", "_2")}
    else:
        out |= {"feature_extractor": [None, None], "safety_checker": [None, None], "requires_safety_checker": False}
    for name, place in used:
        out |= {f"text_encoder{place}": ["transformers", CLIPS[name]["kind"].__name__], f"tokenizer{place}": ["transformers", "CLIPTokenizer"]}
    return out | spec.form["index"]


def write(spec, folder, scheduler):
    begin_model(folder, spec.form)
    write_model(os.path.join(folder, "unet"), unet(spec), spec.form["unet_dtype"])
    own = [(name, place) for name, place in places(spec).items() if f"text_encoder{place}" not in spec.form["shares"]]
    for name, place in own:
        vocab, pairs = tokens.clip(spec.merges)
        clip(spec, name, CLIPS[name], os.path.join(folder, f"text_encoder{place}"), len(vocab))
        tokens.save_clip(vocab, pairs, os.path.join(folder, f"tokenizer{place}"), spec.form["clip_json"] and place == "", CLIPS[name]["pad"])
    if "vae" not in spec.form["shares"]:
        zimage_folder.vae(spec, os.path.join(folder, "vae"))
    if "scheduler" not in spec.form["shares"]:
        _scheduler(spec, os.path.join(folder, "scheduler"))
    index = {"_class_name": spec.form["pipeline"], "_diffusers_version": "0.19.0.dev0", **dict(sorted(_index(spec, scheduler).items()))}
    write_json(os.path.join(folder, "model_index.json"), index)
