"""Generates one image with diffusers on the CPU in f32, for bench/peers.sh. Prints a line "PART SECONDS" per measurement.

  peers_diffusers.py MODEL SIZE STEPS THREADS PROMPT OUT.png
"""
import sys
import time

import torch
from diffusers import ZImagePipeline


def timed(owner, name, part):
    function = getattr(owner, name)

    def call(*args, **options):
        start = time.perf_counter()
        result = function(*args, **options)
        print(part, time.perf_counter() - start)
        return result

    setattr(owner, name, call)


def main():
    model, size, steps, threads, prompt, out = sys.argv[1:]
    torch.set_num_threads(int(threads))
    pipeline = ZImagePipeline.from_pretrained(model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    timed(pipeline, "encode_prompt", "text")
    timed(pipeline.vae, "decode", "decode")
    ends = []

    def on_step(_pipeline, _step, _timestep, tensors):
        ends.append(time.perf_counter())
        return tensors

    images = pipeline(prompt, height=int(size), width=int(size), num_inference_steps=int(steps), guidance_scale=0.0,
                      generator=torch.Generator().manual_seed(1), callback_on_step_end=on_step).images
    images[0].save(out)
    for before, after in zip(ends, ends[1:]):
        print("step", after - before)


main()
