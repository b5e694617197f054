"""Names of the modules that adapters modify: diffusers' names, the checkpoint names of each model's authors, and
both with underscores instead of dots."""

import re

import torch

import stored


def plain(model):
    """Returns {diffusers name: [(parameter, row), ...]}, with one (parameter, row) for each row of the parameter."""
    return {name: [(name, i) for i in range(len(value))] for name, value in model.state_dict().items() if value.dim()}


def originally(model, rename):
    """Returns plain(model) under checkpoint names. rename converts a state dict from diffusers' names to checkpoint
    names, including fused rows."""
    places, state = [], {}
    for name, rows in plain(model).items():
        state[name] = torch.arange(len(places), len(places) + len(rows))
        places += rows
    return {name: [places[i] for i in ids] for name, ids in rename(state).items() if ids.dim()}


def modules(named, model):
    """Keeps the weights of linear layers and convolutions, and removes the suffix .weight from their names."""
    matrices = {name for name, value in model.state_dict().items() if value.dim() in (2, 4) and name.endswith(".weight")}
    return {name.removesuffix(".weight"): rows for name, rows in named.items() if name.endswith(".weight") and rows[0][0] in matrices}


def flat(name):
    return name.replace(".", "_")




def sd3(state):
    """Converts a state dict to checkpoint names: the inverse of diffusers'
    convert_sd3_transformer_checkpoint_to_diffusers."""
    state = dict(state)
    for block in sorted({n.split(".attn.")[0] for n in state if ".attn.to_q." in n}):
        stored.fuse(state, f"{block}.x_block.attn.qkv", [f"{block}.attn.to_{p}" for p in "qkv"])
        stored.fuse(state, f"{block}.context_block.attn.qkv", [f"{block}.attn.add_{p}_proj" for p in "qkv"])
        if f"{block}.attn2.to_q.weight" in state:
            stored.fuse(state, f"{block}.x_block.attn2.qkv", [f"{block}.attn2.to_{p}" for p in "qkv"])
    last = max(int(n.split(".")[1]) for n in state if n.startswith("transformer_blocks."))
    for name in ("norm_out.linear", f"transformer_blocks.{last}.norm1_context.linear"):
        for tail in (".weight", ".bias"):
            scale, shift = state[name + tail].chunk(2)
            state[name + tail] = torch.cat([shift, scale])
    return stored.rename(state, [
        (".norm1.linear.", ".x_block.adaLN_modulation.1."), (".norm1_context.linear.", ".context_block.adaLN_modulation.1."),
        (".attn.norm_added_", ".context_block.attn.ln_"), (".attn.norm_", ".x_block.attn.ln_"), (".attn2.norm_", ".x_block.attn2.ln_"),
        (".attn.to_out.0.", ".x_block.attn.proj."), (".attn.to_add_out.", ".context_block.attn.proj."),
        (".attn2.to_out.0.", ".x_block.attn2.proj."), (".ff.net.0.proj.", ".x_block.mlp.fc1."), (".ff.net.2.", ".x_block.mlp.fc2."),
        (".ff_context.net.0.proj.", ".context_block.mlp.fc1."), (".ff_context.net.2.", ".context_block.mlp.fc2."),
        ("pos_embed.proj.", "x_embedder.proj."), ("time_text_embed.timestep_embedder.linear_1.", "t_embedder.mlp.0."),
        ("time_text_embed.timestep_embedder.linear_2.", "t_embedder.mlp.2."), ("time_text_embed.text_embedder.linear_1.", "y_embedder.mlp.0."),
        ("time_text_embed.text_embedder.linear_2.", "y_embedder.mlp.2."), ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("transformer_blocks.", "joint_blocks."), ("proj_out.", "final_layer.linear.")])


RESNET = [(".norm1.", ".in_layers.0."), (".conv1.", ".in_layers.2."), (".time_emb_proj.", ".emb_layers.1."), (".norm2.", ".out_layers.0."),
          (".conv2.", ".out_layers.3."), (".conv_shortcut.", ".skip_connection.")]
ENDS = [("conv_in.", "input_blocks.0.0."), ("conv_norm_out.", "out.0."), ("conv_out.", "out.2."), ("time_embedding.linear_1.", "time_embed.0."),
        ("time_embedding.linear_2.", "time_embed.2."), ("add_embedding.linear_1.", "label_emb.0.0."), ("add_embedding.linear_2.", "label_emb.0.2."),
        ("mid_block.resnets.0.", "middle_block.0."), ("mid_block.attentions.0.", "middle_block.1."), ("mid_block.resnets.1.", "middle_block.2.")]


def ldm(state):
    """Converts a state dict to checkpoint names: the inverse of diffusers' convert_ldm_unet_checkpoint."""
    out = {}
    for name, value in state.items():
        if ".resnets." in name:
            (name, _), = stored.rename({name: 0}, RESNET).items()
        level = re.match(r"(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)", name)
        if level:
            way, block, kind, n, tail = level.group(1), int(level.group(2)), level.group(3), int(level.group(4)), level.group(5)
            place = {"resnets": 0, "attentions": 1, "downsamplers": 0, "upsamplers": 1 + any(f"up_blocks.{block}.attentions" in s for s in state)}[kind]
            if kind == "downsamplers":
                n, tail = 2, tail.replace("conv.", "op.")
            name = f"input_blocks.{3 * block + n + 1}.{place}.{tail}" if way == "down" else \
                f"output_blocks.{3 * block + (2 if kind == 'upsamplers' else n)}.{place}.{tail}"
        else:
            (name, _), = stored.rename({name: 0}, ENDS).items()
        out[name] = value
    return out
