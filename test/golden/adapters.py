#!/usr/bin/env python3
"""Generates adapters/: LoRA files in every naming dialect for the small models of other fixtures, and reference outputs.

    adapters.py [--only NAME]

Needs requirements.txt.  test_loras.c reads the output and needs no Python.
Each adapters/NAME/ contains
  model              a link to the base model
  *.safetensors      adapters with random factors of ranks 2 to 5; the norm of each pair's product is a quarter of its weight's
                     norm (queries and keys: equal to it)
  expect.json        "family"; "cases" as in make.py, each with "adapters" [{"file", "strength"}], "truth", and for a single
                     adapter "least": the smallest change of the latent when one pair is omitted
  reference.safetensors  of case k: latent, latent_001 ..., and hidden and pooled if a text encoder is adapted
  bf16.json          empty: the reference's bf16 errors are not measured; devices that compute in bf16 have wider tolerances

"truth" names the origin of a case's tensors.  "diffusers": its pipeline read the file itself, unfused (peft), in f32.
"merged": the same pipeline with W + strength alpha/r BA in its weights, computed here in f64; used where diffusers does not
read the file or reads it differently from its trainer (the case gives the reason).  Files that diffusers reads are also
compared with merging: the results differ by less than 3e-6.
"""

import argparse
import contextlib
import json
import math
import os
import tempfile
import zlib

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import save_file

import adapter_names
import anima.reference_tensors
import anima.stored
import files
import flux.reference_tensors
import flux2.reference_tensors
import flux2.stored
import krea.reference_tensors
import krea.stored
import qwen.reference_tensors
import qwen21.reference_tensors
import qwen21.stored
import reference_tensors
import sd3.reference_tensors
import stored
import unet.reference_tensors
import wan.reference_tensors
from watch import relative

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 20261123

SHARE = 0.25  # norm of a LoRA pair's product, relative to its weight's norm
# norm of a pair's product for queries and keys, relative to the weight's norm; their attention is nearly uniform
ATTENTION_SHARE = 1.0
VECTOR_SHARE = 0.5
LEAST = 2e-4  # minimum change of the latent per LoRA pair: ten times the test's tolerance
AGREE = 3e-6  # largest difference between unfused and merged adapters

# Tensor name suffixes of a module's LoRA factors and alpha, by naming dialect.
KOHYA = dict(down=".lora_down.weight", up=".lora_up.weight", alpha=".alpha")
PEFT = dict(down=".lora_A.weight", up=".lora_B.weight", alpha=".alpha")
PEFT_DESCRIBED = PEFT | dict(alpha=None)  # alphas are in the file's metadata instead of tensors
OLDER = dict(down=".lora.down.weight", up=".lora.up.weight", alpha=".alpha")
OLDEST_UNET = dict(down="_lora.down.weight", up="_lora.up.weight", alpha=".alpha")
OLDEST = dict(down=".lora_linear_layer.down.weight", up=".lora_linear_layer.up.weight", alpha=".alpha")


