"""llama.cpp's tensor names of Qwen3-VL's vision tower (convert_hf_to_gguf.py)."""

TOWER = [("blocks.", "v.blk."), ("norm1", "ln1"), ("norm2", "ln2"), ("attn.qkv", "attn_qkv"), ("attn.proj", "attn_out"),
         ("mlp.linear_fc1", "ffn_up"), ("mlp.linear_fc2", "ffn_down"), ("pos_embed", "v.position_embd"), ("patch_embed.proj", "v.patch_embd")]
MERGER = [("merger.norm", "v.post_ln"), ("merger.linear_fc1", "mm.0"), ("merger.linear_fc2", "mm.2")]


def tower_name(name, layers):
    """Returns llama.cpp's name of a tensor. layers: deepstack_visual_indexes, the layer number of each deepstack merger."""
    if name.startswith("deepstack_merger_list."):
        _, number, rest = name.split(".", 2)
        return f"v.deepstack.{layers[int(number)]}.{rest.replace('linear_', '')}"
    for old, new in MERGER if name.startswith("merger.") else TOWER:
        name = name.replace(old, new)
    return name


def tower_names(state, layers):
    """Renames the tensors of the vision tower; splits the patch kernel into its two frames."""
    out = {tower_name(name, layers): tensor.contiguous() for name, tensor in state.items()}
    kernel = out.pop("v.patch_embd.weight")
    return {"v.patch_embd.weight": kernel[:, :, 0].contiguous(), "v.patch_embd.weight.1": kernel[:, :, 1].contiguous(), **out}
