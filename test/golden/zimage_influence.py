"""Measurement of the influence of Z-Image's tensors, for influence.py."""

import torch

import reference_tensors

PARTS = ["text_encoder", "transformer", "vae"]
MEASURE = "Relative L2 change of case 0's final latent (text encoder, transformer) or decoded picture (vae) when the tensor is zero."

# Tensors without effect on the result, with the reason.
UNUSED = [
    (r"^vae\.decoder\.mid_block\.attentions\.0\.to_k\.bias$", "a key bias adds the same to all scores of a query: softmax cancels it"),
    (r"^vae\.(encoder|quant_conv)\.", "the encoder is not used for text to image"),
    (r"^text_encoder\.layers\.{last}\.", "the hidden state used is the one before the last layer"),
    (r"^text_encoder\.norm\.", "the hidden state used is not normed"),
    (r"^text_encoder\.lm_head\.", "the head is never read"),
]


def unused(pipe):
    return [(pattern.replace("{last}", str(len(pipe.text_encoder.layers) - 1)), why) for pattern, why in UNUSED]


class Probe:
    """Repeats case 0 from the first stage that a change of a tensor affects."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case = pipe, expect["cases"][0]
        self.noise = tensors["case0.noise"]
        self.captions = [[tensors["case0.hidden.cond"]], [tensors["case0.hidden.uncond"]]]
        self.final, self.known = self.latent(), tensors["case0.latent"]
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

    def change(self, name):
        part = name.split(".")[0]
        if part == "vae":
            return reference_tensors.relative(self.decode(), self.picture)
        return reference_tensors.relative(self.latent(text=part == "text_encoder"), self.final)


def constants(pipe):
    """Returns (name, part, objects, attribute, wrong value) of constants and plausible mistakes."""
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
        ("final norm: eps 1e-5 for 1e-6 (only the reference tensor block.final_small shows it)", "transformer", [t.all_final_layer["2-1"].norm_final], "eps", 1e-5),
        ("t_scale 1 % off", "transformer", [t], "t_scale", t.t_scale * 1.01),
        ("rope theta 1 % off", "transformer", [t.rope_embedder], "theta", t.rope_embedder.theta * 1.01),
        (f"text norms: eps 1e-5 or 1e-6 for {text_eps:g}", "text_encoder", text_norms, "variance_epsilon", 1e-5 if text_eps == 1e-6 else 1e-6),
        (f"text query and key norms: eps 1e-5 or 1e-6 for {text_eps:g}", "text_encoder", text_heads, "variance_epsilon", 1e-5 if text_eps == 1e-6 else 1e-6),
        ("text rope frequencies 0.1 % off", "text_encoder", [text.rotary_emb], "inv_freq", text.rotary_emb.inv_freq * 1.001),
        ("decoder norms: eps 1e-5 for 1e-6", "vae", groups, "eps", 1e-5),
    ]
