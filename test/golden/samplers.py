#!/usr/bin/env python3
"""Generates samplers/: schedules of diffusers' schedulers, and latents that they compute with a synthetic denoiser.

    samplers.py

Needs requirements.txt and scipy 1.17.  test_schedulers.c reads the output and needs no Python.
  cases.json             for each case a scheduler_config.json and numbers of steps
  reference.safetensors  NAME.timesteps, NAME.sigmas: values of every call, for all numbers of steps one after another;
                         NAME.N[.STRENGTH].latent: result of N steps from the noise of seed N

PyTorch's square roots (MKL) and NumPy's logarithms err by up to two last bits, differently on each processor. Here they are
correctly rounded, so that the output is the same everywhere.  --plain disables this and prints the change of the schedules.
"""

import inspect
import json
import os
import sys
import warnings

import diffusers
import numpy as np
import torch
from safetensors.torch import save_file

torch.set_num_threads(1)
warnings.simplefilter("ignore")
diffusers.utils.logging.set_verbosity_error()
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "samplers")
STEPS = [1, 2, 3, 5, 8, 20, 37]
PUBLISHED = [4, 28, 40, 50]  # numbers of steps published for SD3 and SD3.5
SHAPE = [1, 4, 5, 7]
SD = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")


def exact(f):
    """Returns a function that computes f of a float32 tensor in double and rounds the result once."""
    def rounded(x, *args, plain=None):
        if isinstance(x, torch.Tensor) and x.dtype == torch.float32:
            return torch.from_numpy(np.asarray(f(x.double().numpy()), dtype=np.float32))
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.float32:
            return np.asarray(f(np.asarray(x).astype(np.float64)), dtype=np.float32)[()]
        return plain(x, *args)
    return rounded


def patch():
    pow_, log, exp, np_log = torch.Tensor.__pow__, torch.log, torch.exp, np.log
    sqrt, tlog, texp = exact(np.sqrt), exact(np.log), exact(np.exp)

    def power(x, y):
        is_root = isinstance(y, float) and y == 0.5
        return sqrt(x, plain=lambda v: pow_(v, y)) if is_root else pow_(x, y)

    torch.Tensor.__pow__ = power
    torch.sqrt = lambda x: sqrt(x, plain=lambda v: pow_(v, 0.5))
    torch.Tensor.sqrt = torch.sqrt
    torch.log = lambda x: tlog(x, plain=log)
    torch.Tensor.log = torch.log
    torch.exp = lambda x: texp(x, plain=exp)
    torch.Tensor.exp = torch.exp

    def numpy_log(x, *args, **kwargs):
        # a tensor as input gives a float32 tensor
        if isinstance(x, torch.Tensor):
            return torch.from_numpy(np.asarray(np_log(x.double().numpy()), dtype=np.float32))
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.float32:
            return np.asarray(np_log(x.astype(np.float64)), dtype=np.float32)[()]
        return np_log(x, *args, **kwargs)
    np.log = numpy_log


def add(cases, name, class_name, **config):
    cases[name] = {"_class_name": class_name, "_diffusers_version": diffusers.__version__, **config}


