"""Runs the Z-Image reference and records inputs and outputs as reference tensors."""

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline
from diffusers.pipelines.z_image.pipeline_z_image import get_default_z_image_sigmas

import autoencoders
import tokens
from specs import FAMILY_SHIFT
from watch import Watch, relative

SCHEDULE_STEPS = [1, 2, 7, 8, 28, 50]
SCHEDULE_SHIFTS = [1.0, 3.0, 2.5, 5.0]

# Seeds and shapes of noise tests. torch uses a scalar path for counts below 16, and redraws the last sixteen for
# counts that are no multiple of 16.
NOISE = [
    (0, [1]), (0, [16]), (1, [5]), (2, [15]), (3, [17]), (42, [31]), (42, [1, 16, 4, 6]), (42, [1, 4, 3, 3]), (7, [1, 3, 7, 11]),
    (2**31, [40]), (2**32 - 1, [33]), (2**32 + 5, [19]), (2**63 - 1, [8]), (123, [700]), (5, [640]),
]


def load(folder, dtype=torch.float32):
    """Loads the model folder into the reference pipeline, in f32 whatever the files' dtype."""
    pipe = ZImagePipeline.from_pretrained(folder, dtype=dtype)
    if "shift" not in FlowMatchEulerDiscreteScheduler.load_config(folder, subfolder="scheduler"):
        # diffusers defaults to shift 1.0, Sluice to the family's shift, if the file has no key
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config, shift=FAMILY_SHIFT)
    pipe.set_progress_bar_config(disable=True)
    for model in (pipe.transformer, pipe.text_encoder, pipe.vae):
        model.requires_grad_(False).eval()
    return pipe


@torch.no_grad()
def encode(pipe, prompt):
    """Returns (ids without padding, their hidden state) of a prompt, by the pipeline's own code."""
    ids = tokens.templated(pipe.tokenizer, prompt)
    hidden = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)[0][0]
    assert hidden.shape[0] == len(ids)
    return ids, hidden