class Adapter:
    """An adapter file under construction, and the weight changes that it causes in a pipeline."""

    def __init__(self, pipe, name, dtype=torch.float32, louder=1):
        """louder: factor on the norms of all changes, for models whose deepest layers have little effect."""
        self.pipe, self.name, self.dtype, self.louder = pipe, name, dtype, louder
        self.tensors, self.effects = {}, []
        self.rslora = False  # True: alphas are divided by the square root of the rank
        self.patterns = {}  # per component: rank and alpha of each module, for the file's metadata
        self.loaded = {}  # keyword arguments for diffusers' loader of this adapter

    def draw(self, key, shape, deviation=1.0):
        """Adds a random tensor in the file's dtype; its seed depends on the key."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{SEED} {self.name} {key}".encode()))
        drawn = (torch.randn(shape, generator=generator) * deviation).to(self.dtype)
        self.tensors[key] = drawn
        return drawn.double()

    def parameter(self, component, name):
        return getattr(self.pipe, component).get_parameter(name)

    def act(self, label, component, rows, delta):
        """Records a change delta [rows, ...] of a weight as named in the file; rows: (parameter, row) of each row
        in the pipeline."""
        parts = {}
        for i, (name, row) in enumerate(rows):
            parts.setdefault(name, []).append((i, row))
        for name, places in parts.items():
            whole = torch.zeros(self.parameter(component, name).shape, dtype=torch.float64)
            here, there = zip(*places)
            whole[list(there)] = delta[list(here)].reshape(len(here), *whole.shape[1:])
            self.effects.append((label, component, name, whole))

    def shape(self, component, rows):
        """Returns the shape of the weight as named in the file, and the intended norm of its LoRA pair's product."""
        first = self.parameter(component, rows[0][0])
        names = {name for name, _ in rows}
        norm = math.sqrt(sum(float(self.parameter(component, name).double().norm()) ** 2 for name in names))
        return (len(rows), *first.shape[1:]), self.louder * norm * self.share(rows)

    def share(self, rows):
        asks = any(part in rows[0][0] for part in ("to_q", "to_k", "q_proj", "k_proj", "Attention.q", "Attention.k"))
        return ATTENTION_SHARE if asks and len({name for name, _ in rows}) == 1 else SHARE

    def sized(self, key, delta, norm, dims):
        """Scales the factor at `key` so that delta has the given norm; returns the new factor."""
        grown = (self.tensors[key].double() * (norm / float(delta.norm()))).to(self.dtype)
        self.tensors[key] = grown
        return grown.double().reshape(dims)

    def pair(self, stem, component, rows, rank, alpha=None, ends=KOHYA):
        """Adds a LoRA pair (factors down and up) of one module."""
        (out, *taken), norm = self.shape(component, rows)
        spread = [1] * (len(taken) - 1)
        down = self.draw(stem + ends["down"], (rank, *taken), 1 / math.sqrt(math.prod(taken))).flatten(1)
        up = self.draw(stem + ends["up"], (out, rank, *spread)).flatten(1)
        scale = 1.0 if alpha is None else alpha / math.sqrt(rank) if self.rslora else alpha / rank
        up = self.sized(stem + ends["up"], scale * up @ down, norm, up.shape)
        if alpha is not None and ends["alpha"]:
            self.tensors[stem + ends["alpha"]] = torch.tensor(alpha, dtype=self.dtype)
        elif alpha is not None:
            self.patterns.setdefault(component, {})[stem.removeprefix(f"{component}.")] = (rank, alpha)
        self.act(stem, component, rows, scale * up @ down)

    def tucker(self, stem, component, rows, rank, alpha):
        """Adds a convolution's LoCon factors: lora_mid between 1x1 factors."""
        (out, taken, *kernel), norm = self.shape(component, rows)
        down = self.draw(stem + ".lora_down.weight", (rank, taken, 1, 1), 1 / math.sqrt(taken)).flatten(1)
        mid = self.draw(stem + ".lora_mid.weight", (rank, rank, *kernel), 1 / math.sqrt(rank * math.prod(kernel)))
        up = self.draw(stem + ".lora_up.weight", (out, rank, 1, 1)).flatten(1)

        def delta():
            return alpha / rank * torch.einsum("or,rsyx,si->oiyx", up, mid, down)

        up = self.sized(stem + ".lora_up.weight", delta(), norm, up.shape)
        self.tensors[stem + ".alpha"] = torch.tensor(alpha, dtype=self.dtype)
        self.act(stem, component, rows, delta())

    def hadamard(self, stem, component, rows, rank, alpha):
        """Adds the LoHa factors of one module."""
        (out, *taken), norm = self.shape(component, rows)
        n = math.prod(taken)
        a1, a2 = (self.draw(f"{stem}.hada_w{i}_a", (out, rank)) for i in (1, 2))
        b1, b2 = (self.draw(f"{stem}.hada_w{i}_b", (rank, n)) for i in (1, 2))
        a1 = self.sized(f"{stem}.hada_w1_a", alpha / rank * (a1 @ b1) * (a2 @ b2), norm, a1.shape)
        self.tensors[stem + ".alpha"] = torch.tensor(alpha, dtype=self.dtype)
        self.act(stem, component, rows, alpha / rank * (a1 @ b1) * (a2 @ b2))

    def kronecker(self, stem, component, rows, rank, alpha, outer):
        """Adds the LoKr factors of one module: a full outer factor [rows, columns] and a low-rank inner one."""
        (out, *taken), norm = self.shape(component, rows)
        n = math.prod(taken)
        w1 = self.draw(f"{stem}.lokr_w1", outer)
        a = self.draw(f"{stem}.lokr_w2_a", (out // outer[0], rank))
        b = self.draw(f"{stem}.lokr_w2_b", (rank, n // outer[1]))
        w1 = self.sized(f"{stem}.lokr_w1", alpha / rank * torch.kron(w1, a @ b), norm, w1.shape)
        self.tensors[stem + ".alpha"] = torch.tensor(alpha, dtype=self.dtype)
        self.act(stem, component, rows, alpha / rank * torch.kron(w1, a @ b))

    def vector(self, key, component, rows):
        """Adds a difference of a bias or of a norm's weight."""
        (n, *_), norm = self.shape(component, rows)
        self.act(key, component, rows, self.draw(key, (n,), VECTOR_SHARE / SHARE * norm / math.sqrt(n)))

    def described(self):
        """Returns the file metadata that diffusers writes for peft adapters."""
        about = {}
        for component, modules in self.patterns.items():
            rank, alpha = next(iter(modules.values()))
            about |= {f"{component}.{key}": value for key, value in dict(
                r=rank, lora_alpha=alpha, rank_pattern={name: r for name, (r, _) in modules.items() if r != rank},
                alpha_pattern={name: a for name, (_, a) in modules.items() if a != alpha}, target_modules=sorted(modules), use_rslora=self.rslora,
                bias="none", lora_bias=False, use_dora=False).items()}
        return about

    def write(self, folder):
        """Writes the adapter file with sorted keys."""
        tensors = {key: self.tensors[key].contiguous() for key in sorted(self.tensors)}
        metadata = {"lora_adapter_metadata": json.dumps(self.described(), sort_keys=True)} if self.patterns else {}
        save_file(tensors, os.path.join(folder, self.name), metadata={"format": "pt"} | metadata)




@contextlib.contextmanager
def merged(pipe, applied, without=None):
    """Context in which the adapters are merged into the pipeline's weights; without: label of a LoRA pair to omit."""
    kept, sums = {}, {}
    for adapter, strength in applied:
        for label, component, name, delta in adapter.effects:
            if (adapter.name, label) != without:
                key = (component, name)
                sums[key] = sums.get(key, 0) + strength * delta
    for (component, name), delta in sums.items():
        parameter = getattr(pipe, component).get_parameter(name)
        kept[(component, name)] = (parameter, parameter.data)
        parameter.data = (parameter.data.double() + delta).to(parameter.dtype)
    yield
    for parameter, data in kept.values():
        parameter.data = data


@contextlib.contextmanager
def unfused(pipe, folder, applied):
    """Context in which diffusers has loaded the adapter files, and peft computes them unfused."""
    for i, (adapter, _) in enumerate(applied):
        pipe.load_lora_weights(os.path.join(folder, adapter.name), adapter_name=f"adapter_{i}", **adapter.loaded)
    pipe.set_adapters([f"adapter_{i}" for i in range(len(applied))], [strength for _, strength in applied])
    yield
    pipe.unload_lora_weights()


def without_each(pipe, run, case, applied, latent):
    """Returns the change of the latent when a LoRA pair is omitted, for each pair."""
    moved = {}
    for label in sorted({(adapter.name, label) for adapter, _ in applied for label, *_ in adapter.effects}):
        with merged(pipe, applied, label):
            moved[label] = relative(run(pipe, case)["latent"], latent)
    return moved


def make_case(fixture, folder, case, k, out):
    """Runs one case. fixture.idle: parts of labels of modules without effect, such as the last layer of an encoder
    whose last hidden state is not used."""
    pipe, run, applied = fixture.pipe, fixture.run, case.applied
    request = fixture.template | case.more | dict(index=k)
    with merged(pipe, applied):
        tensors = run(pipe, request)
    plain = run(pipe, request)["latent"]
    if not case.merged:
        with unfused(fixture.runner, folder, applied):
            read = run(pipe, request)
        apart = relative(read["latent"], tensors["latent"])
        assert apart < AGREE, f"diffusers' unfused result differs from the merged one by {apart}"
        tensors = read
        assert torch.equal(run(pipe, request)["latent"], plain)
    request |= dict(adapters=[dict(file=adapter.name, strength=strength) for adapter, strength in applied],
                    truth=f"merged: {case.merged}" if case.merged else "diffusers")
    out |= {f"case{k}.{name}": value for name, value in tensors.items()}
    print(f"  case {k}: {relative(tensors['latent'], plain):.3f} from the unadapted model's latent")
    if len(applied) > 1:
        return request
    moved = without_each(pipe, run, request, applied, tensors["latent"])
    without_effect = {label for label, much in moved.items() if much < AGREE}
    assert without_effect == {label for label in moved if any(part in label[1] for part in fixture.idle)}, without_effect
    least = min((label for label in moved if label not in without_effect), key=moved.get)
    print(f"    {len(without_effect)} pairs have no effect; smallest effect of the others {moved[least]:.2e}, {least[1]}")
    assert moved[least] > LEAST, least
    return request | dict(least=moved[least])


class Case:
    """Adapters with their strengths; merged: the reason why diffusers cannot serve as reference, or None."""

    def __init__(self, applied, merged=None, **more):
        self.applied, self.merged, self.more = applied, merged, more


class Fixture:
    """runner: the pipeline that loads the adapters, if that is not pipe."""

    def __init__(self, family, pipe, model, run, template, adapters, cases, idle=(), runner=None):
        self.family, self.pipe, self.model, self.run, self.template = family, pipe, model, run, template
        self.adapters, self.cases, self.idle, self.runner = adapters, cases, idle, runner or pipe


class Spec:
    def __init__(self, name):
        self.name, self.seed = os.path.join("adapters", name), SEED




def latents(tensors, *also):
    """Selects the tensors of a run that are compared: latents except the initial noise, and the names in `also`."""
    return {name: value for name, value in tensors.items() if name.startswith("latent") and name != "latent_000" or name in also}


def ranks(first):
    """Yields the ranks 2 to 5 cyclically."""
    while True:
        yield 2 + first % 4
        first += 1


def all_of(adapter, prefix, component, named, ends, alphas=None, name_of=lambda n: n, only=lambda i, n: True):
    """Adds a LoRA pair for every module; alphas: function of index and rank, or None for files without alphas."""
    rank = ranks(len(prefix))
    for i, (name, rows) in enumerate(sorted(named.items())):
        r = next(rank)
        if only(i, name):
            adapter.pair(prefix + name_of(name), component, rows, r, alphas(i, r) if alphas else None, ends)


def unlike(i, rank):
    """Returns an alpha of rank, half, double or one, by index."""
    return [rank, rank / 2, 2 * rank, 1][i % 4]


def exact(i, rank):
    """Returns an alpha that diffusers can multiply into the factors without rounding."""
    return [rank, rank / 2, 2 * rank, rank / 4][i % 4]


def by_plain(pipe, component):
    model = getattr(pipe, component)
    return adapter_names.modules(adapter_names.plain(model), model)


def by_authors(pipe, component, rename):
    model = getattr(pipe, component)
    return adapter_names.modules(adapter_names.originally(model, rename), model)


def in_clip(pipe, component):
    """Returns the modules of a CLIP text encoder except embedding tables, with the prefix text_model in all names."""
    named = {n if n.startswith(("text_model.", "text_projection")) else f"text_model.{n}": rows for n, rows in by_plain(pipe, component).items()}
    return {n: rows for n, rows in named.items() if "embedding" not in n}


def in_t5(pipe, component):
    return {n: rows for n, rows in by_plain(pipe, component).items() if n.startswith("encoder.block") and "bias" not in n}


def tokens(columns, rows, **more):
    """Returns an image case; its grid is in tokens of 2x2 latent pixels."""
    return dict(kind="image", prompt="a red fox in the snow", negative_prompt="blurry", steps=2, cfg_scale=2.5, width=16 * columns, height=16 * rows,
                seed=42, batch=1, flow_shift=None, latent_width=2 * columns, latent_height=2 * rows, image_tokens=columns * rows) | more


def in_processor(name):
    return name.replace("attn1.", "attn1.processor.").replace("attn2.", "attn2.processor.").replace("to_out.0", "to_out")


ZIMAGE_FUSED = "diffusers knows no fused qkv here"


def zimage():
    pipe = reference_tensors.load(os.path.join(HERE, "zimage_a", "model"))

    def run(pipe, case):
        return latents(reference_tensors.run_case(pipe, case))

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", stored.zimage_names)
    unread = len(pipe.text_encoder.layers) - 1
    peft = Adapter(pipe, "peft.safetensors", torch.float16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.bfloat16)
    all_of(peft, "transformer.", "transformer", named, PEFT_DESCRIBED, unlike)
    all_of(kohya, "lora_unet_", "transformer", theirs, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 != 1)
    encoder = Adapter(pipe, "encoder.safetensors", torch.bfloat16)
    language = {n: rows for n, rows in by_plain(pipe, "text_encoder").items() if n.startswith("layers.")}
    all_of(encoder, "text_encoder.model.", "text_encoder", language, PEFT, only=lambda i, n: i % 4 == 0 and not n.startswith(f"layers.{unread}."))
    all_of(comfy, "diffusion_model.", "transformer", named, PEFT, only=lambda i, n: n.startswith("layers."))
    return Fixture("zimage", pipe, "zimage_a/model", run, tokens(3, 2, shift=2.5), [peft, kohya, comfy, encoder], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)], ZIMAGE_FUSED), Case([(comfy, -0.5)]), Case([(comfy, 0.6), (peft, 1.0)]),
        Case([(encoder, 1.0)], "diffusers adapts no encoder here")])


