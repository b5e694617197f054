#!/usr/bin/env python3
"""Generates samplers/named.json and named.safetensors: schedules and samplers that diffusers does not have.

    samplers_named.py

Needs requirements.txt and scipy 1.17.  test_schedulers_kdiffusion.c reads the output and needs no Python.  The schedules are those
of stable-diffusion.cpp (src/denoiser.hpp), the samplers those of k-diffusion (sampling.py) and, for flow models, of ComfyUI
(comfy/k_diffusion/sampling.py), computed from their formulas in double.
  NAME.KIND.N.sigmas, .timesteps  of schedules; KIND: added (variance exploding), or flow with shift 3
  SAMPLER.KIND.N                  result of N steps from the noise of seed N: added and flow on the schedule `discrete`;
                                  preserved (variance preserving): on DDIM's grid of SD's levels, samples scaled by sqrt(abar)
"""

import json
import math
import os

import numpy as np
import scipy.stats
import torch
from safetensors.torch import save_file

import samplers

samplers.patch()
SHIFT = 3.0
STEPS = [1, 2, 3, 5, 10, 20, 37]
TABLE = samplers.scheduler_of({"_class_name": "EulerDiscreteScheduler", **samplers.SD})
ABAR = TABLE.alphas_cumprod.double().numpy()
SIGMAS = (((1 - TABLE.alphas_cumprod) / TABLE.alphas_cumprod) ** 0.5).double().numpy()
LOGS = np.log(SIGMAS)


class Added:
    most, least = SIGMAS[-1], SIGMAS[0]

    def sigma(self, t):
        return math.exp(np.interp(t, np.arange(1000), LOGS))

    def timestep(self, sigma):
        return float(np.interp(math.log(sigma), LOGS, np.arange(1000)))


class Flow:
    most, least = 1.0, SHIFT * 0.001 / (1 + (SHIFT - 1) * 0.001)

    def sigma(self, t):
        u = (t + 1) / 1000
        return SHIFT * u / (1 + (SHIFT - 1) * u)

    def timestep(self, sigma):
        return 1000 * sigma


# Schedules: the functions return all sigmas except the last one, which is 0.

def part(i, n):
    return i / (n - 1) if n > 1 else 0


def discrete(k, n):
    return [k.sigma(t) for t in (np.linspace(999, 0, n) if n > 1 else [999])]


def sgm_uniform(k, n):
    return [k.sigma(t) for t in np.linspace(999, 0, n + 1)[:-1]]


def simple(k, n):
    return [k.sigma(999 - int(i * 1000 / n)) for i in range(n)]


def smoothstep(k, n):
    out = []
    for i in range(n):
        x = 1 - i / n
        out.append(k.sigma(math.floor(999 * (3 * x * x - 2 * x ** 3) + 0.5)))
    return out


def beta(k, n):
    ts, out = [np.rint(scipy.stats.beta.ppf(1 - i / n, 0.6, 0.6) * 999) for i in range(n)], []
    for i, t in enumerate(ts):
        if i == 0 or t != ts[i - 1]:
            out.append(k.sigma(t))
    return out


def karras(k, n):
    a, b = k.most ** (1 / 7), k.least ** (1 / 7)
    return [(a + part(i, n) * (b - a)) ** 7 for i in range(n)]


def exponential(k, n):
    return [math.exp(math.log(k.most) + part(i, n) * (math.log(k.least) - math.log(k.most))) for i in range(n)]


def kl_optimal(k, n):
    return [math.tan(part(i, n) * math.atan(k.least) + (1 - part(i, n)) * math.atan(k.most)) for i in range(n)]


def lcm(k, n):
    return [k.sigma((50 - math.floor(50 * i / n)) * 20 - 1) for i in range(n)]


def ays(k, n):
    levels = [14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520, 1.8841921177, 1.3943805092, 0.9642583904,
              0.6523686016, 0.3977456272, 0.1515232662, 0.0291671582]
    return list(np.exp(np.interp(np.linspace(0, 1, n + 1), np.linspace(0, 1, 11), np.log(levels))))[:n]


