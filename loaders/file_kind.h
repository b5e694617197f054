/* Detects unsupported file formats by their first bytes, for helpful errors. */
#ifndef SLUICE_LOADERS_FILE_KIND_H
#define SLUICE_LOADERS_FILE_KIND_H

enum { FILE_KIND_BYTES = 8 };

/* Supported weight formats, text for messages. */
#define READABLE_WEIGHTS "safetensors (f32, f16, bf16, fp8, int8, nvfp4, mxfp8) or GGUF"

/* Describes an unsupported file format by the first bytes of a file; NULL: the file may be safetensors. */
const char *file_kind_of(const unsigned char first[FILE_KIND_BYTES]);

#endif
