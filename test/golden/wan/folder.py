"""Writes a Wan model folder in the layouts of published files."""

import os

from diffusers import AutoencoderKLWan, WanTransformer3DModel, WanVACETransformer3DModel
from transformers import CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

import weights
from files import DTYPE_NAMES, begin_model, cast, write_json, write_model, write_weights
from flux import tokens

CLASSES = {
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
}
VISION = {"image_encoder": ["transformers", "CLIPVisionModel"], "image_processor": ["transformers", "CLIPImageProcessor"]}


def _transformer(spec, folder, name):
    form = spec.form
    seen = dict(image_dim=spec.vision_dim, added_kv_proj_dim=spec.dim) if form["image_encoder"] else {}
    if form["both"]:
        seen["pos_embed_seq_len"] = 2 * spec.vision_tokens
    if form["led"]:
        seen |= dict(vace_layers=form["led"], vace_in_channels=2 * spec.channels + spec.factor**2)
    model = (WanVACETransformer3DModel if form["led"] else WanTransformer3DModel)(
        num_attention_heads=spec.heads, attention_head_dim=spec.head_dim, in_channels=spec.in_channels, out_channels=spec.channels,
        text_dim=spec.text_hidden, freq_dim=spec.freq_dim, ffn_dim=spec.ffn, num_layers=spec.layers, **seen)
    weights.randomize(model, weights.WAN, f"{spec.seed} {spec.name} {name}")
    write_model(folder, model, form["transformer_dtype"], form["cast"], form["shards"])


def _text_encoder(spec, folder, vocabulary):
    config = UMT5Config(
        # published embeddings also have more rows than the tokenizer has ids
        vocab_size=vocabulary + 28, d_model=spec.text_hidden, d_kv=spec.text_head_dim, d_ff=spec.text_ffn, num_layers=spec.text_layers,
        num_heads=spec.text_heads, feed_forward_proj="gated-gelu")
    model = weights.randomize(UMT5EncoderModel(config), weights.T5, f"{spec.seed} {spec.name} text")
    dtype = spec.form["text_dtype"]
    os.makedirs(folder)
    tensors = cast(model, dtype)
    tensors.pop("encoder.embed_tokens.weight", None)
    write_weights(folder, "model", tensors, spec.form["text_shards"])
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["UMT5EncoderModel"], "classifier_dropout": 0.0, "d_ff": spec.text_ffn, "d_kv": spec.text_head_dim,
        "d_model": spec.text_hidden, "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True,
        "layer_norm_epsilon": 1e-06, "model_type": "umt5", "num_decoder_layers": spec.text_layers, "num_heads": spec.text_heads,
        "num_layers": spec.text_layers, "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32, "scalable_attention": True, "tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer",
        "torch_dtype": DTYPE_NAMES[dtype], "transformers_version": "4.48.0.dev0", "use_cache": True, "vocab_size": config.vocab_size})


def _vae(spec, folder):
    mean, deviation = spec.latents_format()
    patched = dict(is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16, scale_factor_temporal=4,
                   decoder_base_dim=spec.vae_decoder_base) if spec.form["residual"] else {}
    model = AutoencoderKLWan(base_dim=spec.vae_base, z_dim=spec.channels, num_res_blocks=spec.vae_layers, latents_mean=mean, latents_std=deviation,
                             **patched)
    weights.randomize(model, weights.VAE_WAN, f"{spec.seed} {spec.name} vae")
    write_model(folder, model, spec.form["vae_dtype"])


