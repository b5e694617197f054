"""Generates the fixture control_zimage: Z-Image with control networks, for make.py.

The model is zimage_base's; its transformer has 3 layers and 2 noise refiner layers. Networks:
  controlnet     1.0: plain refiner; layers at 0 and 1 (config.json), 16 channels
  controlnet_2   2.1: refiner with residuals; layers at 0 and 2, 33 channels
  controlnet_3   2.0, one file as VideoX-Fun publishes it: no config.json, refiner of zeros; layers at 0, 1, 2
  controlnet_4   lite, one file in ComfyUI's names after conversion (attention.qkv): refiner with residuals; layer at 0
LoRA: adapter.safetensors, on the transformer.

Case k's reference tensors: as in zimage_base, without moments.* and decoded, and picture.control_NNN of control.py. case{k}.diffusers.latent
(cases 1, 3): the result if the refiner's residuals go only to the network's copy of the tokens, as in diffusers 0.42.

The reference is diffusers' pipelines with hooks on the transformer, after VideoX-Fun's z_image_transformer2d_control.py, which diffusers
does not follow. make() checks that the hooks, with diffusers' refiner, give the latents of ZImageControlNet(Inpaint)Pipeline.
"""

import contextlib
import dataclasses
import json
import os

import torch
from diffusers import ZImageControlNetInpaintPipeline, ZImageControlNetModel, ZImageControlNetPipeline
from diffusers.image_processor import VaeImageProcessor
from PIL import Image
from safetensors.torch import load_file, save_file

import control
import files
import inputs
import reference_tensors
import runs
import specs
import tokens
import weights
import zimage_pipelines
from watch import relative

FORMS = {"control_zimage": dict(model_of="zimage_base", share="zimage_a", shift=6.0)}
TEXTS = zimage_pipelines.TEXTS

RULES = [("before_proj", 0.7, 0.1), ("after_proj", 0.5, 0.1), ("control_all_x_embedder", 0.2, 0.06), *weights.TRANSFORMER]

# Networks: places of the layers, kind of refiner (add_control_noise_refiner), channels.
NETWORKS = [
    dict(places=[0, 1], refiner=None, channels=16),
    dict(places=[0, 2], refiner="control_noise_refiner", channels=33),
    dict(places=[0, 1, 2], refiner="control_layers", channels=33),
    dict(places=[0], refiner="control_noise_refiner", channels=33),
]


def _case(*grid_steps_seed, controls, norm=None, until=None, lora=None, **more):
    return specs.case(*grid_steps_seed, **more) | dict(cfg_norm=norm, cfg_until=until, controls=controls, lora=lora)


use = control.use
CASES = [
    # 15 image tokens, 17 padding tokens; prompts of different length; all networks, for influence.txt
    _case((5, 3), 3, 42, cfg=4.0, negative="ugly", controls=[use(0, 0.9), use(1, 0.8, size=(40, 30)), use(2, 0.7, size=(30, 40)), use(3, 0.8, size=(24, 36))]),
    # 35 image tokens; an image of another size
    _case((7, 5), 3, 7, prompt="house", cfg=3.0, negative="empty", controls=[use(1, 1.0, size=(75, 40))]),
    # no padding
    _case((8, 4), 2, 11, controls=[use(0, 0.9, size=(50, 40))]),
    _case((3, 5), 3, 123456789, cfg=2.5, negative="house", until=0.2, controls=[use(2, 0.7, size=(33, 70))]),
    # two images of one network, and a batch
    _case((3, 2), 2, 5, batch=2, controls=[use(3, 0.6, size=(40, 30)), use(3, 1.1, size=(31, 47))]),
    # three networks at once, with windows
    _case((3, 4), 4, 2024, cfg=2.0, negative="ugly", controls=[
        use(0, 0.9, end=0.5, size=(40, 50)), use(1, 0.6, start=0.25, size=(32, 40)), use(2, 0.5, start=0.5, end=0.75, size=(30, 30))]),
    # inpainting by the network: the start is noise
    _case((4, 3), 2, 99, cfg=3.0, negative="empty", controls=[use(1, 1.0, mask=True, inpaint=True, size=(35, 28))]),
    _case((3, 4), 2, 31, controls=[use(3, 1.0, mask=True, inpaint=True, image=False)]),
    # img2img: the window counts the steps that run; a LoRA
    _case((4, 3), 5, 77, prompt="house", init=True, strength=0.6, controls=[use(1, 0.8, start=0.3, size=(50, 30))], lora=0.7),
    # inpainting with the blend; the network gets the request's mask and image
    _case((3, 4), 3, 8, cfg=2.5, negative="ugly", init=True, mask=True, strength=1.0, controls=[use(1, 0.8, size=(30, 40)), use(0, 0.5, size=(24, 30))]),
]


