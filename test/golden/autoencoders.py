"""Reference tensors of VAE parts on generated inputs; video VAEs receive one frame."""

import torch

from watch import Watch, without_frame


def _framed(vae, t):
    return t[:, :, None] if "temperal_downsample" in vae.config else t


@torch.no_grad()
def encoder_references(pipe, spec, resnet="down_blocks.1.resnets.0", downsampler="down_blocks.0.downsamplers.0"):
    """Runs the encoder on an image; returns tensors of its parts, and moments."""
    encoder = pipe.vae.encoder
    generator = torch.Generator().manual_seed(spec.seed % 2**31)
    picture = 2 * torch.rand([1, 3, 6 * spec.pixel_multiple, 2 * spec.pixel_multiple], generator=generator) - 1
    names = {"encoder.resnet": resnet, "encoder.downsampler": downsampler, "encoder.mid": "mid_block"}
    with Watch({name: encoder.get_submodule(path) for name, path in names.items()}) as watch:
        moments = pipe.vae.encode(_framed(pipe.vae, picture)).latent_dist.parameters
    references = {name: without_frame(value) for name, value in watch.tensors.items()}
    references["encoder.in"], references["encoder.out"] = picture, without_frame(moments)
    return references, {name: dict(module=f"encoder.{path}") for name, path in names.items()}


@torch.no_grad()
def decoder_references(pipe, spec, resnet_shortcut):
    """Runs the decoder on a small latent; returns tensors of its parts, and the image before clamping."""
    decoder = pipe.vae.decoder
    z = 1.5 * torch.randn([1, spec.channels, 6, 4], generator=torch.Generator().manual_seed(spec.seed % 2**31))
    names = {
        "vae.resnet_shortcut": resnet_shortcut,
        "vae.resnet": "mid_block.resnets.1",
        "vae.attention": "mid_block.attentions.0",
        "vae.upsampler": "up_blocks.0.upsamplers.0",
        "vae.mid": "mid_block",
    }
    with Watch({name: decoder.get_submodule(path) for name, path in names.items()} | {"decoder": decoder}) as watch:
        pipe.vae.decode(_framed(pipe.vae, z), return_dict=False)
    references = {name: without_frame(value) for name, value in watch.tensors.items()}
    references["decoder.in"] = z
    return references, {name: dict(module=f"decoder.{path}") for name, path in names.items()}
