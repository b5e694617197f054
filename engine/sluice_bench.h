/* Benches: how fast this machine moves bytes and computes, how near runs come to that, and checkpoints of
 * random weights to measure with. Nobody needs them in order to draw. In the same library; the rules of
 * sluice.h hold. */
#ifndef SLUICE_BENCH_H
#define SLUICE_BENCH_H

#include "sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- checkpoints ---- */

/* Writes a Hugging Face folder of that family with real names, shapes, types and shards, random weights and a
 * tokenizer of the real kind and size, streaming, with no sparse extents. OUTPUT before the first weight if
 * the disk has no room. dimensions: "name=value,..." overriding the published sizes ("clip_g.name=value"
 * those of the part that --clip_g chooses alone) and "dtype=TYPE" the bf16, or NULL; a name that is unknown,
 * which lists them, or given twice is a USAGE error, and so is an unknown type. f32 and f16 are for all
 * weights, other types for those that are quantised; of several
 * ("q4_k/q6_k") each weight takes the next. Types of GGUF make the transformer a GGUF file and leave the
 * rest. */
SLUICE_API int sluice_checkpoint_write(const char *family, const char *folder, const char *dimensions,
                                       uint64_t seed, void (*on_progress)(void *user, double fraction),
                                       void *user, struct sluice_error *error);
/* The families that can be written and the names of their dimensions: {"version":1,"families":[{"name",
 * "dimensions":[{"name","component","published","least","most"}]}]}; one name may be two components'. */
SLUICE_API int sluice_checkpoint_families(char **json, struct sluice_error *error);

enum { SLUICE_ADAPTER_RANK_MAX = 1024 };
struct sluice_adapter_options {
    size_t struct_size;
    const char *family;     /* as sluice_checkpoint_write's, with its sizes */
    const char *dimensions; /* the same; dtype (f32, f16, bf16) is that of the factors */
    const char *dialect;    /* of "diffusers", "kohya", "comfy"...: a name that is unknown lists them */
    int rank;
    bool text_encoders; /* of these too, where the dialect names them */
    uint64_t seed;
    bool (*on_progress)(void *user, double fraction); /* false ends it with CANCELLED. May be NULL */
    void *user;
};
/* Writes an adapter (LoRA, LoHa, LoKr) of made-up factors for every product of a family's denoiser as one
 * safetensors file, streaming; of two denoisers for the first. Every second module's alpha is half its rank,
 * where the dialect has alphas. USAGE for options that cannot be. */
SLUICE_API int sluice_adapter_write(const struct sluice_adapter_options *options, const char *path,
                                    struct sluice_error *error);

/* ---- measuring the machine ---- */

struct sluice_bench_options {
    size_t struct_size;
    int threads; /* 0: the physical cores */
    const char *
        folder; /* bus: where it writes a file of its own to read, which has no name soon after; NULL: here */
    const char *file;  /* bus: read this one instead and write none; NULL */
    const char *saved; /* text of an older rates file, which what is measured is written over; NULL: none */
    /* Called about once a second; what is being measured. False ends the bench with CANCELLED. May be NULL.
     */
    bool (*on_progress)(void *user, double fraction, const char *what);
    void *user;
    const char *clock; /* stream: "timed", a virtual one, or "paced", this machine's; NULL: timed */
    const struct sluice_model_options *model; /* load: the one to read */
    const char *type; /* block: any that weights are stored in ("q4_k"), beside bf16; NULL: bf16 alone */
    const char
        *predict;     /* block: calculate for this card ("3060", "4090", "h100") and measure nothing; NULL */
    int adapter_rank; /* block: with an adapter of that rank on every product, beside the same without; 0:
                         none */
};

/* How fast bytes move, by path and size of a piece: {"version":1,"rows":[{"path","bytes","gbytes_per_second",
 * ...}],"links":{"disk":"SATA SSD"}}. *rates: the text of a rates file with disk and host_copy, and h2d where
 * there is a GPU ("absent":[{"name","reason"}] says why one is not measured). Takes at most 160 MiB of
 * memory, and 256 MiB of disk without a file; OUTPUT where that cannot be written. */
SLUICE_API int sluice_bench_bus(const struct sluice_bench_options *options, char **json, char **rates,
                                struct sluice_error *error);
/* How fast the CPU device computes, by class of operators, type of weights and threads, at sizes like a
 * Z-Image block's: {"version":1,"rows":[{"op","dtype","threads","flops_per_second" or "bytes_per_second",
 * ...}],"slower":[{"op","threads","of_one_thread"}]}: slower are the classes that so many threads compute
 * slower than one does, as a share of its rate. *rates: with ops, for options->threads. Takes at most
 * 200 MiB. */
SLUICE_API int sluice_bench_ops(const struct sluice_bench_options *options, char **json, char **rates,
                                struct sluice_error *error);
/* How fast the store reads a model's blocks, beside what dd does with its files in the same run: out of the
 * page cache, through it, past it:
 * {"version":1,"rows":[{"path":"load","page_cache":"kept|dropped|bypassed","bytes","threads",
 * "gbytes_per_second","dd_gbytes_per_second","share"}],"header_seconds","open_seconds"}: how long opening
 * takes, of all headers once they are warm, and of the whole model with its tokenizer. At most 4 GiB of the
 * model, seven times each way; memory for two of its blocks. */
SLUICE_API int sluice_bench_load(const struct sluice_bench_options *options, char **json,
                                 struct sluice_error *error);
/* How near to the floor (computing, or bytes over the bus, whichever is longer) a step of made-up models of
 * real sizes comes, against the ways in which others lay out weights: {"version":1,"rows":[{"blocks",
 * "layout","resident_percent","bus_gbytes_per_second","seconds","floor_seconds","efficiency"}]}. timed: the
 * real plan, store and executor under a virtual clock, the same everywhere; paced: small models on the CPU,
 * behind a bus of set rates on a thread of its own, measured; takes minutes and at most 300 MiB. */
SLUICE_API int sluice_bench_stream(const struct sluice_bench_options *options, char **json,
                                   struct sluice_error *error);
/* How near one Z-Image block (1056 tokens) and the autoencoder's decoder at 512 x 512 come to oneDNN's own
 * rate for their products, of real sizes and made-up weights: {"version":1,"rows":[{"part":"block|decoder",
 * "what":"all|library|linear|conv|attention|bytes","seconds","flops_per_second","product_rate_share",
 * "time_share", ...}]}; medians of rounds. With a type, a block with matrices of that type at two numbers of
 * tokens, the same with bf16 in turn: "part":"block|short block", "type" and, of all, "of_bf16", what it
 * takes of their time; with an adapter_rank likewise "of_base". on_progress is called before each round with
 * a new text, outside what is timed. Takes minutes and at most 1.5 GiB. */
/* With predict nothing is measured: what one block of each family launches on a GPU at its usual size, and
 * the seconds that the card is calculated to take, from the dry run that plans use; in every build, without a
 * GPU:
 * {"version":1,"card":"4090","rows":[{"family","block","tokens","op","class":"product|attention|conv|pass",
 * "calls","flops","bytes","seconds","kernel"}]}: a row a kernel of an operator, with the sums of the whole
 * block; calls are launches, those of libraries among them; tokens are pixels in an autoencoder. With a type
 * of matrices of it instead of bf16. USAGE lists the cards. */
SLUICE_API int sluice_bench_block(const struct sluice_bench_options *options, char **json,
                                  struct sluice_error *error);

#ifdef __cplusplus
}
#endif

#endif
