"""Writes a Flux model folder in the layouts of published files."""

import os

from diffusers import FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

import folder as zimage_folder
import weights
from files import DTYPE_NAMES, DTYPES, begin_model, cast, write_json, write_model, write_weights

from . import redux, tokens

CLASSES = {
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def _transformer(spec, folder):
    packed = 4 * spec.channels
    extra = packed + 4 * spec.factor**2 if spec.form["fills"] else packed if spec.form.get("controlled") else 0
    model = FluxTransformer2DModel(
        in_channels=packed + extra, out_channels=packed if extra else None, num_layers=spec.doubles, num_single_layers=spec.singles,
        attention_head_dim=spec.head_dim, num_attention_heads=spec.heads, joint_attention_dim=spec.t5_hidden,
        pooled_projection_dim=spec.clip_hidden, guidance_embeds=spec.form["guided"], axes_dims_rope=spec.axes)
    weights.randomize(model, weights.FLUX, f"{spec.seed} transformer")
    write_model(folder, model, spec.form["transformer_dtype"], spec.form["cast"], spec.form["transformer_shards"])


def _clip(spec, folder, vocabulary):
    config = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=spec.clip_hidden, intermediate_size=spec.clip_ffn, num_hidden_layers=spec.clip_layers,
        num_attention_heads=spec.clip_heads, max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=spec.clip_hidden,
        bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1, pad_token_id=vocabulary - 1)
    model = weights.randomize(CLIPTextModel(config), weights.CLIP, f"{spec.seed} clip")
    dtype = spec.form["clip_dtype"]
    if not spec.form["clip_released"]:
        model.to(DTYPES[dtype]).save_pretrained(folder)
        return
    # Layout of published CLIP files: prefix "text_model.", and an eos_token_id that is not the tokenizer's.
    os.makedirs(folder)
    tensors = {f"text_model.{name.removeprefix('text_model.')}": t for name, t in cast(model, dtype).items()}
    write_weights(folder, "model", tensors, 1)
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["CLIPTextModel"], "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0, "eos_token_id": 2,
        "hidden_act": "quick_gelu", "hidden_size": spec.clip_hidden, "initializer_factor": 1.0, "initializer_range": 0.02,
        "intermediate_size": spec.clip_ffn, "layer_norm_eps": 1e-05, "max_position_embeddings": 77, "model_type": "clip_text_model",
        "num_attention_heads": spec.clip_heads, "num_hidden_layers": spec.clip_layers, "pad_token_id": 1,
        "projection_dim": spec.clip_hidden, "torch_dtype": DTYPE_NAMES[dtype], "transformers_version": "4.43.3", "vocab_size": vocabulary})


def t5(spec, folder, vocabulary):
    config = T5Config(
        # published embeddings also have 28 more rows than the tokenizer has ids
        vocab_size=vocabulary + 28, d_model=spec.t5_hidden, d_kv=spec.t5_head_dim, d_ff=spec.t5_ffn, num_layers=spec.t5_layers,
        num_heads=spec.t5_heads, feed_forward_proj="gated-gelu", is_encoder_decoder=True, tie_word_embeddings=False, dropout_rate=0.1)
    model = weights.randomize(T5EncoderModel(config), weights.T5, f"{spec.seed} t5")
    os.makedirs(folder)
    tensors = cast(model, spec.form["t5_dtype"])
    tensors.pop("encoder.embed_tokens.weight", None)  # the embedding is tied to shared.weight
    write_weights(folder, "model", tensors, spec.form["t5_shards"])
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["T5EncoderModel"], "classifier_dropout": 0.0, "d_ff": spec.t5_ffn, "d_kv": spec.t5_head_dim, "d_model": spec.t5_hidden,
        "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True, "layer_norm_epsilon": 1e-06, "model_type": "t5",
        "num_decoder_layers": spec.t5_layers, "num_heads": spec.t5_heads, "num_layers": spec.t5_layers, "output_past": True, "pad_token_id": 0,
        "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
        "torch_dtype": DTYPE_NAMES[spec.form["t5_dtype"]], "transformers_version": "4.43.3", "use_cache": True, "vocab_size": config.vocab_size})


def _scheduler(spec, folder):
    os.makedirs(folder)
    write_json(os.path.join(folder, "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.30.0.dev0", "base_image_seq_len": 256, "base_shift": 0.5,
        "max_image_seq_len": 4096, "max_shift": 1.15, "num_train_timesteps": 1000, "shift": spec.form["scheduler_shift"],
        "use_dynamic_shifting": spec.form["dynamic_shift"]})


def write(spec, folder):
    """Writes the whole model folder."""
    begin_model(folder, spec.form)
    for part in sorted(set(CLASSES) - set(spec.form["shares"])):
        path = os.path.join(folder, part)
        if part == "transformer":
            _transformer(spec, path)
        elif part == "vae":
            zimage_folder.vae(spec, path)
        elif part == "scheduler":
            _scheduler(spec, path)
        elif part == "text_encoder":
            vocab, pairs = tokens.clip(spec.merges)
            _clip(spec, path, len(vocab))
            tokens.save_clip(vocab, pairs, os.path.join(folder, "tokenizer"), spec.form["clip_json"])
        elif part == "text_encoder_2":
            model = tokens.t5()
            t5(spec, path, tokens.t5_size(model))
            tokens.save_t5(model, os.path.join(folder, "tokenizer_2"), spec.form["t5_json"])
    redux.write(spec, os.path.join(os.path.dirname(folder), "redux"))
    write_json(os.path.join(folder, "model_index.json"),
               {"_class_name": spec.form["pipeline"], "_diffusers_version": "0.30.0.dev0", **CLASSES})
