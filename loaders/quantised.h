/* Quantised weights in safetensors files: their scales, which are separate tensors, and their descriptions.
 * Conventions: ComfyUI's comfy/ops.py and comfy/utils.py (scaled_fp8, comfy_quant, _quantization_metadata)
 * and comfy-kitchen's tensor layouts, as of 2026.
 *
 * nvfp4 with AWQ (files ..._nvfp4_awq; ComfyUI 0271a469, comfy/ops.py, Linear.forward): nvfp4 layers with a
 * tensor LAYER.pre_quant_scale, BF16 [columns]. ComfyUI multiplies the layer's input by it; here it
 * multiplies the weight's columns. In qwen3vl_32b_minimax_h3_nvfp4_awq only o_proj and down_proj have the
 * tensor. The norm before the other layers includes their factors.
 *
 * w4a8 (files ..._w4a8; comfy-kitchen 0.2.40, tensor/w4a8_int8.py and backends/eager/w4a8_int8.py): format
 * "asym_w4a8_int8", group_size 16, convrot_groupsize 256. LAYER.weight I8 [rows, columns / 2], two codes a
 * byte, even columns in the low four bits; weight_s_rel F8_E4M3 or U8 [rows, columns / 16]; weight_s_channel
 * F32 [rows]; weight_codebook F32 [16]. code8 = clamp(round(codebook[code] * s_rel), -127, 127); weight =
 * code8 * s_channel, rotated back in groups of 256 columns (ConvRot). ComfyUI quantises the input of these
 * layers to int8; here only --precision int8 does. Other precisions multiply by the decoded weight. */
#ifndef SLUICE_LOADERS_QUANTISED_H
#define SLUICE_LOADERS_QUANTISED_H

#include "engine/base/index.h"

/* Sets type, shape in values and scales of every quantised weight of an index, and marks scales and
 * descriptions as used. Other weights stay unchanged. Reads descriptions and per-tensor scales, and frees the
 * quantisation metadata. MISSING (a scale that a marker or description requires), META (a scale of an
 * unquantised weight, a scale that is not a number, an invalid description), SHAPE, DUP, LIMIT, UNSUPPORTED
 * (names the format), and the errors of source_read. */
enum status quantised_pair(struct tensor_index *index, struct error *e);

/* Quantisation of a layer as the file's metadata or a comfy_quant tensor describes it. */
enum quantised_kind { QUANTISED_NOT, QUANTISED_SINGLE, QUANTISED_NVFP4, QUANTISED_MXFP8, QUANTISED_W4A8 };

struct quantised_format {
    enum quantised_kind kind;
    enum dtype stored; /* element type of the weight in the file */
    const char *name;
    bool rotated; /* columns are rotated (ConvRot) in groups of `group` columns; 0: the default size */
    int64_t group;
    int64_t scaled_values; /* w4a8: number of values that share a scale; 0: the default, 16 */
};

/* Fills form[i] (zeroed by the caller) with the quantisation of index entry i, from the metadata and from
 * `comfy_quant` tensors, which take precedence. Fails with META, LIMIT, DUP, MISSING or UNSUPPORTED. */
enum status quantised_read_formats(const struct tensor_index *index, struct quantised_format *form,
                                   struct error *e);

/* Returns the description that `comfy_quant` contains for weights of a type; NULL: the type has no
 * description. */
const char *quantised_format_text(enum dtype dtype);

#endif