def guided(pipe):
    def run(pipe, case):
        out = latents(flux.reference_tensors.run_case(pipe, case, {}))
        out["pooled.cond"] = flux.reference_tensors.encode(pipe, case["prompt"], case["max_sequence_length"])[0]["pooled"]
        return out
    return run


FLUX_ALPHAS = "diffusers has the published width alone, loses the last layer's alphas, and has no adapters of T5"


def flux_1():
    pipe = flux.reference_tensors.load(os.path.join(HERE, "flux_a", "model"))
    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", stored.flux_names)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.bfloat16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.float16)
    bfl = Adapter(pipe, "bfl.safetensors")
    all_of(peft, "transformer.", "transformer", named, PEFT, only=lambda i, n: i % 3 != 1)
    all_of(peft, "text_encoder.", "text_encoder", in_clip(pipe, "text_encoder"), PEFT, only=lambda i, n: i % 2)
    all_of(kohya, "lora_unet_", "transformer", theirs, KOHYA, unlike, adapter_names.flat)
    all_of(kohya, "lora_te1_", "text_encoder", in_clip(pipe, "text_encoder"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 == 0)
    all_of(kohya, "lora_te2_", "text_encoder_2", in_t5(pipe, "text_encoder_2"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 == 0)
    all_of(comfy, "diffusion_model.", "transformer", theirs, PEFT, only=lambda i, n: i % 2)
    vectors = adapter_names.originally(pipe.transformer, stored.flux_names)
    for name in ("double_blocks.0.img_attn.qkv", "double_blocks.1.txt_mlp.2", "single_blocks.0.linear1", "final_layer.adaLN_modulation.1"):
        bfl.pair(name, "transformer", theirs[name], 3, ends=PEFT)
        bfl.vector(name + ".lora_B.bias", "transformer", vectors[name + ".bias"])
    case = tokens(3, 2, cfg_scale=1.0, negative_prompt=None, guidance=3.5, max_sequence_length=512, channels=5, init=False, mask=False, references=[])
    return Fixture("flux", pipe, "flux_a/model", guided(pipe), case, [peft, kohya, comfy, bfl], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)], FLUX_ALPHAS), Case([(comfy, 1.3)], FLUX_ALPHAS),
        Case([(bfl, 1.0)], "diffusers asks for norms, too"), Case([(peft, 0.6), (kohya, 1.0)], FLUX_ALPHAS)])


