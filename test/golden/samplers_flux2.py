#!/usr/bin/env python3
"""Generates samplers/flux2.safetensors: Flux.2's schedules, for many numbers of tokens and of steps.

    samplers_flux2.py

Needs requirements.txt.  test_schedulers.c reads the output and needs no Python.
  tokens, steps [K]    the numbers of a case, as f32
  sigmas, timesteps    those of all cases one after another, each with the final sigma 0
"""

import os

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from safetensors.torch import save_file

import samplers

samplers.patch()
# 4300 is the last number of tokens for which the number of steps matters.
TOKENS = [1, 6, 256, 1024, 2665, 4096, 4299, 4300, 4301, 5329, 16384]
STEPS = [1, 2, 4, 7, 28, 50, 200]


def main():
    out = dict(tokens=[], steps=[], sigmas=[], timesteps=[])
    for tokens in TOKENS:
        for steps in STEPS:
            scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=compute_empirical_mu(tokens, steps))
            out["tokens"].append(torch.tensor([float(tokens)]))
            out["steps"].append(torch.tensor([float(steps)]))
            out["sigmas"].append(scheduler.sigmas.clone())
            out["timesteps"].append(scheduler.timesteps.clone())
    tensors = {key: torch.cat(parts).float() for key, parts in out.items()}
    save_file(tensors, os.path.join(samplers.HERE, "flux2.safetensors"))
    print({key: len(t) for key, t in tensors.items()})


main()
