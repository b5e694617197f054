"""Components of the demo model: tokenizer, Qwen3 text encoder, Z-Image transformer; and a batched forward pass.

diffusers runs Z-Image on lists of sequences of different lengths. Here every caption is padded to 32 tokens and every
image to 64, so a batch needs no mask and runs at once. `python model.py` compares this forward pass with diffusers',
and the tokenizer with the pipeline's.
"""
import json
import os
import random

import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

import draw

CAPTION_TOKENS, IMAGE_TOKENS, CHANNELS, SHIFT = 32, 64, 16, 3.0
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}")


# --- tokenizer -------------------------------------------------------------------------------------------------------

def chat(prompt):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def save_tokenizer(folder):
    """Trains and saves a byte-level BPE tokenizer in Qwen2's file layout; every word of the grammar is one token."""
    rng = random.Random(3)
    corpus = [draw.caption(draw.random_scene(rng, two_groups=i % 2 == 1)) for i in range(4000)]
    corpus += draw.COLOURS * 50 + ["user\n", "assistant\n"] * 500
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=500, min_frequency=20, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json")
    tokenizer.model.save(folder)  # vocab.json and merges.txt
    added = {str(tokenizer.token_to_id(t)): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                             "single_word": False, "special": True} for t in SPECIAL}
    config = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None,
              "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
              "errors": "replace", "model_max_length": 512, "pad_token": "<|endoftext|>", "split_special_tokens": False,
              "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    with open(f"{folder}/tokenizer_config.json", "w") as out:
        json.dump(config, out, indent=2)


class Captions:
    """Converts prompts to padded rows of token ids."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.pad = self.tokenizer.token_to_id(SPECIAL[0])

    def __call__(self, prompts):
        """Returns ids (B, 32), is_pad (B, 32)."""
        ids = torch.full((len(prompts), CAPTION_TOKENS), self.pad)
        for row, encoding in zip(ids, self.tokenizer.encode_batch([chat(p) for p in prompts])):
            if len(encoding.ids) > CAPTION_TOKENS:
                raise ValueError(f"caption too long: {len(encoding.ids)} tokens, at most {CAPTION_TOKENS}")
            row[:len(encoding.ids)] = torch.tensor(encoding.ids)
        return ids, ids == self.pad


# --- the two networks ------------------------------------------------------------------------------------------------

def new_text_encoder(vocabulary, dim=128, layers=3):
    # The pipeline uses hidden_states[-2], so the last layer is in the files but unused.
    return Qwen3Model(Qwen3Config(
        vocab_size=vocabulary, hidden_size=dim, intermediate_size=2 * dim, num_hidden_layers=layers,
        num_attention_heads=dim // 32, num_key_value_heads=dim // 64, head_dim=32, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=True, pad_token_id=None,
        bos_token_id=None, eos_token_id=None))


def new_transformer(dim=128, layers=6, refiners=1, text_dim=128):
    return ZImageTransformer2DModel(
        in_channels=CHANNELS, dim=dim, n_layers=layers, n_refiner_layers=refiners, n_heads=dim // 32,
        n_kv_heads=dim // 32, cap_feat_dim=text_dim, axes_dims=[8, 12, 12], axes_lens=[640, 64, 64])


class Model(torch.nn.Module):
    def __init__(self, vocabulary, dim=128, layers=6, refiners=1):
        super().__init__()
        self.text = new_text_encoder(vocabulary)
        self.transformer = new_transformer(dim, layers, refiners)
        with torch.no_grad():
            # Embeddings far apart, gates at 0.3, output layer zero: the caption has an effect from step 1.
            torch.nn.init.normal_(self.text.embed_tokens.weight, std=.7)
            for block in [*self.transformer.noise_refiner, *self.transformer.layers]:
                torch.nn.init.normal_(block.adaLN_modulation[0].weight, std=.01)
                bias = block.adaLN_modulation[0].bias
                bias.zero_()
                bias[dim:2 * dim] = bias[3 * dim:] = .3
            torch.nn.init.normal_(self.transformer.cap_pad_token, std=.02)
            torch.nn.init.normal_(self.transformer.x_pad_token, std=.02)
            torch.nn.init.zeros_(self.transformer.all_final_layer["2-1"].linear.weight)
            torch.nn.init.zeros_(self.transformer.all_final_layer["2-1"].linear.bias)

    def forward(self, latents, sigma, ids, is_pad, rope):
        """Returns the prediction of latent - noise, (B, 16, Y, X). rope: `rope_tables(height, width)` of the latent size."""
        return denoise(self.transformer, latents, sigma, encode_text(self.text, ids), is_pad, rope)


def encode_text(text, ids):
    """Returns hidden_states[-2], (B, 32, C). Attention is causal, so padding does not change the caption's rows."""
    x = text.embed_tokens(ids)
    position = torch.arange(ids.shape[1], device=ids.device)[None]
    cos_sin = text.rotary_emb(x, position)
    for layer in text.layers[:-1]:
        x = layer(x, attention_mask=None, position_ids=position, position_embeddings=cos_sin)
    return x


