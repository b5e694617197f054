/* Files that are given where something else belongs, known by how they begin. */
#ifndef SLUICE_LOADERS_FOREIGN_H
#define SLUICE_LOADERS_FOREIGN_H

enum { FOREIGN_BYTES = 8 };

/* What can be read as weights, for messages. */
#define READABLE_WEIGHTS "safetensors (f32, f16, bf16, fp8, int8, nvfp4, mxfp8) or GGUF"

/* What a file that begins with these bytes is, in words, or NULL: it may be safetensors. */
const char *foreign_kind(const unsigned char first[FOREIGN_BYTES]);

#endif
