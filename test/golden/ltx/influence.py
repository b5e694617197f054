"""Measurement of the influence of LTX-2's tensors, for ../influence.py."""

import torch

import inputs
from watch import relative

from . import reference_tensors

PARTS = ["text_encoder", "connectors", "transformer", "vae", "audio_vae", "vocoder"]
MEASURE = ("Relative L2 change of case 0's latents of video and sound after two steps (text encoder, connectors, transformer), of decoded frames "
           "(vae.decoder), of an image's moments (vae.encoder), or of a sound's samples (audio_vae, vocoder) when the tensor is zero.")

STEPS = 2


def released(name):
    """Returns the name that the engine gives a tensor, without a language model's prefix."""
    return name.replace("model.language_model.", "model.")


def unused(_pipe):
    return [(r"^audio_vae\.encoder\.", "no sound is encoded")]


class Probe:
    """Repeats case 0 from the first part that a change of a tensor affects."""

    def __init__(self, pipe, expect, tensors):
        self.pipe, self.case = pipe, expect["cases"][0]
        mine = inputs.of_case(tensors, 0)
        self.pictures = {"init": mine["picture.init"].numpy()} if self.case["init"] else {}
        # of a case with an input image only the last latents are stored
        self.final, self.known = self.latents(self.case["steps"]), torch.cat([mine["latent"].flatten(), mine["sound"].flatten()])
        self.outputs = {}
        connect = pipe.connectors.forward

        def keep(*args, **kwargs):
            self.outputs["connectors"] = connect(*args, **kwargs)
            return self.outputs["connectors"]

        pipe.connectors.forward = keep
        self.short = self.latents(STEPS)
        pipe.connectors.forward = connect
        self.text = pipe.encode_prompt(self.case["prompt"], self.case["negative_prompt"])
        self.sound = self.wave()
        self.known_coded = {part: self.coded(f"vae.{part}.") for part in ("encoder", "decoder")}

    @torch.no_grad()
    def latents(self, steps, **more):
        """Returns the latents of video and sound as one vector."""
        case, kept = self.case | dict(steps=steps), []
        given = reference_tensors.arguments(case, torch.Generator().manual_seed(case["seed"])) | more
        if case["init"]:
            given |= dict(image=reference_tensors.Image.fromarray(self.pictures["init"]), image_crf=0)
        reference_tensors.runner_of(self.pipe, case)(
            **given, output_type="latent", callback_on_step_end=lambda _p, _i, _t, values: kept.append((values["latents"], values["audio_latents"])) or {})
        video, sound = kept[-1]
        return torch.cat([reference_tensors.unpacked(video, reference_tensors.grid_of(case)).flatten(),
                          reference_tensors.unpacked_sound(sound, reference_tensors.bins_of(self.pipe)).flatten()])

    @torch.no_grad()
    def wave(self):
        """Returns samples of a random latent."""
        vae = self.pipe.audio_vae
        latent = torch.randn([1, vae.config.latent_channels, 3, reference_tensors.bins_of(self.pipe)], generator=torch.Generator().manual_seed(1))
        return self.pipe.vocoder(vae.decode(latent, return_dict=False)[0])

    @torch.no_grad()
    def coded(self, name):
        """Returns moments of a random image, or frames of a random latent."""
        vae, generator = self.pipe.vae, torch.Generator().manual_seed(2)
        if name.startswith("vae.encoder."):
            return vae.encode(2 * torch.rand([1, 3, 1, 96, 64], generator=generator) - 1).latent_dist.parameters
        mean, deviation = reference_tensors.format_of(self.pipe)
        latent = torch.randn([1, self.case["channels"], 2, 2, 3], generator=generator)
        return vae.decode(latent * deviation + mean, return_dict=False)[0]

    @torch.no_grad()
    def change(self, name):
        pipe = self.pipe
        if name.startswith("vae."):
            return relative(self.coded(name), self.known_coded[name.split(".")[1]])
        if name.startswith(("audio_vae.", "vocoder.")):
            return relative(self.wave(), self.sound)
        if name.startswith("text_encoder"):
            return relative(self.latents(STEPS), self.short)
        texts = dict(zip(("prompt_embeds", "prompt_attention_mask", "negative_prompt_embeds", "negative_prompt_attention_mask"), self.text))
        connect = pipe.connectors.forward
        if name.startswith("transformer"):
            pipe.connectors.forward = lambda *_args, **_kwargs: self.outputs["connectors"]
        moved = relative(self.latents(STEPS, prompt=None, negative_prompt=None, **texts), self.short)
        pipe.connectors.forward = connect
        return moved


def constants(pipe):
    model, text = pipe.transformer, pipe.text_encoder.model.language_model
    heads = [m for block in model.transformer_blocks for name, m in block.named_modules() if name.endswith(("norm_q", "norm_k"))]
    rows = [
        ("transformer norms: eps 1e-5 for 1e-6", "transformer", [block.norm1 for block in model.transformer_blocks], "eps", 1e-5),
        ("query and key norms: eps 1e-4 for 1e-6", "transformer", heads, "eps", 1e-4),
        ("last norm: eps 1e-5 for 1e-6", "transformer", [model.norm_out], "eps", 1e-5),
        ("feed-forward: GELU without tanh", "transformer", [block.ff.net[0] for block in model.transformer_blocks], "approximate", "none"),
        ("Gemma's norms: eps 1e-5 for 1e-6", "text_encoder", [m for m in text.modules() if type(m).__name__ == "Gemma3RMSNorm"], "eps", 1e-5),
    ]
    return rows