def rope_tables(transformer, height, width):
    """Returns cos and sin, (96, 16), for [image tokens, caption tokens] of a latent of height x width."""
    rows, columns = height // 2, width // 2
    image = torch.zeros(IMAGE_TOKENS, 3, dtype=torch.long)  # padding tokens have position (0, 0, 0)
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    image[:rows * columns] = torch.stack([torch.full_like(x, CAPTION_TOKENS + 1), y, x], -1).flatten(0, 1)
    text = torch.zeros(CAPTION_TOKENS, 3, dtype=torch.long)
    text[:, 0] = torch.arange(1, CAPTION_TOKENS + 1)
    freqs = transformer.rope_embedder(torch.cat([image, text]))
    return freqs.real.contiguous(), freqs.imag.contiguous()


def norm(x, module):
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.eps)


def rotate(x, cos, sin):
    # The result is de-interleaved. q and k are permuted alike, so q k^T is unchanged.
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def block_forward(block, x, cos, sin, modulation=None):
    """Forward pass of a ZImageTransformerBlock. modulation: (scale, gate, scale, gate), each (B, 1, C), or None."""
    scale_a, gate_a, scale_f, gate_f = modulation or (1, 1, 1, 1)
    attention = block.attention
    h = norm(x, block.attention_norm1) * scale_a
    weight = torch.cat([attention.to_q.weight, attention.to_k.weight, attention.to_v.weight])
    q, k, v = F.linear(h, weight).unflatten(-1, (3, attention.heads, -1)).unbind(2)
    q, k = rotate(norm(q, attention.norm_q), cos, sin), rotate(norm(k, attention.norm_k), cos, sin)
    # Not fused: the backward pass of fused bf16 attention takes three times as long on the CPU.
    q, k, v = (a.transpose(1, 2) for a in (q, k, v))
    h = ((q @ k.mT).float() * q.shape[-1] ** -.5).softmax(-1).to(v.dtype) @ v
    h = F.linear(h.transpose(1, 2).flatten(2), attention.to_out[0].weight)
    x = x + gate_a * norm(h, block.attention_norm2)
    h = norm(x, block.ffn_norm1) * scale_f
    gate, up = F.linear(h, torch.cat([block.feed_forward.w1.weight, block.feed_forward.w3.weight])).chunk(2, -1)
    return x + gate_f * norm(F.linear(F.silu(gate) * up, block.feed_forward.w2.weight), block.ffn_norm2)


def modulated(block, x, cos, sin, time):
    scale_a, gate_a, scale_f, gate_f = block.adaLN_modulation(time)[:, None].chunk(4, -1)
    return block_forward(block, x, cos, sin, (1 + scale_a, gate_a.tanh(), 1 + scale_f, gate_f.tanh()))


def to_patches(x):
    """(B, 16, Y, X) to (B, 64, 64): 2x2 patches as (row, column, channel), padded with zeros to 64 tokens."""
    batch, _, height, width = x.shape
    x = x.reshape(batch, CHANNELS, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, 64)
    return F.pad(x, (0, 0, 0, IMAGE_TOKENS - x.shape[1]))


