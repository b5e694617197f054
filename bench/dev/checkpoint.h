/* Writers of models and adapters with random weights, for benchmarks and tests. */
#ifndef SLUICE_DEV_CHECKPOINT_H
#define SLUICE_DEV_CHECKPOINT_H

#include "engine/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct checkpoint_options {
    const char *family; /* model family, as in the flag --family */
    /* "name=value,..." overrides published sizes; NULL: none. "clip_g.name=value" overrides them for the
     * component of the --clip_g flag only. "dtype=TYPE" replaces bf16: f32 and f16 apply to all weights,
     * other types only to weights that are quantised. With several types ("q4_k/q6_k") the weights alternate
     * between them. GGUF types write the transformer as a GGUF file and leave the other components
     * unchanged. */
    const char *dimensions;
    uint64_t seed; /* seed of the random weights */
    /* Progress callback, called while writing; may be NULL. If the callback returns false, writing ends with
     * CANCELLED. */
    bool (*on_progress)(void *user, double fraction);
    void *user;
};

/* Writes a Hugging Face folder of the family: tensor names, shapes, types and shards as published, random
 * weights, and a tokenizer of the published kind and size. Writes as a stream, without sparse extents.
 *
 * Errors: USAGE for unknown names (the error lists the known ones), repeated names and unknown types;
 * OUTPUT, before the first weight, if the disk has too little space. */
enum status checkpoint_write(const struct checkpoint_options *options, const char *folder, struct error *e);

/* Lists the families that can be written and the names of their dimensions: [{"name", "dimensions":[{"name",
 * "component","published","least","most"}]}]. Two components may share a dimension name. NULL: no memory. */
json_t *checkpoint_families(void);

struct adapter_options {
    /* base.dimensions: sizes of the base model; "dtype=f32|f16|bf16" sets the type of the adapter's
     * factors. */
    struct checkpoint_options base;
    const char *dialect; /* tensor naming: "diffusers", "kohya", "comfy"...; USAGE lists the known ones */
    int rank;            /* 1 to SLUICE_ADAPTER_RANK_MAX */
    bool text_encoders;  /* also write factors for text encoders, if the dialect (naming convention) allows */
};

/* Writes an adapter (LoRA, LoHa, LoKr) as one streamed safetensors file. The adapter has random factors for
 * every matrix product of a family's denoiser (of two denoisers, the first). If the naming convention has
 * alphas, every second module's alpha is half its rank. USAGE for invalid options. */
enum status adapter_write(const struct adapter_options *options, const char *path, struct error *e);

#endif