@dataclasses.dataclass
class Spec(specs.Spec):
    @property
    def shift(self):
        return self.form["shift"]


def spec(name, seed):
    form = FORMS[name]
    shared = specs.spec(form["share"], seed)
    fields = {f.name: getattr(shared, f.name) for f in dataclasses.fields(shared)}
    return Spec(**fields | dict(name=name, form=form, cases=CASES))


# ---- networks ----

def _network(spec, about):
    return ZImageControlNetModel(
        control_layers_places=about["places"], control_refiner_layers_places=list(range(spec.refiners)), control_in_dim=about["channels"],
        add_control_noise_refiner=about["refiner"], dim=spec.dim, n_refiner_layers=spec.refiners, n_heads=spec.heads,
        n_kv_heads=spec.heads, norm_eps=spec.norm_eps)


def _comfy_names(tensors):
    """Returns tensors with the names of ComfyUI's transformer blocks, where queries, keys and values are one tensor."""
    out = {}
    for name, value in tensors.items():
        if "attention.to_q" in name:
            parts = [tensors[name.replace("to_q", part)] for part in ("to_q", "to_k", "to_v")]
            out[name.replace("to_q", "qkv")] = torch.cat(parts)
        elif "attention.to_k" not in name and "attention.to_v" not in name:
            out[name.replace("to_out.0", "out").replace("norm_q", "q_norm").replace("norm_k", "k_norm")] = value
    return out


def write_networks(spec, target):
    """Writes the networks in bf16; returns them in f32 with the same values."""
    networks = []
    for k, about in enumerate(NETWORKS):
        model = weights.randomize(_network(spec, about), RULES, f"{spec.seed} controlnet {k}").bfloat16()
        folder, tensors = control.folder_of(target, k), {name: t.contiguous() for name, t in model.state_dict().items()}
        if k < 2:
            files.write_model(folder, model, "bf16")
        elif about["refiner"] == "control_layers":  # the published file has an untrained refiner, of two layers
            blank = weights.randomize(_network(spec, about | dict(refiner="control_noise_refiner")), RULES, f"{spec.seed} untrained").bfloat16()
            tensors |= {name: torch.zeros_like(t) if "_proj." in name else t.contiguous() for name, t in blank.state_dict().items()
                        if name.startswith("control_noise_refiner.0.")}
            save_file(tensors, folder + ".safetensors", metadata={"format": "pt"})
        else:
            save_file(_comfy_names(tensors), folder + ".safetensors", metadata={"format": "pt"})
        networks.append(model.float().requires_grad_(False).eval())
    return networks


# ---- the reference ----

def run_block(block, c, arguments):
    """Runs a control block as ZImageTransformerBlock: without before_proj, after_proj and the list of residuals."""
    mask, rope, adaln = arguments
    scale_in, gate_in, scale_out, gate_out = block.adaLN_modulation(adaln).unsqueeze(1).chunk(4, dim=2)
    attention = block.attention(block.attention_norm1(c) * (1 + scale_in), attention_mask=mask, freqs_cis=rope)
    c = c + gate_in.tanh() * block.attention_norm2(attention)
    return c + gate_out.tanh() * block.ffn_norm2(block.feed_forward(block.ffn_norm1(c) * (1 + scale_out)))