def flux2_klein():
    """Adapters of Klein for fused weights: the names of diffusers (peft), ai-toolkit (comfy) and Kohya's scripts."""
    pipe = flux2.reference_tensors.load(os.path.join(HERE, "flux2_klein", "model"))

    def run(pipe, case):
        return latents(flux2.reference_tensors.run_case(pipe, case, {}))

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", flux2.stored.names)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.bfloat16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.float16)
    all_of(peft, "transformer.", "transformer", named, PEFT)
    all_of(kohya, "lora_unet_", "transformer", theirs, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 != 1)
    all_of(comfy, "diffusion_model.", "transformer", theirs, PEFT, only=lambda i, n: "_blocks." in n)
    case = tokens(3, 2, cfg_scale=1.0, negative_prompt=None, guidance=None, max_sequence_length=512, channels=5, init=False, mask=False, references=[])
    case |= dict(latent_width=3, latent_height=2)
    return Fixture("flux2", pipe, "flux2_klein/model", run, case, [peft, kohya, comfy], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)], "diffusers has no adapters of Kohya's scripts here"), Case([(comfy, -0.6)])])


SDXL_CASE = dict(kind="image", prompt="a red fox in the snow", negative_prompt="blurry", steps=2, cfg_scale=2.5, width=48, height=40, seed=42, batch=1,
                 init=False, mask=False, strength=None, latent_width=6, latent_height=5)


