"""The reference in float64, to distinguish rounding from errors.

The reference rounds to f32 in some places regardless of the module's dtype (norms, rotary positions, the scheduler's step);
these are replaced here.  There are two truths.  "f32 tables" keeps the tables that the reference computes in f32 (rotary
angles, cos and sin, the timestep's frequencies and angles, the text's inverse frequencies) and computes the rest in f64.
"f64 tables" computes the tables in f64, too.  The difference shows the effect of table rounding: it is no arithmetic error,
but an engine with more precise tables differs by it.
"""

import copy
import math
import types

import torch
import torch.nn.functional as F
from diffusers.models.normalization import RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding


def _rms(self, x):
    eps = self.eps if isinstance(self, RMSNorm) else self.variance_epsilon
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.weight


class _Attention:
    """diffusers' ZSingleStreamAttnProcessor without rounding to f32, for one image and no mask."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, freqs_cis=None):
        assert attention_mask is None
        q, k, v = (f(hidden_states).unflatten(-1, (attn.heads, -1)) for f in (attn.to_q, attn.to_k, attn.to_v))
        turn = freqs_cis.to(torch.complex128).unsqueeze(2)

        def rotate(x):
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(3)

        q, k = rotate(attn.norm_q(q)), rotate(attn.norm_k(k))
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
        return attn.to_out[0](out.transpose(1, 2).flatten(2))


def _text_rope(exact):
    def forward(self, x, position_ids):
        if not exact:
            cos, sin = Qwen3RotaryEmbedding.forward(self, x.float(), position_ids)
            return cos.double(), sin.double()
        dim = self.config.head_dim
        theta = self.config.rope_parameters["rope_theta"]
        freqs = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = (position_ids[..., None].double() * freqs).repeat(1, 1, 2)
        return angles.cos(), angles.sin()
    return forward


def _timesteps(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float64) / half)
    angles = t[:, None].double() * freqs
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _image_rope(dims, ends, theta=256.0):
    tables = []
    for d, e in zip(dims, ends):
        freqs = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(e, dtype=torch.float64), freqs)
        tables.append(torch.polar(torch.ones_like(angles), angles))
    return tables


def models(pipe, exact_tables):
    """Returns (transformer, text encoder, VAE) as f64 copies."""
    transformer, text, vae = (copy.deepcopy(m).double() for m in (pipe.transformer, pipe.text_encoder, pipe.vae))
    for model in (transformer, text):
        for module in model.modules():
            if isinstance(module, (RMSNorm, Qwen3RMSNorm)):
                module.forward = types.MethodType(_rms, module)
            if isinstance(module, Qwen3RotaryEmbedding):
                module.inv_freq = module.original_inv_freq.float()
                module.forward = types.MethodType(_text_rope(exact_tables), module)
    transformer.set_attn_processor = None
    for block in [*transformer.noise_refiner, *transformer.context_refiner, *transformer.layers]:
        block.attention.processor = _Attention()
    transformer.rope_embedder.freqs_cis = None
    if exact_tables:
        transformer.rope_embedder.precompute_freqs_cis = _image_rope
        transformer.t_embedder.timestep_embedding = _timesteps
    return transformer, text, vae


@torch.no_grad()
def hidden(text, ids):
    return text(input_ids=ids.long()[None], output_hidden_states=True).hidden_states[-2][0]


@torch.no_grad()
def denoise(transformer, caption, negative, case, noise, sigmas, timesteps):
    """Runs the pipeline's denoising loop, one lane at a time; sigmas stay in the scheduler's f32."""
    latent = noise.double()
    for i in range(case["steps"]):
        t = (1000 - timesteps[i:i + 1]) / 1000

        def velocity(c):
            return -transformer([latent[0].unsqueeze(1)], t, [c], return_dict=False)[0][0].squeeze(1)

        v = velocity(caption)
        if case["cfg_scale"] > 1:
            v = v + (case["cfg_scale"] - 1) * (v - velocity(negative))
        latent = latent + (sigmas[i + 1] - sigmas[i]).double() * v[None]
    return latent


@torch.no_grad()
def decode(vae, latent):
    return vae.decode(latent / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