class Use:
    """A network with one control latent [C, 1, h, w] and a strength; steps: the steps in which it runs."""

    def __init__(self, network, latent, strength, steps):
        self.network, self.latent, self.strength, self.steps = network, latent, strength, steps

    def embed(self, x, n):
        """Returns the control rows [lanes, rows, C]; rows from n on are padding, as in x."""
        c_, _, h, w = self.latent.shape
        rows = self.latent.to(x.dtype).view(c_, h // 2, 2, w // 2, 2).permute(1, 3, 2, 4, 0).reshape(n, -1)
        c = x.clone()
        c[:, :n] = self.network.control_all_x_embedder["2-1"](rows)
        return c

    def residuals(self, layers, c, x, arguments):
        """Runs control layers; returns the residuals and the last c."""
        c, out = layers[0].before_proj(c) + x, []
        for layer in layers:
            c = run_block(layer, c, arguments)
            out.append(self.strength * layer.after_proj(c))
        return out, c

    def refine(self, x, n, arguments):
        """Returns the residuals of the noise refiner's layers, and c."""
        net, c = self.network, self.embed(x, n)
        kind = net.config.add_control_noise_refiner
        if kind is None:
            for layer in net.control_noise_refiner:
                c = layer(c, *arguments)
            return [], c
        return self.residuals(net.control_layers if kind == "control_layers" else net.control_noise_refiner, c, x, arguments)


class Controlled:
    """Context in which the transformer has control networks; step counts the timesteps. wrong: a mistake to measure."""

    def __init__(self, transformer, uses, wrong=None):
        self.transformer, self.uses, self.wrong = transformer, uses, wrong

    def restart(self):
        self.step, self.timestep = -1, None

    def __enter__(self):
        t = self.transformer
        self.restart()
        self.hooks = [t.register_forward_pre_hook(self.begin, with_kwargs=True)]
        self.hooks += [t.noise_refiner[0].register_forward_pre_hook(self.refine)]
        self.hooks += [layer.register_forward_hook(lambda _m, _a, out, i=i: self.add(out, self.refiner, i)) for i, layer in enumerate(t.noise_refiner)]
        self.hooks += [t.layers[0].register_forward_pre_hook(self.control)]
        self.hooks += [layer.register_forward_hook(lambda _m, _a, out, i=i: self.add(out, self.main, i)) for i, layer in enumerate(t.layers)]
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def begin(self, _module, args, _kwargs):
        if args[1][0].item() != self.timestep:
            self.step, self.timestep = self.step + 1, args[1][0].item()
        self.now = [use for use in self.uses if self.step in use.steps]
        _, _, h, w = args[0][0].shape
        self.tokens = h // 2 * (w // 2)

    @staticmethod
    def add(out, residuals, i):
        for places in residuals:
            if i in places:
                out = out + places[i]
        return out

    def refine(self, _module, args):
        x, arguments = args[0], args[1:4]
        self.refined, self.refiner, self.copies = [], [], []
        for use in self.now:
            if self.wrong == "no x":
                given, c = use.refine(torch.zeros_like(x), self.tokens, arguments)
            else:
                given, c = use.refine(x, self.tokens, arguments)
            places = dict(zip(range(len(self.transformer.noise_refiner)), given))
            self.refined.append(c)
            self.copies.append((x, arguments, places))
            self.refiner.append({} if self.wrong == "diffusers" else places)

    def control(self, _module, args):
        unified, arguments, self.main = args[0], args[1:4], []
        for use, c, copy in zip(self.now, self.refined, self.copies):
            n, joined, x = c.shape[1], unified.clone(), unified
            joined[:, :n] = c
            if self.wrong == "diffusers":  # x with residuals exists only in the network
                copied, inside, places = copy
                for i, layer in enumerate(self.transformer.noise_refiner):
                    copied = layer.forward(copied, *inside)
                    copied = copied + places[i] if i in places else copied
                x = unified.clone()
                x[:, :n] = copied
            given, _ = use.residuals(use.network.control_layers, joined, torch.zeros_like(x) if self.wrong == "no x" else x, arguments)
            if self.wrong == "image rows":
                given = [torch.cat([g[:, :n], torch.zeros_like(g[:, n:])], 1) for g in given]
            places = use.network.config.control_layers_places
            self.main.append(dict(zip(range(len(places)) if self.wrong == "places" else places, given)))


def _encode(pipe, picture):
    """Returns the mean of the posterior of a picture [1, 3, H, W], scaled."""
    config = pipe.vae.config
    return (pipe.vae.encode(picture).latent_dist.mode() - config.shift_factor) * config.scaling_factor


def control_latent(pipe, case, about, pictures, channels):
    """Returns a control's latent [C, 1, h, w], as in pipeline_z_image_controlnet_inpaint.py."""
    size = dict(height=case["height"], width=case["width"])
    images = VaeImageProcessor(vae_scale_factor=2 * pipe.vae_scale_factor)
    masks = VaeImageProcessor(vae_scale_factor=2 * pipe.vae_scale_factor, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    shape = (1, case["channels"], case["latent_height"], case["latent_width"])
    # VideoX-Fun: without an image the latent is 0
    latent = _encode(pipe, images.preprocess(pictures[about["image"]], **size)) if about["image"] else torch.zeros(shape)
    if channels == case["channels"]:
        return latent[0][:, None]
    mask, inpaint = (about[part] or name if about[part] or case["mask"] else None for part, name in (("mask", "picture.mask"), ("inpaint", "picture.init")))
    if mask is None:
        return torch.cat([latent, torch.zeros(1, channels - case["channels"], *shape[2:])], 1)[0][:, None]
    mask = masks.preprocess(pictures[mask], **size)
    picture = images.preprocess(pictures[inpaint], **size) * (mask < 0.5)
    mask = torch.nn.functional.interpolate(1 - mask, size=shape[2:], mode="nearest")
    return torch.cat([latent, mask, _encode(pipe, picture)], 1)[0][:, None]


def uses_of(pipe, networks, case, pictures):
    """Returns the uses of a case. Step i of n uses a network if i / n >= start and (i + 1) / n <= end."""
    n = case["steps"] if not case["init"] else int(case["steps"] - max(case["steps"] - case["steps"] * case["strength"], 0))
    out = []
    for about in case["controls"]:
        network = networks[about["network"]]
        steps = [i for i in range(n) if i / n >= about["start"] and (i + 1) / n <= about["end"]]
        latent = control_latent(pipe, case, about, pictures, network.config.control_in_dim)
        out.append(Use(network, latent, about["strength"], steps))
    return out


# ---- a LoRA ----

LORA = ["layers.0.attention.to_v", "layers.1.feed_forward.w2", "layers.2.attention.to_q", "noise_refiner.1.feed_forward.w1", "layers.1.attention.to_out.0"]


def write_lora(spec, target):
    """Writes a LoRA of rank 3 in diffusers' names; returns its products by parameter name."""
    generator, tensors, products = torch.Generator().manual_seed(spec.seed), {}, {}
    transformer = reference_tensors.load(os.path.join(target, "..", spec.form["model_of"], "model")).transformer
    for name in LORA:
        out, into = transformer.get_parameter(name + ".weight").shape
        down, up = torch.randn(3, into, generator=generator) / into**0.5, 0.3 * torch.randn(out, 3, generator=generator) / 3**0.5
        tensors[f"transformer.{name}.lora_A.weight"], tensors[f"transformer.{name}.lora_B.weight"] = down, up
        products[name + ".weight"] = up @ down
    save_file(tensors, os.path.join(target, "adapter.safetensors"), metadata={"format": "pt"})
    return products


@contextlib.contextmanager
def merged(pipe, products, strength):
    """Context in which the LoRA is merged into the transformer's weights."""
    parameters = {name: pipe.transformer.get_parameter(name) for name in (products if strength else {})}
    kept = {name: parameter.data.clone() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        parameter.data += (strength * products[name]).to(parameter.dtype)
    yield
    for name, parameter in parameters.items():
        parameter.data = kept[name]


# ---- the fixture ----

def run_case(pipe, networks, products, case, pictures, wrong=None):
    uses = uses_of(pipe, networks, case, {f"picture.{name}": Image.fromarray(p) for name, p in pictures.items()})
    config = pipe.vae.config

    def call(pipe, case, pictures, generator):
        runner, arguments = zimage_pipelines.call(pipe, case, pictures, generator)
        runner.set_progress_bar_config(disable=True)
        controlled.restart()  # each image of a batch is a separate call
        return runner, arguments

    with merged(pipe, products, case["lora"]), Controlled(pipe.transformer, uses, wrong) as controlled:
        references, _ = runs.run_case(pipe, case, pictures, call, lambda z: (z - config.shift_factor) * config.scaling_factor)
    # the pipeline encodes the masked image but does not use the result
    return {name: value for name, value in references.items() if not name.startswith(("moments.", "decoded")) and not name.endswith(".masked")}


def _model_of(about, transformer):
    """Returns a network that fits the transformer, with undefined weights."""
    config = transformer.config
    return ZImageControlNetModel(
        control_layers_places=about["places"], control_refiner_layers_places=[0, 1], control_in_dim=about["channels"],
        add_control_noise_refiner=about["refiner"], dim=config.dim, n_refiner_layers=config.n_refiner_layers, n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads, norm_eps=config.norm_eps)


def _load(model, tensors):
    """Sets a network's weights to those of a file of the fixture, in the model's dtype."""
    if model.control_noise_refiner is None:
        tensors = {name: t for name, t in tensors.items() if not name.startswith("control_noise_refiner.")}
    tensors = dict(tensors)
    for name in [name for name in tensors if "attention.qkv" in name]:
        tensors |= dict(zip((name.replace("qkv", part) for part in ("to_q", "to_k", "to_v")), tensors.pop(name).chunk(3)))
    names = {name: name.replace(".out.", ".to_out.0.").replace("q_norm", "norm_q").replace("k_norm", "norm_k") for name in tensors}
    model.load_state_dict({names[name]: t for name, t in tensors.items()})
    return model.requires_grad_(False).eval()


def _files(fixture):
    """Returns the networks' files, with their names in the table of fixtures."""
    for k in range(len(NETWORKS)):
        folder = control.folder_of(fixture, k)
        if k < 2:
            yield os.path.basename(folder), os.path.join(folder, "diffusion_pytorch_model.safetensors")
        else:
            yield os.path.basename(folder) + ".safetensors", folder + ".safetensors"


def _base(fixture):
    return reference_tensors.load(os.path.join(fixture, "..", FORMS[os.path.basename(fixture)]["model_of"], "model"))


def _networks(fixture, transformer):
    return [_load(_model_of(about, transformer), load_file(path)) for (_, path), about in zip(_files(fixture), NETWORKS)]


@torch.no_grad()
def influence(fixture):
    """Writes influence.txt: the change of case 0's latent if a tensor of a network is zero. Returns False if one has no effect."""
    with open(os.path.join(fixture, "expect.json"), encoding="utf-8") as f:
        case = json.load(f)["cases"][0]
    known = inputs.of_case(load_file(os.path.join(fixture, "reference.safetensors")), 0)
    pictures = {name: Image.fromarray(p.numpy()) for name, p in known.items() if name.startswith("picture.")}
    pipe = _base(fixture)
    networks = _networks(fixture, pipe.transformer)
    hidden = {lane: reference_tensors.encode(pipe, prompt)[1] for lane, prompt in inputs.lanes(case)}
    uses = uses_of(pipe, networks, case, pictures)

    def latent():
        with Controlled(pipe.transformer, uses):
            return zimage_pipelines.denoise(pipe, case, known | {f"case0.{name}": t for name, t in known.items()}, hidden, 0)

    first, counted, unused = latent(), [], []
    assert relative(first, known["latent"][0]) < 5e-6
    for (label, path), network in zip(_files(fixture), networks):
        tensors = load_file(path)
        for name, tensor in tensors.items():
            _load(network, tensors | {name: torch.zeros_like(tensor)})
            moved = relative(latent(), first)
            untrained = network.control_noise_refiner is None and name.startswith("control_noise_refiner.")
            (unused if untrained else counted).append((moved, f"{label}.{name}"))
        _load(network, tensors)
    failed = [name for moved, name in counted if moved <= 1e-3] + [name for moved, name in unused if moved]
    counted.sort()
    lines = [f"{os.path.basename(fixture)}: {len(counted)} tensors counted, least influence {counted[0][0]:.2e} (gate 0.001), {len(failed)} failed.",
             "Relative L2 change of case 0's final latent when the tensor is zero.", "", "Zeroed tensors, least influence first:"]
    lines += [f"  {moved:.2e}  {name}" for moved, name in counted]
    lines += ["", "Tensors that the mathematics cancels or that are never used:", "  the refiner of 2.0 was never trained:"]
    lines += [f"    {moved:.2e}  {name}" for moved, name in unused]
    with open(os.path.join(fixture, "influence.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print(lines[0])
    return not failed


def everything(folder, dtype, known, expect):
    """Returns the final latents by reference tensor name (../bf16.py)."""
    fixture = os.path.dirname(folder)
    pipe = _base(fixture)
    networks = _networks(fixture, pipe.transformer)
    lora = {name: t.to(dtype) for name, t in load_file(os.path.join(fixture, "adapter.safetensors")).items()}
    products = {f"{name}.weight": lora[f"transformer.{name}.lora_B.weight"] @ lora[f"transformer.{name}.lora_A.weight"] for name in LORA}
    uses, out = {}, {}
    for case in expect["cases"]:  # the VAE is not measured
        pictures = {name: Image.fromarray(p.numpy()) for name, p in inputs.of_case(known, case["index"]).items() if name.startswith("picture.")}
        uses[case["index"]] = uses_of(pipe, networks, case, pictures)
    for model in (pipe.transformer, pipe.text_encoder, *networks):
        model.to(dtype)
    for case in expect["cases"]:
        hidden = {lane: reference_tensors.encode(pipe, prompt)[1] for lane, prompt in inputs.lanes(case)}
        strength, images = case["adapters"][0]["strength"] if case["adapters"] else 0, []
        with merged(pipe, products, strength), Controlled(pipe.transformer, uses[case["index"]]) as controlled:
            for k in range(case["batch"]):
                controlled.restart()
                images.append(zimage_pipelines.denoise(pipe, case, known, hidden, k))
        out[f"case{case['index']}.latent"] = torch.stack(images)
    return out


def from_diffusers(pipe, networks, case, pictures):
    """Returns the latent by diffusers' own pipeline; None if it has none for the case."""
    about = case["controls"][0]
    if len(case["controls"]) > 1 or case["init"] or case["lora"] or case["batch"] > 1 or not about["image"]:
        return None
    network = ZImageControlNetModel.from_transformer(networks[about["network"]], pipe.transformer)
    known = {f"picture.{name}": Image.fromarray(p) for name, p in pictures.items()}
    kind, more = ZImageControlNetPipeline, {}
    if about["mask"]:
        kind, more = ZImageControlNetInpaintPipeline, dict(image=known[about["inpaint"]], mask_image=known[about["mask"]])
    runner = kind(**{k: v for k, v in pipe.components.items()}, controlnet=network)
    runner.set_progress_bar_config(disable=True)
    _, common = zimage_pipelines.call(pipe, case, known, torch.Generator().manual_seed(case["seed"]))
    latent = runner(**common, **more, control_image=known[about["image"]], controlnet_conditioning_scale=about["strength"], output_type="latent").images
    for part in ("t_embedder", "all_x_embedder", "cap_embedder", "rope_embedder", "noise_refiner", "context_refiner"):
        setattr(network, part, None)
    return latent


def mistakes(pipe, networks, products, case, pictures, latent):
    """Prints the relative change of the latent by each mistake."""
    for wrong in ("diffusers", "no x", "image rows", "places"):
        other = run_case(pipe, networks, products, dict(case), pictures, wrong)["latent"]
        print(f"  case {case['index']}: {wrong}: {relative(other, latent):.1e}")


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    networks = write_networks(spec, target)
    products = write_lora(spec, target)
    pipe = reference_tensors.load(os.path.join(out, spec.form["model_of"], "model"))
    cases, tensors = [], {}
    for k, wanted in enumerate(spec.cases):
        case = inputs.of_tokens(spec, TEXTS, tokens.MAX_TOKENS, k, wanted) | dict(
            shift=spec.shift, cfg_norm=wanted["cfg_norm"], cfg_until=wanted["cfg_until"], lora=wanted["lora"])
        pictures = inputs.pictures_of(spec, case) | control.pictures_of(spec, case, wanted["controls"])
        for lane, prompt in inputs.lanes(case):
            ids, _ = reference_tensors.encode(pipe, prompt)
            tensors |= inputs.named(case, {f"ids.{lane}": torch.tensor(ids, dtype=torch.int32)})
        references = run_case(pipe, networks, products, case, pictures)
        theirs = from_diffusers(pipe, networks, case, pictures)
        if theirs is not None:
            ours = run_case(pipe, networks, products, dict(case), pictures, "diffusers")["latent"]
            assert relative(ours, theirs) < 5e-6, (k, relative(ours, theirs))
            if k in (1, 3):
                references["diffusers.latent"] = theirs
        if os.environ.get("MISTAKES"):
            mistakes(pipe, networks, products, case, pictures, references["latent"])
        case["adapters"] = [dict(file="adapter.safetensors", strength=case.pop("lora"))] if case["lora"] else []
        tensors |= inputs.named(case, references)
        cases.append(case)
    files.fixture_end(out, spec, tensors, dict(family="zimage_base", cases=cases))