def sdxl():
    pipe = unet.reference_tensors.load(os.path.join(HERE, "sdxl", "model"))

    def run(pipe, case):
        out = latents(unet.reference_tensors.run_case(pipe, case, {}))
        encoded = unet.reference_tensors.encode(pipe, case["prompt"])
        return out | {"hidden.cond": encoded["hidden"], "pooled.cond": encoded["pooled"]}

    runner = unet.reference_tensors.beside(pipe, "text")
    named, theirs = by_plain(pipe, "unet"), by_authors(pipe, "unet", adapter_names.ldm)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    older = Adapter(pipe, "older.safetensors", torch.float16)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    all_of(kohya, "lora_unet_", "unet", theirs, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 5 == 0 or "conv" in n)
    all_of(kohya, "lora_te1_", "text_encoder", in_clip(pipe, "text_encoder"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 2)
    all_of(kohya, "lora_te2_", "text_encoder_2", in_clip(pipe, "text_encoder_2"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 2)
    all_of(older, "unet.", "unet", {n: r for n, r in named.items() if ".attn" in n}, OLDEST_UNET, name_of=in_processor, only=lambda i, n: i % 4 == 0)
    all_of(older, "unet.", "unet", {n: r for n, r in named.items() if ".attn" not in n}, OLDER, only=lambda i, n: i % 4 == 0)
    all_of(older, "text_encoder.", "text_encoder", in_clip(pipe, "text_encoder"), OLDEST, only=lambda i, n: i % 2 and "layers.2" not in n)
    all_of(peft, "unet.", "unet", named, PEFT, only=lambda i, n: i % 3 == 1)
    all_of(peft, "text_encoder_2.", "text_encoder_2", in_clip(pipe, "text_encoder_2"), PEFT, only=lambda i, n: "projection" not in n)
    return Fixture("unet", pipe, "sdxl/model", run, SDXL_CASE, [kohya, older, peft], [
        Case([(older, 1.0)]), Case([(peft, 1.0)]), Case([(kohya, 0.8)], "diffusers loses most alphas"),
        Case([(peft, 0.6), (kohya, 1.0)], "diffusers loses most alphas")],
        idle=["te1_text_model_encoder_layers_2"], runner=runner)


SD3_CASE = tokens(3, 2, guidance=None, max_sequence_length=256, channels=16, init=False, mask=False, references=[], slg_layers=[], slg_scale=None,
                  slg_start=None, slg_end=None)


def sd1():
    """Stable Diffusion 1 adapters in Kohya's dialect with diffusers' names, including the 1x1 convolutions around
    attention."""
    pipe = unet.reference_tensors.load(os.path.join(HERE, "sd1", "model"))

    def run(pipe, case):
        return latents(unet.reference_tensors.run_case(pipe, case, {}))

    kohya = Adapter(pipe, "kohya.safetensors", torch.float16, louder=6)
    all_of(kohya, "lora_unet_", "unet", by_plain(pipe, "unet"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 6 == 2)
    all_of(kohya, "lora_te_", "text_encoder", in_clip(pipe, "text_encoder"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 4 == 0)
    return Fixture("unet", pipe, "sd1/model", run, SDXL_CASE, [kohya], [Case([(kohya, 1.0)], "diffusers loses most alphas")])


def sd3_medium():
    """Stable Diffusion 3 adapters in Kohya's dialect, for the transformer and three text encoders."""
    pipe = sd3.reference_tensors.load(os.path.join(HERE, "sd3_medium", "model"))

    def run(pipe, case):
        return latents(sd3.reference_tensors.run_case(pipe, case, {}))

    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    encoders = (("text_encoder", "lora_te1_", in_clip), ("text_encoder_2", "lora_te2_", in_clip), ("text_encoder_3", "lora_te3_", in_t5))
    for component, prefix, modules in encoders:
        all_of(kohya, prefix, component, modules(pipe, component), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 4 == 1)
    return Fixture("sd3", pipe, "sd3_medium/model", run, SD3_CASE, [kohya], [Case([(kohya, 1.0)], "diffusers has no adapters of T5")])


def lycoris():
    """LyCORIS adapters of SDXL that reduce to low ranks: convolutions with a middle factor; Hadamard and Kronecker
    products for wider weights."""
    pipe = unet.reference_tensors.load(os.path.join(HERE, "sdxl", "model"))

    def run(pipe, case):
        return latents(unet.reference_tensors.run_case(pipe, case, {}))

    named, theirs = by_plain(pipe, "unet"), by_authors(pipe, "unet", adapter_names.ldm)
    locon, loha, lokr = (Adapter(pipe, f"{name}.safetensors") for name in ("locon", "loha", "lokr"))
    convolutions = {name: rows for name, rows in theirs.items() if pipe.unet.get_parameter(rows[0][0]).shape[2:] == (3, 3)}
    for i, (name, rows) in enumerate(sorted(convolutions.items())):
        if i % 4 == 0:
            locon.tucker("lora_unet_" + adapter_names.flat(name), "unet", rows, 2 + i % 3, 2)
    wide = {name for name, value in pipe.unet.state_dict().items() if value.dim() > 1 and min(value.flatten(1).shape) > 7}
    named, theirs = ({name: rows for name, rows in of.items() if rows[0][0] in wide} for of in (named, theirs))
    for i, (name, rows) in enumerate(sorted(named.items())):
        if i % 16 == 0:
            loha.hadamard("lycoris_" + adapter_names.flat(name), "unet", rows, 2, 1.5)
    for i, (name, rows) in enumerate(sorted(theirs.items())):
        first = pipe.unet.get_parameter(rows[0][0])
        if i % 16 == 1 and first.dim() == 2:
            lokr.kronecker("lora_unet_" + adapter_names.flat(name), "unet", rows, 2, 3, (4, 2))
    return Fixture("unet", pipe, "sdxl/model", run, SDXL_CASE, [locon, loha, lokr], [
        Case([(locon, 1.0)], "diffusers knows no middle"), Case([(loha, 0.7)], "diffusers knows none"), Case([(lokr, 1.0)], "diffusers knows none"),
        Case([(lokr, 1.0), (loha, 0.6), (locon, 0.5)], "diffusers knows none")])


def qwen_image():
    pipe = qwen.reference_tensors.load(os.path.join(HERE, "qwen_image", "model"))

    def run(pipe, case):
        return latents(qwen.reference_tensors.run_case(pipe, case, {}))

    named = by_plain(pipe, "transformer")
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    lightning = Adapter(pipe, "lightning.safetensors", torch.bfloat16)
    peft.rslora = True
    all_of(peft, "transformer.", "transformer", named, PEFT_DESCRIBED, unlike, only=lambda i, n: i % 3)
    all_of(kohya, "lora_unet_", "transformer", named, KOHYA, exact, adapter_names.flat, lambda i, n: i % 3 != 1)
    all_of(lightning, "", "transformer", named, KOHYA, exact, only=lambda i, n: n.startswith("transformer_blocks.") and i % 2)
    case = tokens(3, 2, guidance=None, max_sequence_length=512, channels=5, init=False, mask=False, references=[])
    last = len(pipe.transformer.transformer_blocks) - 1
    idle = [f"transformer_blocks.{last}.{n}" for n in ("attn.to_add_out", "txt_mlp", "attn.add_q_proj")]
    return Fixture("qwen", pipe, "qwen_image/model", run, case, [peft, kohya, lightning], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)]), Case([(lightning, 1.0)]), Case([(lightning, 1.0), (peft, 0.6)])],
        idle=idle + [adapter_names.flat(n) for n in idle])


