#!/usr/bin/env python3
"""Checks the output of `sluice convert` with other readers: the gguf package and diffusers.

Generates small random transformers of Z-Image and Flux.1 with diffusers, converts each to every type, and checks that
- gguf.GGUFReader opens the file, finds every tensor under its name and shape, and its dequantised values are as close to the
  original as the type permits;
- diffusers' from_single_file with GGUFQuantizationConfig yields a model that computes the same as the original model with those
  dequantised values as weights;
- the scales of scaled fp8 restore the original values.

usage: convert_check.py SLUICE    (prints one line per file; stops at the first error)
"""

import pathlib
import subprocess
import sys
import tempfile

import diffusers
import gguf
import numpy as np
import safetensors
import torch

GGUF_TYPES = ["q8_0", "q6_k", "q5_k", "q5_0", "q4_k", "q4_0", "bf16", "f16", "f32"]
# RMS error relative to the RMS of normally distributed weights, per type. Measured: 0.0051, 0.0171, 0.0350, 0.0408,
# 0.0703, 0.0820; 0 for the plain types (f16: except for its smallest values).
BOUNDS = [0.0055, 0.018, 0.037, 0.043, 0.073, 0.086, 0, 1e-6, 0]
# Relative distance of diffusers' results per type, because it dequantises in half precision. Measured: 0.0013 for
# blocks of 32 values, 0.011 for blocks of 256.
DISTANCES = [0.003, 0.003, 0.02, 0.003, 0.02, 0.003, 1e-6, 1e-6, 1e-6]
KEPT = {"zimage": ("cap_", "t_embedder", "x_", "all_"),
        "flux": ("x_embedder", "context_embedder", "time_text_embed", "norm_out.", "proj_out.")}


def make(family):
    torch.manual_seed(1)
    if family == "zimage":
        model = diffusers.ZImageTransformer2DModel(
            dim=256, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=128, in_channels=4,
            axes_dims=[32, 48, 48], axes_lens=[64, 64, 64])
    else:
        model = diffusers.FluxTransformer2DModel(
            in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=64, num_attention_heads=4,
            joint_attention_dim=128, pooled_projection_dim=96, guidance_embeds=True, axes_dims_rope=(8, 28, 28))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05 + (1.0 if parameter.ndim == 1 else 0.0))
    return model.to(torch.bfloat16)


def run(family, model):
    generator = torch.Generator().manual_seed(2)

    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    with torch.no_grad():
        if family == "zimage":
            return model([noise(4, 1, 8, 8)], torch.tensor([0.5]), [noise(7, 128)])[0][0]
        return model(hidden_states=noise(1, 16, 16), encoder_hidden_states=noise(1, 5, 128),
                     pooled_projections=noise(1, 96), timestep=torch.tensor([0.5]), guidance=torch.tensor([3.5]),
                     img_ids=torch.zeros(16, 3), txt_ids=torch.zeros(5, 3), return_dict=False)[0]


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.quantization_version"].contents() == 2
    values = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values[tensor.name] = (tensor.tensor_type.name, torch.from_numpy(np.array(array, np.float32)))
    return reader.fields["general.architecture"].contents(), values


def check_values(family, original, values, bound):
    assert set(values) == set(original)
    worst = 0
    for name, weight in original.items():
        kind, value = values[name]
        assert value.shape == weight.shape, (name, value.shape)
        error = float((value - weight).square().mean().sqrt() / weight.square().mean().sqrt())
        if name.startswith(KEPT[family]) or weight.ndim < 2:
            assert error == 0 and kind in ("F32", "BF16"), (name, kind, error)
        worst = max(worst, error)
    assert worst <= bound, worst
    return worst


def check_gguf(family, model, folder, path, bound, most):
    architecture, values = read_gguf(path)
    assert architecture == {"zimage": "lumina2", "flux": "flux"}[family]
    original = {name: weight.float() for name, weight in model.state_dict().items()}
    worst = check_values(family, original, values, bound)
    kind = type(model)
    loaded = kind.from_single_file(path, config=str(folder), torch_dtype=torch.float32,
                                   quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32))
    dequantised = kind.from_config(model.config).eval()
    dequantised.load_state_dict({name: value for name, (_, value) in values.items()})
    ours, theirs = run(family, loaded), run(family, dequantised)
    distance = float((ours - theirs).abs().max() / theirs.square().mean().sqrt())
    assert distance <= most, distance
    return f"error {worst:.5f}, diffusers differs by {distance:.1e}"


def check_f8(model, path):
    worst = 0
    with safetensors.safe_open(path, "pt") as f:
        assert "float8_e4m3fn" in f.metadata()["_quantization_metadata"]
        for name, weight in model.state_dict().items():
            value = f.get_tensor(name).float()
            if name + "_scale" in f.keys():
                scale = f.get_tensor(name + "_scale")
                assert scale.shape == () and value.abs().max() == 448
                value = value * scale
            worst = max(worst, float((value - weight.float()).square().mean().sqrt() / weight.float().square().mean().sqrt()))
    assert 0 < worst < 0.03, worst
    return f"error {worst:.5f}"


def main():
    sluice = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        for family in ("zimage", "flux"):
            folder = pathlib.Path(scratch) / family
            model = make(family)
            model.save_pretrained(folder)
            for kind, bound, most in zip(GGUF_TYPES, BOUNDS, DISTANCES):
                out = str(pathlib.Path(scratch) / f"{family}-{kind}.gguf")
                subprocess.run([sluice, "convert", str(folder), "-o", out, "--type", kind, "-q"], check=True)
                print(family, kind, check_gguf(family, model, folder, out, bound, most), flush=True)
            out = str(pathlib.Path(scratch) / f"{family}-f8.safetensors")
            subprocess.run([sluice, "convert", str(folder), "-o", out, "--type", "f8_e4m3", "-q"], check=True)
            print(family, "f8_e4m3", check_f8(model, out), flush=True)


main()