@torch.no_grad()
def run_case(pipe, case):
    """Runs one case with the pipeline; returns tensors by name, without the case's prefix.

    Image k of a batch is a separate call with seed + k.  A hook records the decoder's unclamped
    output, so the picture is exactly the pipeline's.
    """
    pipe.scheduler.set_shift(case["shift"])
    references, images = {}, []
    for k in range(case["batch"]):
        steps, decoded, noise = [], [], []

        def on_step(_pipe, _i, _t, values):
            steps.append(values["latents"].clone())
            return {}

        shape = (1, pipe.transformer.in_channels, case["latent_height"], case["latent_width"])
        seed = case["seed"] + k
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        first = []
        hooks = [
            pipe.vae.decoder.register_forward_hook(lambda _m, _i, out: decoded.append(out.clone())),
            pipe.transformer.register_forward_pre_hook(lambda _m, args: first.append(args[0][0].clone())),
        ]
        picture = pipe(
            case["prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
            guidance_scale=case["cfg_scale"] - 1, negative_prompt=case["negative_prompt"],
            generator=torch.Generator().manual_seed(seed), output_type="pil", callback_on_step_end=on_step).images[0]
        for hook in hooks:
            hook.remove()
        assert torch.equal(first[0].squeeze(1), noise[0])  # the pipeline's loop starts from this noise
        images.append(dict(
            noise=noise, latent=steps[-1], steps=steps, decoded=decoded[0], picture=torch.from_numpy(np.array(picture))[None]))
    for name in ("noise", "latent", "decoded", "picture"):
        references[name] = torch.cat([image[name] for image in images])
    if case["batch"] == 1:
        references["decoded"], references["picture"] = references["decoded"][0], references["picture"][0]
    else:
        del references["decoded"]  # batches store only the 8-bit pictures: a quarter of the bytes
    if case["index"] == 0:
        for i, latent in enumerate(images[0]["steps"]):
            references[f"latent_{i + 1:03}"] = latent
    references["sigmas"] = pipe.scheduler.sigmas.clone()
    references["timesteps"] = pipe.scheduler.timesteps.clone()
    assert references["sigmas"].dtype == references["timesteps"].dtype == torch.float32
    return references


def positions(model, latent, hidden):
    """Returns position ids of image and caption tokens, padding included.

    The reference creates too many for a caption (padding twice) and truncates them later.
    """
    image, caption, _, image_ids, caption_ids, _, _ = model.patchify_and_embed([latent], [hidden], 2, 1)
    return {"image": image_ids[0][:len(image[0])], "caption": caption_ids[0][:len(caption[0])]}


@torch.no_grad()
def transformer_calls(pipe, cases, references):
    """Complete forward passes, one image and one caption each: two timesteps at two sizes.

    The caption is the case's cond for the first size, and its uncond (or cond, if that
    is empty) for the second, so that both padding lengths occur.
    """
    calls, out = [], {}
    steps = references["case0.timesteps"]
    for which, (k, text) in enumerate([(0, "cond"), (2, "uncond")]):
        for step in (0, len(steps) - 2):
            n = 2 * which + (step > 0)
            t = (1000 - steps[step:step + 1]) / 1000
            # also a timestep with many digits, outside the schedule
            if step > 0:
                t = t + 0.0371
            latent = references[f"case{k}.noise"][0] if step == 0 else references[f"case{k}.latent"][0]
            hidden = references[f"case{k}.hidden.{text}"]
            velocity = pipe.transformer([latent.unsqueeze(1)], t, [hidden], return_dict=False)[0][0]
            out[f"transformer.t{n}.in"] = latent.clone()
            out[f"transformer.t{n}.t"] = t.clone()
            out[f"transformer.t{n}.out"] = velocity.squeeze(1).clone()
            calls.append(dict(name=f"transformer.t{n}", caption=f"case{k}.hidden.{text}", caption_tokens=hidden.shape[0], t=float(t)))
    return out, calls


@torch.no_grad()
def block_references(pipe, spec, references):
    """Records one block of each kind in the first forward pass of case 0's cond lane."""
    model = pipe.transformer
    out, about = {}, {}
    with Watch({
        "block.context_refiner.0": model.context_refiner[0],
        "block.noise_refiner.1": model.noise_refiner[1],
        "block.layers.1": model.layers[1],
        "block.final": model.all_final_layer["2-1"],
        "embed.image": model.all_x_embedder["2-1"],
        "embed.caption": model.cap_embedder,
        "block.adaln": model.t_embedder,
    }) as watch:
        t = (1000 - references["case0.timesteps"][1:2]) / 1000
        model([references["case0.latent_001"][0].unsqueeze(1)], t, [references["case0.hidden.cond"]], return_dict=False)
    seen = watch.tensors
    out["block.t"] = t
    out["block.adaln_input"] = seen.pop("block.adaln.out")
    seen.pop("block.adaln.in")
    out.update(seen)

    # small inputs to the final norm: the pipeline's inputs are too large to show the norm's epsilon
    small = seen["block.final.in"][:, :8] * 0.01
    out["block.final_small.in"] = small
    out["block.final_small.out"] = model.all_final_layer["2-1"](small, c=out["block.adaln_input"])

    # the timestep embedder alone; its input is t * t_scale
    scaled = torch.tensor([0.0, 0.25, 0.7371, 1.0]) * model.t_scale
    out["t_embedder.in"] = scaled
    out["t_embedder.freq"] = model.t_embedder.timestep_embedding(scaled, model.t_embedder.frequency_embedding_size)
    out["t_embedder.out"] = model.t_embedder(scaled)

    # cos and sin of every position of case 0's image and caption, padding included
    latent, hidden = references["case0.noise"][0].unsqueeze(1), references["case0.hidden.cond"]
    for name, ids in positions(model, latent, hidden).items():
        out[f"rope.{name}.ids"] = ids.to(torch.int32)
        out[f"rope.{name}"] = torch.view_as_real(model.rope_embedder(ids))

    # a middle layer of the text encoder, without padding tokens
    layer = (spec.text_layers - 1) // 2
    ids = references["case0.ids.cond"].long()[None]
    with Watch({"block.text": pipe.text_encoder.layers[layer]}) as watch:
        last = pipe.text_encoder(input_ids=ids, output_hidden_states=True).hidden_states
    assert relative(last[-2][0], references["case0.hidden.cond"]) < 1e-6  # right padding changes nothing
    out.update(watch.tensors)
    out["text.embedding"] = last[0][0]
    about["block.text"] = dict(layer=layer, name=f"layers.{layer}", tokens=ids.shape[1])
    about["block.adaln_input"] = dict(t=float(t))
    return out, about


def decoder_references(pipe, spec):
    """Records the decoder reference tensors of AutoencoderKL."""
    blocks = pipe.vae.decoder.up_blocks
    level = next(i for i, block in enumerate(blocks) if block.resnets[0].conv_shortcut is not None)
    return autoencoders.decoder_references(pipe, spec, f"up_blocks.{level}.resnets.0")


def schedule_references():
    """Returns the schedule alone, for several lengths and shifts."""
    out = {}
    for shift in SCHEDULE_SHIFTS:
        for steps in SCHEDULE_STEPS:
            scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift)
            scheduler.set_timesteps(sigmas=get_default_z_image_sigmas(steps))
            out[f"schedule.{steps}.{shift:g}.sigmas"] = scheduler.sigmas.clone()
            out[f"schedule.{steps}.{shift:g}.timesteps"] = scheduler.timesteps.clone()
    return out


def noise_references():
    """torch.randn and the uniforms of the same generator.

    From 16 elements on randn uses 24-bit uniforms (torch.rand in f32), below that
    53-bit ones (torch.rand in f64); each pair of normals uses two uniforms.
    """
    out, about = {}, []
    for n, (seed, shape) in enumerate(NOISE):
        count = int(np.prod(shape))

        def draw(kind, dtype):
            return kind(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)

        out[f"noise.{n}.randn"] = draw(torch.randn, torch.float32)
        out[f"noise.{n}.rand"] = draw(torch.rand, torch.float32)
        if count < 16:
            out[f"noise.{n}.rand64"] = draw(torch.rand, torch.float64)
        about.append(dict(name=f"noise.{n}", seed=seed, shape=shape))
    return out, about