def qwen_image_21():
    """Adapters with gate_layer and proj (diffusers, Kohya's scripts), and for both in one tensor, as in ComfyUI's files."""
    pipe = qwen21.reference_tensors.load(os.path.join(HERE, "qwen_image_21", "model"))

    def run(pipe, case):
        return latents(qwen21.reference_tensors.run_case(pipe, case, {}))

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", qwen21.stored.names)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.bfloat16)
    all_of(peft, "transformer.", "transformer", named, PEFT)
    all_of(kohya, "lora_unet_", "transformer", named, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 != 1)
    all_of(comfy, "diffusion_model.", "transformer", theirs, PEFT, only=lambda i, n: n.startswith("transformer_blocks."))
    case = tokens(2, 1, guidance=None, max_sequence_length=None, channels=5, init=False, mask=False, references=[])
    case |= dict(width=64, height=32, image_tokens=8)
    return Fixture("qwen21", pipe, "qwen_image_21/model", run, case, [peft, kohya, comfy], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)], "diffusers has no adapters of Kohya's scripts here"),
        Case([(comfy, -0.6)], "diffusers has no gate_up")])


def wan_22():
    """Adapters of Wan 2.2's two experts: one file for each, recognised by its name, or one file for both."""
    pipe = wan.reference_tensors.load(os.path.join(HERE, "wan22", "model"))

    def run(pipe, case):
        return latents(wan.reference_tensors.run_case(pipe, case, {}))

    high = Adapter(pipe, "style_high_noise.safetensors", torch.float16)
    low = Adapter(pipe, "style_low_noise.safetensors", torch.bfloat16)
    low.loaded = dict(load_into_transformer_2=True)
    both = Adapter(pipe, "musubi.safetensors", torch.float16)
    theirs = {c: by_authors(pipe, c, stored.wan_names) for c in ("transformer", "transformer_2")}
    vectors = adapter_names.originally(pipe.transformer, stored.wan_names)
    all_of(high, "diffusion_model.", "transformer", theirs["transformer"], KOHYA, unlike, only=lambda i, n: i % 2)
    for name in ("blocks.0.self_attn.q.bias", "blocks.1.cross_attn.o.bias", "blocks.2.ffn.0.bias", "time_projection.1.bias", "head.head.bias"):
        high.vector("diffusion_model." + name.replace(".bias", ".diff_b"), "transformer", vectors[name])
    for name in ("blocks.0.norm3.weight", "blocks.1.self_attn.norm_q.weight", "blocks.2.cross_attn.norm_k.weight"):
        high.vector("diffusion_model." + name.replace(".weight", ".diff"), "transformer", vectors[name])
    high.vector("diffusion_model.blocks.2.norm3.diff_b", "transformer", vectors["blocks.2.norm3.bias"])
    all_of(low, "diffusion_model.", "transformer_2", theirs["transformer_2"], PEFT, only=lambda i, n: i % 2 == 0)
    middle = {name: rows for name, rows in theirs["transformer"].items() if name.startswith("blocks.1.")}
    all_of(both, "lora_unet_", "transformer", middle, KOHYA, unlike, adapter_names.flat)
    both.effects += [(label, "transformer_2", name, delta) for label, _, name, delta in both.effects]
    case = dict(kind="image", prompt="a red fox in the snow", negative_prompt="blurry", steps=2, cfg_scale=2.5, cfg_scale_low=None, width=32, height=32,
                frames=5, seed=42, batch=1, flow_shift=1.0, shift=1.0, sampler=None, channels=5, init=False, last=False, mask=False, decoded=False,
                latent_frames=2, latent_width=4, latent_height=4)
    return Fixture("wan", pipe, "wan22/model", run, case, [high, low, both], [
        Case([(low, 1.0)]), Case([(high, 0.8)], "diffusers drops what is added to norms"), Case([(both, 1.0)], "diffusers takes one transformer"),
        Case([(high, 0.6), (low, 1.0)], "diffusers drops what is added to norms")])