def bong_tangent(k, n):
    steps = n + 2
    m = int(0.6 * steps)
    slope = 0.2 * 40 / steps
    middle = (k.most + k.least) / 2

    def piece(length, pivot, high, low):
        g = [math.atan(-slope * (x - pivot)) for x in range(length)]
        if abs(g[0] - g[-1]) < 1e-8:
            return [high + (low - high) * part(i, length) for i in range(length)]
        return [low + (v - g[-1]) / (g[0] - g[-1]) * (high - low) for v in g]

    return (piece(m, m, k.most, middle)[:-1] + piece(steps - m, 0, middle, k.least))[:n]


SCHEDULES = [discrete, karras, exponential, ays, sgm_uniform, simple, smoothstep, kl_optimal, lcm, bong_tangent, beta]


# Samplers: model(x, sigma) returns the denoised image; all arithmetic is in double.

def ancestral(s, to, flow):
    if flow:
        down = to * (1 + (to / s - 1))
        keep = (1 - to) / (1 - down)
        return down, keep, math.sqrt(max(to * to - (down * keep) ** 2, 0))
    up = min(to, math.sqrt(to * to * (s * s - to * to) / (s * s)))
    return math.sqrt(to * to - up * up), 1, up


def euler(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        x = x + (x - model(x, s)) / s * (to - s)
    return x


def euler_a(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        x0 = model(x, s)
        if to == 0:
            return x0
        down, keep, up = ancestral(s, to, flow)
        x = (x + (x - x0) / s * (down - s)) * keep + noise() * up
    return x


def heun(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        d = (x - model(x, s)) / s
        if to > 0:
            x2 = x + d * (to - s)
            d = (d + (x2 - model(x2, to)) / to) / 2
        x = x + d * (to - s)
    return x


def dpm2(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        d = (x - model(x, s)) / s
        if to > 0:
            mid = math.sqrt(s * to)
            x2 = x + d * (mid - s)
            d = (x2 - model(x2, mid)) / mid
        x = x + d * (to - s)
    return x


def dpm2_a(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        d = (x - model(x, s)) / s
        if to == 0:
            return x - d * s
        down, keep, up = ancestral(s, to, flow)
        mid = math.sqrt(s * down)
        x2 = x + d * (mid - s)
        x = (x + (x2 - model(x2, mid)) / mid * (down - s)) * keep + noise() * up
    return x


def dpmpp_2s_a(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        x0 = model(x, s)
        if to == 0:
            return x0
        down, keep, up = ancestral(s, to, flow)
        if not flow:
            mid = math.sqrt(s * down)
        elif s == 1:
            mid = 0.9999
        else:
            mid = 1 / (math.exp((math.log((1 - s) / s) + math.log((1 - down) / down)) / 2) + 1)
        x2 = mid / s * x + (1 - mid / s) * x0
        x = (down / s * x + (1 - down / s) * model(x2, mid)) * keep + noise() * up
    return x


def dpmpp_sde(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        x0 = model(x, s)
        if to == 0:
            return x0
        mid = math.sqrt(s * to)
        down, _, up = ancestral(s, mid, False)
        x2 = down / s * x + (1 - down / s) * x0 + noise() * up
        down, _, up = ancestral(s, to, False)
        x = down / s * x + (1 - down / s) * model(x2, mid) + noise() * up
    return x


def half_log_snr(s, flow):
    return math.inf if s == 0 else -math.inf if flow and s == 1 else math.log((1 - s) / s) if flow else -math.log(s)


def dpmpp_2m(model, x, sigmas, noise, flow, sde=False):
    old, before = None, None
    for s, to in zip(sigmas, sigmas[1:]):
        x0 = model(x, s)
        if to == 0:
            return x0
        h = half_log_snr(to, flow) - half_log_snr(s, flow)
        a = 1 - to if flow else 1
        d = x0 if old is None else x0 + (x0 - old) * h / (2 * before)
        if sde:
            x = to / s * math.exp(-h) * x + a * (1 - math.exp(-2 * h)) * d + to * math.sqrt(1 - math.exp(-2 * h)) * noise()
        else:
            x = to / s * x + a * (1 - math.exp(-h)) * d
        old, before = x0, h
    return x


def dpmpp_2m_sde(model, x, sigmas, noise, flow):
    return dpmpp_2m(model, x, sigmas, noise, flow, True)


def lms(model, x, sigmas, noise, flow):
    past = []
    for i, (s, to) in enumerate(zip(sigmas, sigmas[1:])):
        past = [(x - model(x, s)) / s] + past[:3]
        for j in range(len(past)):
            others = [k for k in range(len(past)) if k != j]
            poly = np.poly1d([1.0])
            for k in others:
                poly *= np.poly1d([1, -sigmas[i - k]]) / (sigmas[i - j] - sigmas[i - k])
            integral = poly.integ()
            x = x + (integral(to) - integral(s)) * past[j]
    return x


def ipndm(model, x, sigmas, noise, flow):
    past = []
    factors = [[1], [3 / 2, -1 / 2], [23 / 12, -16 / 12, 5 / 12], [55 / 24, -59 / 24, 37 / 24, -9 / 24]]
    for s, to in zip(sigmas, sigmas[1:]):
        past = [(x - model(x, s)) / s] + past[:3]
        x = x + (to - s) * sum(f * d for f, d in zip(factors[len(past) - 1], past))
    return x


def lcm_sampler(model, x, sigmas, noise, flow):
    for s, to in zip(sigmas, sigmas[1:]):
        x = model(x, s)
        if to > 0:
            x = (1 - to if flow else 1) * x + to * noise()
    return x


SAMPLERS = {"euler": euler, "ddim": euler, "euler_a": euler_a, "heun": heun, "dpm2": dpm2, "dpm2_a": dpm2_a,
            "dpm++2s_a": dpmpp_2s_a, "dpm++_sde": dpmpp_sde, "dpm++2m": dpmpp_2m, "dpm++2m_sde": dpmpp_2m_sde, "lms": lms,
            "ipndm": ipndm, "lcm": lcm_sampler}


def run(name, kind, n):
    generator = torch.Generator().manual_seed(n)
    x = ((torch.randn(samplers.SHAPE, generator=generator) * 4096).round() / 4096).double()
    flow = kind == "flow"
    k = Flow() if flow else Added()
    sigmas = discrete(k, n) + [0.0]
    end = 1.0
    if kind == "preserved":
        ts = [i * (1000 // n) + 1 for i in range(n)][::-1]
        sigmas = [SIGMAS[t] for t in ts] + [SIGMAS[0]]
        x, end = x * math.sqrt(sigmas[0] ** 2 + 1), math.sqrt(ABAR[0])
    elif not flow:
        x = x * sigmas[0]

    def model(x, s):
        timestep = k.timestep(float(np.float32(s)))
        scaled = x if flow else x / math.sqrt(s * s + 1)
        return x - s * (scaled / (scaled.abs() + 0.5) + samplers.pattern().double() * (0.0005 * timestep))

    def noise():
        return torch.randn(samplers.SHAPE, generator=generator).double()

    return (SAMPLERS[name](model, x, sigmas, noise, flow) * end)[0].float().contiguous()


def main():
    tensors, schedules, runs = {}, [], []
    for kind, k in (("added", Added()), ("flow", Flow())):
        for f in SCHEDULES:
            for n in STEPS:
                if (f is ays and kind == "flow") or (f is lcm and n > 50):
                    continue
                sigmas = [float(np.float32(s)) for s in f(k, n)]
                schedules.append([f.__name__, kind, n])
                tensors[f"{f.__name__}.{kind}.{n}.sigmas"] = torch.tensor(sigmas + [0.0])
                tensors[f"{f.__name__}.{kind}.{n}.timesteps"] = torch.tensor([k.timestep(s) for s in sigmas])
        for name in SAMPLERS:
            if kind == "flow" and name == "dpm++_sde":
                continue
            for n in (5, 8):
                runs.append([name, kind, n])
                tensors[f"{name}.{kind}.{n}"] = run(name, kind, n)
    # Schedules that end with noise, which lcm, dpm++2m and dpm++2m_sde do not support.
    for name in SAMPLERS:
        for n in (5, 8):
            if name not in ("lcm", "dpm++2m", "dpm++2m_sde"):
                runs.append([name, "preserved", n])
                tensors[f"{name}.preserved.{n}"] = run(name, "preserved", n)
    save_file(tensors, os.path.join(samplers.HERE, "named.safetensors"))
    with open(os.path.join(samplers.HERE, "named.json"), "w") as file:
        json.dump({"schedules": schedules, "runs": runs}, file)
        file.write("\n")
    print(f"{len(schedules)} grids, {len(runs)} runs")


main()