def make_cases():
    cases = {}
    spacings = ["linspace", "leading", "trailing"]
    spreads = ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"]
    families = {"euler": "EulerDiscreteScheduler", "euler_a": "EulerAncestralDiscreteScheduler",
                "heun": "HeunDiscreteScheduler", "dpm2": "KDPM2DiscreteScheduler",
                "dpm2_a": "KDPM2AncestralDiscreteScheduler", "lms": "LMSDiscreteScheduler",
                "dpmpp": "DPMSolverMultistepScheduler", "unipc": "UniPCMultistepScheduler",
                "ddim": "DDIMScheduler", "pndm": "PNDMScheduler", "ddpm": "DDPMScheduler"}
    # All timestep spacings for each class, with the options that published UNets use.
    own = {"ddim": dict(clip_sample=False), "ddpm": dict(clip_sample=False), "pndm": dict(skip_prk_steps=True)}
    for short, class_name in families.items():
        for spacing in spacings:
            add(cases, f"{short}.{spacing}", class_name, **SD, timestep_spacing=spacing,
                steps_offset=1 if spacing == "leading" else 0, **own.get(short, {}))
    for short in ["euler", "heun", "dpm2", "dpm2_a", "lms", "dpmpp", "unipc"]:
        for spread in spreads:
            for spacing in spacings if short in ("euler", "dpmpp") else ["leading"]:
                add(cases, f"{short}.{spacing}.{spread[4:-7]}", families[short], **SD, timestep_spacing=spacing,
                    steps_offset=1, **{spread: True})
    # The default options of each class.
    for short, class_name in families.items():
        add(cases, f"{short}.default", class_name, **own.get(short, {}))
    for class_name in ["LCMScheduler", "TCDScheduler"]:
        add(cases, class_name[:3].lower(), class_name, **SD, timestep_spacing="leading")
        add(cases, class_name[:3].lower() + ".25", class_name, original_inference_steps=25)
    # v-prediction, zero terminal SNR, a final sigma above 0, EDM.
    v = dict(**SD, prediction_type="v_prediction", timestep_spacing="trailing")
    for short in families:
        add(cases, f"{short}.v", families[short], **{**v, "timestep_spacing": "leading"}, steps_offset=1, **own.get(short, {}))
    for short in ["euler", "euler_a", "dpmpp", "unipc", "ddim", "ddpm"]:
        add(cases, f"{short}.v.zero_snr", families[short], **v, rescale_betas_zero_snr=True, **own.get(short, {}))
    add(cases, "lcm.v.zero_snr", "LCMScheduler", **v, rescale_betas_zero_snr=True)
    add(cases, "tcd.v", "TCDScheduler", **v)
    for short in ["euler", "dpmpp", "unipc"]:
        add(cases, f"{short}.ends", families[short], **SD, final_sigmas_type="sigma_min")
        add(cases, f"{short}.ends.karras", families[short], **SD, final_sigmas_type="sigma_min", use_karras_sigmas=True)
    add(cases, "euler.edm", families["euler"], **{**v, "timestep_spacing": "linspace"}, timestep_type="continuous",
        use_exponential_sigmas=True, sigma_min=0.002, sigma_max=120.0)
    add(cases, "euler.continuous", families["euler"], **v, timestep_type="continuous")
    for one in (False, True):
        add(cases, f"ddim.one_{one}", families["ddim"], **SD, set_alpha_to_one=one, clip_sample=False, steps_offset=1)
        add(cases, f"pndm.one_{one}", families["pndm"], **SD, set_alpha_to_one=one, skip_prk_steps=True, steps_offset=1)
    for name, betas in {"linear": "linear", "cosine": "squaredcos_cap_v2"}.items():
        add(cases, f"ddim.{name}", families["ddim"], **{**SD, "beta_schedule": betas}, clip_sample=False)
    # Solver orders and types.
    for order in (1, 2, 3):
        for heun in (False, True):
            kind = dict(solver_order=order, solver_type="heun" if heun else "midpoint")
            add(cases, f"dpmpp.order{order}.{heun}", families["dpmpp"], **SD, **kind)
            if order < 3:
                add(cases, f"dpmpp_sde.order{order}.{heun}", families["dpmpp"], **SD, **kind, algorithm_type="sde-dpmsolver++")
        for bh in ("bh1", "bh2"):
            # With B(h) = h (bh1) diffusers' last step to sigma 0 is NaN.
            add(cases, f"unipc.order{order}.{bh}", families["unipc"], **SD, solver_order=order, solver_type=bh,
                final_sigmas_type="sigma_min" if bh == "bh1" else "zero")
        add(cases, f"deis.order{order}", "DEISMultistepScheduler", **SD, solver_order=order)
    add(cases, "deis.leading.karras", "DEISMultistepScheduler", **SD, use_karras_sigmas=True)
    add(cases, "deis.v", "DEISMultistepScheduler", **v, algorithm_type="dpmsolver++", solver_type="midpoint")
    add(cases, "deis.final", "DEISMultistepScheduler", **SD, solver_order=3, lower_order_final=False)
    add(cases, "dpmpp.final", families["dpmpp"], **SD, solver_order=3, lower_order_final=False)
    add(cases, "dpmpp.euler_final", families["dpmpp"], **SD, euler_at_final=True, final_sigmas_type="sigma_min")
    add(cases, "dpmpp_sde.ends", families["dpmpp"], **SD, algorithm_type="sde-dpmsolver++", final_sigmas_type="sigma_min")
    add(cases, "unipc.final", families["unipc"], **SD, solver_order=3, lower_order_final=False, final_sigmas_type="sigma_min")
    # Flow matching with solvers and with Euler.
    flow = dict(prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000)
    add(cases, "unipc.flow", families["unipc"], **flow)
    for shift in (3.0, 5.0, 12.0):
        add(cases, f"unipc.flow.{shift:g}", families["unipc"], **flow, flow_shift=shift)
        add(cases, f"dpmpp.flow.{shift:g}", families["dpmpp"], **flow, flow_shift=shift)
        add(cases, f"euler.flow.{shift:g}", "FlowMatchEulerDiscreteScheduler", shift=shift)
    for order in (1, 3):
        add(cases, f"unipc.flow.order{order}", families["unipc"], **flow, flow_shift=8.0, solver_order=order)
        add(cases, f"dpmpp.flow.order{order}", families["dpmpp"], **flow, flow_shift=8.0, solver_order=order)
    add(cases, "unipc.flow.final", families["unipc"], **flow, flow_shift=5.0, lower_order_final=False)
    add(cases, "unipc.flow.terminal", families["unipc"], **flow, flow_shift=3.0, shift_terminal=0.02)
    add(cases, "dpmpp_sde.flow", families["dpmpp"], **flow, flow_shift=5.0, algorithm_type="sde-dpmsolver++")
    # Stable Diffusion 3's pipelines pass no sigmas: the scheduler shifts its own sigmas, which are already shifted.
    for shift in (1.0, 3.0, 7.5):
        add(cases, f"euler.flow.again.{shift:g}", "FlowMatchEulerDiscreteScheduler", shift=shift)
    return cases