def sd35():
    pipe = sd3.reference_tensors.load(os.path.join(HERE, "sd35_medium", "model"))

    def run(pipe, case):
        out = latents(sd3.reference_tensors.run_case(pipe, case, {}))
        return out | {"pooled.cond": sd3.reference_tensors.encode(pipe, case["prompt"])[0]["pooled"]}

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", adapter_names.sd3)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    all_of(peft, "transformer.", "transformer", named, PEFT)
    all_of(peft, "text_encoder_2.", "text_encoder_2", in_clip(pipe, "text_encoder_2"), PEFT, only=lambda i, n: i % 2 and "projection" not in n)
    all_of(kohya, "lora_unet_", "transformer", theirs, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 2 or "qkv" in n or "final" in n)
    all_of(kohya, "lora_te1_", "text_encoder", in_clip(pipe, "text_encoder"), KOHYA, unlike, adapter_names.flat, lambda i, n: i % 2)
    last = len(pipe.transformer.transformer_blocks) - 1
    return Fixture("sd3", pipe, "sd35_medium/model", run, SD3_CASE, [peft, kohya], [
        Case([(peft, 1.0)]), Case([(kohya, 0.8)], "diffusers reads its own names alone"),
        Case([(peft, 0.6), (kohya, 1.0)], "diffusers reads its own names alone")],
        idle=[f"transformer_blocks.{last}.attn.add_q_proj"])