def _image_encoder(spec, folder):
    config = CLIPVisionConfig(
        hidden_size=spec.vision_dim, intermediate_size=spec.vision_ffn, num_hidden_layers=spec.vision_layers, projection_dim=17,
        num_attention_heads=spec.vision_heads, image_size=spec.vision_side, patch_size=14, hidden_act="gelu")
    model = weights.randomize(CLIPVisionModel(config), weights.CLIP_VISION, f"{spec.seed} {spec.name} vision")
    dtype = spec.form["vision_dtype"]
    os.makedirs(folder)
    write_weights(folder, "model", {f"vision_model.{name.removeprefix('vision_model.')}": t for name, t in cast(model, dtype).items()}, 1)
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["CLIPVisionModel"], "attention_dropout": 0.0, "dropout": 0.0, "hidden_act": "gelu", "hidden_size": spec.vision_dim,
        "image_size": spec.vision_side, "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": spec.vision_ffn,
        "layer_norm_eps": 1e-05, "model_type": "clip_vision_model", "num_attention_heads": spec.vision_heads, "num_channels": 3,
        "num_hidden_layers": spec.vision_layers, "patch_size": 14, "projection_dim": 17, "torch_dtype": DTYPE_NAMES[dtype],
        "transformers_version": "4.49.0"})


def _image_processor(spec, folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "preprocessor_config.json"), {
        "crop_size": {"height": spec.vision_side, "width": spec.vision_side}, "do_center_crop": True, "do_convert_rgb": True,
        "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "CLIPImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": spec.vision_side}})


def _scheduler(spec, folder):
    os.makedirs(folder)
    if spec.form["scheduler"] == "FlowMatchEulerDiscreteScheduler":
        config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.35.0.dev0", "num_train_timesteps": 1000,
                  "shift": spec.form["shift"], "use_dynamic_shifting": False}
    else:
        config = {
            "_class_name": "UniPCMultistepScheduler", "_diffusers_version": "0.33.0.dev0", "beta_end": 0.02, "beta_schedule": "linear",
            "beta_start": 0.0001, "disable_corrector": [], "dynamic_thresholding_ratio": 0.995, "final_sigmas_type": "zero",
            "flow_shift": spec.form["shift"], "lower_order_final": True, "num_train_timesteps": 1000, "predict_x0": True,
            "prediction_type": "flow_prediction", "rescale_betas_zero_snr": False, "sample_max_value": 1.0, "solver_order": 2, "solver_p": None,
            "solver_type": "bh2", "steps_offset": 0, "thresholding": False, "timestep_spacing": "linspace", "trained_betas": None,
            "use_beta_sigmas": False, "use_exponential_sigmas": False, "use_flow_sigmas": True, "use_karras_sigmas": False}
    write_json(os.path.join(folder, "scheduler_config.json"), config)


def _index(spec, folder):
    form = spec.form
    classes = CLASSES | {"scheduler": ["diffusers", form["scheduler"]]}
    if form["pictured"]:
        classes |= VISION if form["image_encoder"] else dict.fromkeys(VISION, [None, None])
    if not form["oldest"]:  # the oldest pipeline classes have no keys for a second expert
        classes |= {"boundary_ratio": form["boundary"], "transformer_2": classes["transformer"] if form["experts"] == 2 else [None, None]}
    if form["led"]:
        classes |= {"transformer": ["diffusers", "WanVACETransformer3DModel"]}
    if form["expand"]:
        classes |= {"expand_timesteps": True}
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": form["pipeline"], "_diffusers_version": "0.35.0.dev0", **dict(sorted(classes.items()))})


def write(spec, folder):
    form = spec.form
    begin_model(folder, form)
    own = [part for part in ("text_encoder", "vae", "image_encoder") if part not in form["shares"]]
    if "text_encoder" in own:
        model = tokens.t5(starts=True)
        tokens.save_t5(model, os.path.join(folder, "tokenizer"), form["tokenizer_json"])
        _text_encoder(spec, os.path.join(folder, "text_encoder"), tokens.t5_size(model))
    if "vae" in own:
        _vae(spec, os.path.join(folder, "vae"))
    if "image_encoder" in own and form["image_encoder"]:
        _image_encoder(spec, os.path.join(folder, "image_encoder"))
        _image_processor(spec, os.path.join(folder, "image_processor"))
    for name in ["transformer", "transformer_2"][:form["experts"]]:
        _transformer(spec, os.path.join(folder, name), name)
    _scheduler(spec, os.path.join(folder, "scheduler"))
    _index(spec, folder)