def from_patches(x, height, width):
    x = x[:, :height // 2 * (width // 2)].reshape(-1, height // 2, width // 2, 2, 2, CHANNELS)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, CHANNELS, height, width)


def denoise(t, latents, sigma, text, is_pad, rope):
    """ZImageTransformer2DModel.forward for padded captions and images."""
    height, width = latents.shape[2:]
    is_image = torch.arange(IMAGE_TOKENS, device=latents.device) < height // 2 * (width // 2)
    return from_patches(denoise_patches(t, to_patches(latents), sigma, text, is_pad, is_image, *rope), height, width)


def denoise_patches(t, patches, sigma, text, is_pad, is_image, cos, sin, modulated=modulated, plain=block_forward):
    """denoise on patches. All image sizes have the same shapes here, so torch.compile compiles each block once."""
    time = t.t_embedder((1 - sigma) * t.t_scale)
    x = torch.where(is_image[:, None], t.all_x_embedder["2-1"](patches), t.x_pad_token)
    for block in t.noise_refiner:
        x = modulated(block, x, cos[:IMAGE_TOKENS], sin[:IMAGE_TOKENS], time)
    c = t.cap_embedder[1](norm(text, t.cap_embedder[0]))
    c = torch.where(is_pad[..., None], t.cap_pad_token, c)
    for block in t.context_refiner:
        c = plain(block, c, cos[IMAGE_TOKENS:], sin[IMAGE_TOKENS:])
    x = torch.cat([x, c], 1)
    for block in t.layers:
        x = modulated(block, x, cos, sin, time)
    final = t.all_final_layer["2-1"]
    scale = 1 + final.adaLN_modulation(time)[:, None]
    return final.linear(F.layer_norm(x[:, :IMAGE_TOKENS], (x.shape[-1],), eps=1e-6) * scale)


# --- sampling and files ----------------------------------------------------------------------------------------------

def sigmas(steps, shift=SHIFT):
    """The pipeline's sigmas: linspace(1, 1/n, n), shifted, then 0."""
    s = torch.linspace(1, 1 / steps, steps)
    return torch.cat([shift * s / (1 + (shift - 1) * s), torch.zeros(1)])


@torch.no_grad()
def sample(model, captions, prompts, noise, steps=12, cfg_scale=3.0):
    """Denoises to latents (B, 16, Y, X); guidance is uncond + cfg_scale * (cond - uncond)."""
    device = noise.device
    ids, is_pad = (a.to(device) for a in captions(list(prompts) + [""] * len(prompts)))
    rope = [a.to(device) for a in rope_tables(model.transformer, *noise.shape[2:])]
    text = encode_text(model.text, ids)
    x, levels = noise, sigmas(steps).to(device)
    for now, after in zip(levels[:-1], levels[1:]):
        out = denoise(model.transformer, torch.cat([x, x]), now.expand(2 * len(x)), text, is_pad, rope)
        with_caption, without = out.chunk(2)
        velocity = without + cfg_scale * (with_caption - without)
        x = x + (now - after) * velocity
    return x


def save_pipeline(model, vae, tokenizer_folder, out, dtype=torch.bfloat16):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    pipe = ZImagePipeline(FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=SHIFT,
                                                          use_dynamic_shifting=False),
                          vae, model.text, tokenizer, model.transformer)
    pipe.to(dtype).save_pretrained(out)
    save_tokenizer_files(tokenizer_folder, f"{out}/tokenizer")
    edit_json(f"{out}/vae/config.json", lambda config: config.pop("_name_or_path", None))  # remove a local path
    # transformers before version 5 expects rope_theta at the top level.
    edit_json(f"{out}/text_encoder/config.json",
              lambda config: config.update(rope_theta=config["rope_parameters"]["rope_theta"]))


def edit_json(path, edit):
    with open(path) as file:
        config = json.load(file)
    edit(config)
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


def save_tokenizer_files(source, out):
    """Copies the tokenizer files unchanged, independent of the installed transformers version."""
    for name in os.listdir(out):
        os.remove(f"{out}/{name}")
    for name in os.listdir(source):
        with open(f"{source}/{name}") as src, open(f"{out}/{name}", "w") as dst:
            dst.write(src.read())


def check(tokenizer_folder="../../build/demo_train/tokenizer"):
    torch.manual_seed(0)
    save_tokenizer(tokenizer_folder)
    captions = Captions(tokenizer_folder)
    vocabulary = captions.tokenizer.get_vocab_size()
    words = [w for s in draw.all_tuples() for w in draw.caption(s).split()]
    split = {w for w in set(words[4:]) if len(captions.tokenizer.encode(" " + w).ids) > 1}
    print("vocabulary", vocabulary, "words of more than one token:", split)
    model = Model(vocabulary)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * .05)
    print("parameters: text", sum(p.numel() for p in model.text.parameters()), "transformer",
          sum(p.numel() for p in model.transformer.parameters()))
    prompts = ["a large red circle on the left on a white background", "", "red"]
    hf = AutoTokenizer.from_pretrained(tokenizer_folder)
    features = ZImagePipeline._encode_prompt(
        type("Pipe", (), {"tokenizer": hf, "text_encoder": model.text, "_execution_device": "cpu"})(), list(prompts))
    ids, is_pad = captions(prompts)
    text = encode_text(model.text, ids)
    for i, f in enumerate(features):
        assert len(f) == (~is_pad[i]).sum()
        print("text features differ by", (text[i][:len(f)] - f).abs().max().item(), "of", f.abs().max().item())
    for height, width in [(16, 16), (12, 20), (20, 12)]:
        latents, sigma = torch.randn(3, CHANNELS, height, width), torch.rand(3)
        ours = model(latents, sigma, ids, is_pad, rope_tables(model.transformer, height, width))
        theirs = torch.stack(model.transformer(list(latents[:, :, None]), 1 - sigma, features, return_dict=False)[0])
        print("forward differs by", (ours - theirs[:, :, 0]).abs().max().item(), "of", theirs.abs().max().item())


if __name__ == "__main__":
    with torch.no_grad():
        check()