def is_again(name):
    return ".again." in name


def scheduler_of(config):
    return getattr(diffusers, config["_class_name"]).from_config(config)


def set_timesteps(s, n, again):
    """Sets the timesteps as a pipeline does: FlowMatchEuler gets evenly spaced sigmas, or computes its own with
    `again`."""
    if type(s).__name__ == "FlowMatchEulerDiscreteScheduler" and not again:
        s.set_timesteps(sigmas=np.linspace(1, 1 / n, n))
    else:
        s.set_timesteps(n)


def call_sigmas(s):
    """Returns the sigma of each call's sample, and the final sigma."""
    if not hasattr(s, "sigmas"):
        return None
    n = len(s.timesteps)
    sigmas = [float(v) for v in s.sigmas[:n]]
    if hasattr(s, "sigmas_interpol"):
        shift = 1 if type(s).__name__ == "KDPM2AncestralDiscreteScheduler" else 0
        for i in range(1, n, 2):
            sigmas[i] = float(s.sigmas_interpol[i - shift])
    return sigmas + [float(s.sigmas[-1])]


def pattern():
    return torch.tensor([(i * 37 % 64) / 64 - 0.5 for i in range(int(np.prod(SHAPE)))], dtype=torch.float32).view(SHAPE)


def denoise(x, t):
    return x / (x.abs() + 0.5) + pattern() * (0.0005 * float(np.float32(t)))


def picture():
    return pattern().flip(-1) * 3


