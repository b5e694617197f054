/* Benchmarks of the machine and of runs. Not needed for image generation. Part of the same library;
 * sluice.h's rules on errors, ownership and threads apply.
 *
 * 0.2.0 has no sluice_checkpoint_write, sluice_checkpoint_families, sluice_adapter_write, sluice_bench_stream
 * and sluice_bench_options.clock: the program sluice-dev (`make dev`) has their functions. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include "sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SLUICE_ADAPTER_RANK_MAX = 1024 };

struct sluice_bench_options {
    size_t struct_size;
    int threads; /* CPU threads; 0: number of physical cores */
    /* bus benchmark: folder for a temporary file to read, unlinked at once; NULL: the working directory */
    const char *folder;
    const char *file;  /* bus benchmark: existing file to read instead of a temporary file; NULL: none */
    const char *saved; /* text of an earlier rates file, returned with the new rates in it; NULL: none */
    /* Progress callback, about once a second. what: the current measurement. A return value of false cancels
     * with CANCELLED. May be NULL. */
    bool (*on_progress)(void *user, double fraction, const char *what);
    void *user;
    const struct sluice_model_options *model; /* load benchmark: the model to read */
    /* block benchmark: stored weight type ("q4_k") to measure besides bf16; NULL: bf16 alone */
    const char *type;
    /* block benchmark: calculate for this card, such as "4090" (sluice_devices lists the cards), or for all
     * cards ("all"); NULL: measure */
    const char *predict;
    int adapter_rank; /* block benchmark: also measure with adapters of this rank; 0: none */
    /* block benchmark: arithmetic of the block as in sluice_request.precision; NULL: the default of the
     * family (on a GPU bf16, for UNets f16) */
    const char *precision;
};

/* Measures transfer rates by path and transfer size:
 * {"version":1,"rows":[{"path","bytes","gbytes_per_second",...}],"links":{"disk":"SATA SSD"}}. *rates: text
 * of a rates file with disk, host_copy and, with a GPU, h2d; "absent":[{"name","reason"}] lists rates that
 * were not measured. Takes at most 160 MiB of memory, and 256 MiB of disk if options->file is NULL. OUTPUT if
 * that file cannot be written. */
SLUICE_API int sluice_bench_bus(const struct sluice_bench_options *options, char **json, char **rates,
                                struct sluice_error *error);
/* Measures the CPU device's rate by class of operators, weight type and number of threads, at sizes like a
 * Z-Image block's: {"version":1,"rows":[{"op","dtype","threads","flops_per_second" or "bytes_per_second",
 * ...}],"slower":[{"op","threads","of_one_thread"}]}. "slower" lists classes that are slower with that many
 * threads than with one, with their share of the one-thread rate. *rates: also has ops, for options->threads.
 * Takes at most 200 MiB. */
SLUICE_API int sluice_bench_ops(const struct sluice_bench_options *options, char **json, char **rates,
                                struct sluice_error *error);
/* Measures how fast the store reads a model's blocks, and dd the same files, with the page cache kept,
 * dropped and bypassed:
 * {"version":1,"rows":[{"path":"load","page_cache":"kept|dropped|bypassed","bytes","threads",
 * "gbytes_per_second","dd_gbytes_per_second","share"}],"header_seconds","open_seconds"}. header_seconds:
 * opening all headers, cached; open_seconds: opening the whole model with its tokenizer. Reads at most 4 GiB
 * of the model, seven times per mode; takes memory for two of its blocks. */
SLUICE_API int sluice_bench_load(const struct sluice_bench_options *options, char **json,
                                 struct sluice_error *error);
/* Measures how close one Z-Image block (1056 tokens) and the VAE decoder at 512x512 come to oneDNN's own rate
 * for their matrix products, at real sizes with random weights: {"version":1,"rows":[{"part":"block|decoder",
 * "what":"all|library|linear|conv|attention|bytes","seconds","flops_per_second","product_rate_share",
 * "time_share", ...}]}; medians of several rounds. With options->type also a block with matrices of that type
 * at two numbers of tokens, alternating with bf16: "part":"block|short block", "type" and, for "all",
 * "of_bf16", its time relative to bf16; with an adapter_rank likewise "of_base", with a precision "of_f32".
 * on_progress is called before each round with a new text, outside the timed part. Takes minutes and at most
 * 1.5 GiB.
 *
 * With options->predict nothing is measured. The result is computed from the plan's dry run, in every build
 * and without a GPU: the kernels that one block of each family launches at its usual size, and their
 * calculated seconds on that card:
 * {"version":1,"card":"4090","precision":"bf16","rows":[{"family","block","tokens","op","class":"product|
 * product_int8|attention|attention_int8|conv|pass","calls","flops","bytes","seconds","kernel"}]}. One row per
 * kernel of an operator, summed over the block; calls: launches, including libraries'; tokens: pixels in a
 * VAE. With a type, matrices have that type instead of bf16. With predict "all" one row per block and card:
 * {"family","block","tokens","card","seconds"}. USAGE if the card is unknown. */
SLUICE_API int sluice_bench_block(const struct sluice_bench_options *options, char **json,
                                  struct sluice_error *error);

#ifdef __cplusplus
}
#endif

#endif
