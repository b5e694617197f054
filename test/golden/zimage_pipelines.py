"""Generates the fixture zimage_base: Z-Image's guidance, img2img and inpainting, for make.py.

The weights are those of zimage_a, so blocks are compared there; model/ links to them and has its own scheduler (shift 6).
Case k's reference tensors have the prefix "case{k}." and the names of flux/make.py: ids.cond, ids.uncond, picture.{init,mask},
moments.init, encoded.init, latent_000 (start), latent_001 ..., latent, sigmas, timesteps, decoded, picture.
cfg_norm and cfg_until of a case are cfg_normalization and cfg_truncation of the pipeline.
"""

import dataclasses
import os

import torch
from diffusers import ZImageImg2ImgPipeline, ZImageInpaintPipeline, ZImagePipeline
from PIL import Image

import files
import inputs
import reference_tensors
import runs
import specs
import tokens

FORMS = {"zimage_base": dict(pipeline="ZImageInpaintPipeline", share="zimage_a", shares=["text_encoder", "tokenizer", "transformer", "vae"], shift=6.0)}

TEXTS = {
    "fox": "a red fox in the snow, golden hour, soft light",
    "house": "the old house by the sea; 3 trees & 12 birds, oil painting, it's THE FOX'S den (wide angle), morning light, two boats",
    "ugly": "blurry, low quality, bad hands",
    "empty": "",
}


def _case(*grid_steps_seed, norm=None, until=None, **more):
    return specs.case(*grid_steps_seed, **more) | dict(cfg_norm=norm, cfg_until=until)


CASES = [
    # 1 - sigma of the steps: 0, .05, .14, .33; only the last step is above the limit
    _case((5, 3), 4, 42, cfg=5.0, negative="ugly", until=0.2),
    # each image of the batch has its own norm
    _case((4, 6), 3, 7, prompt="house", cfg=4.0, negative="empty", norm=1.0, batch=2),
    _case((3, 7), 3, 11, cfg=6.0, negative="house", norm=0.7, until=0.05),
    _case((5, 4), 5, 123456789, cfg=3.0, negative="ugly", init=True, strength=0.6),
    _case((4, 3), 2, 5, init=True, strength=1.0),
    _case((5, 4), 3, 2024, prompt="house", cfg=4.0, negative="ugly", init=True, mask=True, strength=1.0, norm=1.1, until=0.1),
    _case((3, 5), 4, 99, cfg=2.5, negative="empty", init=True, mask=True, strength=0.5),
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


def write_folder(spec, folder):
    files.begin_model(folder, spec.form)
    os.makedirs(os.path.join(folder, "scheduler"))
    files.write_json(os.path.join(folder, "scheduler", "scheduler_config.json"), {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.37.0.dev0", "num_train_timesteps": 1000,
        "use_dynamic_shifting": False, "shift": spec.shift})
    files.write_json(os.path.join(folder, "model_index.json"), {
        "_class_name": spec.form["pipeline"],
        "_diffusers_version": "0.37.0.dev0",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    })


def call(pipe, case, pictures, generator):
    """Returns the pipeline for the case and its arguments."""
    common = dict(
        prompt=case["prompt"], negative_prompt=case["negative_prompt"], guidance_scale=case["cfg_scale"] - 1, height=case["height"],
        width=case["width"], num_inference_steps=case["steps"], generator=generator, cfg_normalization=case["cfg_norm"] or 0.0,
        cfg_truncation=case["cfg_until"] or 1.0)
    if not case["init"]:
        return ZImagePipeline(**pipe.components), common
    common |= dict(image=pictures["init"], strength=case["strength"])
    if not case["mask"]:
        return ZImageImg2ImgPipeline(**pipe.components), common
    return ZImageInpaintPipeline(**pipe.components), common | dict(mask_image=pictures["mask"])


def quiet(call):
    """Turns off the progress bar of the case's pipeline."""
    def quiet_call(*arguments):
        pipe, common = call(*arguments)
        pipe.set_progress_bar_config(disable=True)
        return pipe, common
    return quiet_call


def run_case(pipe, case, pictures):
    config = pipe.vae.config
    references, _ = runs.run_case(pipe, case, pictures, quiet(call), lambda z: (z - config.shift_factor) * config.scaling_factor)
    # the pipeline encodes the masked image but does not use the result
    return {name: value for name, value in references.items() if not name.endswith(".masked")}


@torch.no_grad()
def denoise(pipe, case, known, hidden, k):
    """The pipelines' denoising loop for image k, from the reference tensors' start; the latent is f32 (f64) whatever the
    transformer's dtype."""
    known, dtype = inputs.of_case(known, case["index"]), pipe.transformer.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, sigmas = known["latent_000"][k].to(wide), known["sigmas"].to(wide)
    if case["mask"]:
        inpaint = ZImageInpaintPipeline(**pipe.components)
        mask = inpaint.mask_processor.preprocess(Image.fromarray(known["picture.mask"].numpy()), case["height"], case["width"])
        mask = torch.nn.functional.interpolate(mask, size=x.shape[1:])[0].to(wide)
        z = known["encoded.init"][k].to(wide)
        noise = (x - (1 - sigmas[0]) * z) / sigmas[0]

    def run(t, text):
        return pipe.transformer([x[:, None].to(dtype)], t, [text], return_dict=False)[0][0][:, 0].to(wide)

    for i, timestep in enumerate(known["timesteps"]):
        t = (1000 - timestep[None]) / 1000
        cond = guided = run(t, hidden["cond"])
        if case["cfg_scale"] != 1 and t.item() <= (case["cfg_until"] or 1):
            guided = cond + (case["cfg_scale"] - 1) * (cond - run(t, hidden["uncond"]))
            most = (case["cfg_norm"] or torch.inf) * cond.norm()
            guided = guided * min(1, most / guided.norm())
        x = x - (sigmas[i + 1] - sigmas[i]) * guided
        if case["mask"]:
            x = (1 - mask) * ((1 - sigmas[i + 1]) * z + sigmas[i + 1] * noise) + mask * x
    return x


def everything(folder, dtype, known, expect):
    """Returns the final latents by reference tensor name (../bf16.py)."""
    pipe = reference_tensors.load(folder)
    pipe.transformer.to(dtype)
    pipe.text_encoder.to(dtype)
    out = {}
    for case in expect["cases"]:
        hidden = {lane: reference_tensors.encode(pipe, prompt)[1] for lane, prompt in inputs.lanes(case)}
        out[f"case{case['index']}.latent"] = torch.stack([denoise(pipe, case, known, hidden, k) for k in range(case["batch"])])
    return out


def make(spec, out):
    target = files.fixture_begin(out, spec.name)
    write_folder(spec, os.path.join(target, "model"))
    pipe = reference_tensors.load(os.path.join(target, "model"))
    cases, tensors = [], {}
    for k, wanted in enumerate(spec.cases):
        case = inputs.of_tokens(spec, TEXTS, tokens.MAX_TOKENS, k, wanted) | dict(
            shift=spec.shift, cfg_norm=wanted["cfg_norm"], cfg_until=wanted["cfg_until"])
        for lane, prompt in inputs.lanes(case):
            ids, _ = reference_tensors.encode(pipe, prompt)
            tensors |= inputs.named(case, {f"ids.{lane}": torch.tensor(ids, dtype=torch.int32)})
        tensors |= inputs.named(case, run_case(pipe, case, inputs.pictures_of(spec, case)))
        cases.append(case)
    files.fixture_end(out, spec, tensors, dict(family="zimage_base", cases=cases, blocks={}))