def run(config, n, strength, again):
    s = scheduler_of(config)
    generator = torch.Generator().manual_seed(n)
    # Rounded, because the last bit of PyTorch's normals differs between processors; steps from sigma 4096 amplify the
    # difference to 5e-5.
    noise = (torch.randn(SHAPE, generator=generator) * 4096).round() / 4096
    set_timesteps(s, n, again)
    if strength is None:
        timesteps, x = s.timesteps, noise * getattr(s, "init_noise_sigma", 1)
    else:
        # flow pipelines round the number of skipped steps down; other pipelines the number of steps that run
        first = int(n - min(n * strength, n)) if again else n - min(int(n * strength), n)
        timesteps = s.timesteps[first * s.order:]
        if hasattr(s, "set_begin_index"):
            s.set_begin_index(first * s.order)
        x = s.scale_noise(picture(), timesteps[:1], noise) if again else s.add_noise(picture(), noise, timesteps[:1])
    draws = {"generator": generator} if "generator" in inspect.signature(s.step).parameters else {}
    for t in timesteps:
        output = denoise(s.scale_model_input(x, t) if hasattr(s, "scale_model_input") else x, t)
        x = s.step(output, t, x, return_dict=False, **draws)[0]
    return x[0].contiguous()


# Returns whether diffusers does not support a combination, or computes nonsense for it.
def wrong(name, config, n, strength):
    class_name = config["_class_name"]
    if strength is None:
        return False
    # No pipeline starts a flow matching solver from an image.
    if config.get("use_flow_sigmas") or (class_name.startswith("FlowMatch") and not is_again(name)):
        return True
    # LMS would use derivatives of skipped steps.
    return class_name == "LMSDiscreteScheduler"


def main():
    plain = "--plain" in sys.argv
    if not plain:
        patch()
    cases, tensors, written = make_cases(), {}, []
    for name, config in cases.items():
        timesteps, sigmas, steps = [], [], []
        for n in STEPS + (PUBLISHED if is_again(name) else []):
            s = scheduler_of(config)
            if config.get("original_inference_steps") == 25 and n > 25:
                continue
            # with shift_terminal diffusers computes NaN for a single step
            if config.get("shift_terminal") and n == 1:
                continue
            set_timesteps(s, n, is_again(name))
            steps.append(n)
            timesteps += [float(t) for t in s.timesteps]
            sigmas += call_sigmas(s) or []
        tensors[f"{name}.timesteps"] = torch.tensor(timesteps, dtype=torch.float32)
        if sigmas:
            tensors[f"{name}.sigmas"] = torch.tensor(sigmas, dtype=torch.float32)
        starts = []
        for n, strength in [(5, None), (8, None), (8, 0.6), (16, 0.4)] + ([(4, 0.6)] if is_again(name) else []):
            if wrong(name, config, n, strength):
                continue
            latent = run(config, n, strength, is_again(name))
            if not torch.isfinite(latent).all():
                print(f"{name}: {n} steps, strength {strength}: not finite, omitted")
                continue
            starts.append([n, strength])
            tensors[f"{name}.{n}.{strength}.latent"] = latent
        again = {"again": True} if is_again(name) else {}
        written.append({"name": name, "config": config, "steps": steps, "runs": starts, **again})
    if plain:
        from safetensors.torch import load_file
        committed = load_file(os.path.join(HERE, "reference.safetensors"))
        for kind in ("timesteps", "sigmas", "latent"):
            worst = max((float(((v - committed[k]).abs() / committed[k].abs().clamp(min=1e-3)).max()), k)
                        for k, v in tensors.items() if k.endswith(kind))
            print(f"{kind}: at most {worst[0]:.2g} relative, {worst[1]}")
        return
    os.makedirs(HERE, exist_ok=True)
    save_file(tensors, os.path.join(HERE, "reference.safetensors"))
    with open(os.path.join(HERE, "cases.json"), "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(c) for c in written) + "\n]\n")
    print(f"{len(written)} cases, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