def anima_base():
    """Anima's transformer, text adapter and Qwen3: the names of diffusers (peft), ComfyUI and Kohya's scripts."""
    pipe = anima.reference_tensors.load(os.path.join(HERE, "anima_base", "model"))

    def run(pipe, case):
        out = latents(anima.reference_tensors.run_case(pipe, case, {}))
        return out | {"hidden.cond": anima.reference_tensors.encode(pipe, case["prompt"])[0]["hidden"]}

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", anima.stored.names)
    adapter = {n: rows for n, rows in by_plain(pipe, "text_conditioner").items() if n != "embed"}
    language = {n: rows for n, rows in by_plain(pipe, "text_encoder").items() if n.startswith("layers.")}
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.float16)
    kohya = Adapter(pipe, "kohya.safetensors", torch.float16)
    all_of(peft, "transformer.", "transformer", named, PEFT)
    all_of(peft, "text_conditioner.", "text_conditioner", adapter, PEFT, only=lambda i, n: i % 3 == 0)
    all_of(comfy, "diffusion_model.", "transformer", theirs, PEFT, only=lambda i, n: i % 2)
    all_of(comfy, "diffusion_model.llm_adapter.", "text_conditioner", adapter, PEFT, only=lambda i, n: i % 3 == 1)
    all_of(kohya, "lora_unet_", "transformer", theirs, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 == 1)
    all_of(kohya, "lora_unet_llm_adapter_", "text_conditioner", adapter, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 3 == 2)
    all_of(kohya, "lora_te_", "text_encoder", language, KOHYA, unlike, adapter_names.flat, lambda i, n: i % 4 == 1)
    return Fixture("anima", pipe, "anima_base/model", run, tokens(3, 2, channels=5, init=False, mask=False, references=[]), [peft, comfy, kohya], [
        Case([(peft, 1.0)]), Case([(comfy, 0.8)]), Case([(kohya, 1.0)], "diffusers has no adapters of Kohya's scripts here")],
        runner=pipe.modular)


def krea_2():
    """Krea 2's transformer and text fusion: the names of diffusers (peft) and of the authors (ComfyUI)."""
    pipe = krea.reference_tensors.load(os.path.join(HERE, "krea2", "model"))

    def run(pipe, case):
        return latents(krea.reference_tensors.run_case(pipe, case))

    named, theirs = by_plain(pipe, "transformer"), by_authors(pipe, "transformer", krea.stored.names)
    peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
    comfy = Adapter(pipe, "comfy.safetensors", torch.float16)
    all_of(peft, "transformer.", "transformer", named, PEFT)
    all_of(comfy, "diffusion_model.", "transformer", theirs, PEFT, only=lambda i, n: i % 2)
    return Fixture("krea2", pipe, "krea2/model", run, tokens(3, 2, channels=5, init=False, mask=False, references=[]), [peft, comfy], [
        Case([(peft, 1.0)]), Case([(comfy, 0.8)]), Case([(comfy, 0.6), (peft, 1.0)])])


def of_stored(name, dialects):
    """Adapters for a fixture of stored.py, whose reference uses the dequantised weights."""
    with tempfile.TemporaryDirectory() as folder:
        family, pipe, case, run, _, _ = stored.MODELS[name](folder)
        same_files(folder, os.path.join(HERE, "stored", name, "model"))
    adapters = dialects(pipe)

    def run_stored(pipe, case):
        return latents({n.removeprefix("case0."): t for n, t in run(pipe, case).items()})

    return Fixture(family, pipe, f"stored/{name}/model", run_stored, case | dict(steps=2), adapters, [])


def same_files(made, committed):
    for folder, _, names in os.walk(made):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                with open(path, "rb") as a, open(os.path.join(committed, os.path.relpath(path, made)), "rb") as b:
                    assert a.read() == b.read(), path


def zimage_gguf():
    """Adapters with separate pairs for queries, keys and values, for the rows of a fused 4-bit weight."""
    def dialects(pipe):
        peft = Adapter(pipe, "peft.safetensors", torch.bfloat16)
        all_of(peft, "transformer.", "transformer", by_plain(pipe, "transformer"), PEFT)
        return [peft]

    fixture = of_stored("zimage_gguf", dialects)
    fixture.cases = [Case([(fixture.adapters[0], 1.0)])]
    return fixture


def wan_gguf():
    def dialects(pipe):
        comfy = Adapter(pipe, "comfy.safetensors", torch.float16)
        all_of(comfy, "diffusion_model.", "transformer", by_authors(pipe, "transformer", stored.wan_names), KOHYA, unlike)
        return [comfy]

    fixture = of_stored("wan_gguf", dialects)
    fixture.cases = [Case([(fixture.adapters[0], 1.0)], "diffusers reads no alphas outside of blocks")]
    return fixture


MODELS = dict(zimage=zimage, flux=flux_1, flux2=flux2_klein, krea2=krea_2, sdxl=sdxl, lycoris=lycoris, sd1=sd1,
              qwen_image=qwen_image, qwen21=qwen_image_21, wan22=wan_22, sd35=sd35, anima=anima_base,
              sd3_medium=sd3_medium, zimage_gguf=zimage_gguf, wan_gguf=wan_gguf)


def make(name):
    spec, fixture = Spec(name), MODELS[name]()
    target = files.fixture_begin(HERE, spec.name)
    os.symlink(os.path.relpath(os.path.join(HERE, fixture.model), os.path.join(HERE, spec.name)), os.path.join(target, "model"))
    for adapter in fixture.adapters:
        adapter.write(target)
    tensors = {}
    cases = [make_case(fixture, target, case, k, tensors) for k, case in enumerate(fixture.cases)]
    files.write_json(os.path.join(target, "bf16.json"), {})
    files.fixture_end(HERE, spec, tensors, dict(family=fixture.family, cases=cases))


def main():
    parser = argparse.ArgumentParser(description="Generates the adapter fixtures.")
    parser.add_argument("--only", choices=MODELS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in [args.only] if args.only else MODELS:
        make(name)


if __name__ == "__main__":
    main()
