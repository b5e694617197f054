/* Data of GPU models, and seconds of operators calculated from the data (cards.h). */
#include "kernels/cuda/cards.h"

#include <stdio.h>
#include <strings.h>

#define GIB ((uint64_t)1 << 30)

/* Sources: NVIDIA's data sheets of the RTX 3060 12 GB, 4060 8 GB, 4060 Ti 16 GB, 4090 and H100 SXM5. RTX
 * FLOPs are multiprocessors times 512 FLOPs per clock times boost clock. On the H100, power limits products,
 * and the mma.sync instruction, which attention.cu uses, limits attention. */
static const struct cuda_card cards[] = {
    {"3060", "GeForce RTX 3060, 12 GB", 28, 12 * GIB, 25.5e12, 360e9, 24e9, 0.90, 0.88, 0.30, 0.88},
    {"4060", "GeForce RTX 4060, 8 GB", 24, 8 * GIB, 30.2e12, 272e9, 12e9, 0.90, 0.88, 0.30, 0.88},
    {"4060ti", "GeForce RTX 4060 Ti, 16 GB", 34, 16 * GIB, 44.1e12, 288e9, 12e9, 0.90, 0.88, 0.30, 0.88},
    {"4090", "GeForce RTX 4090, 24 GB", 128, 24 * GIB, 165.2e12, 1008e9, 24e9, 0.90, 0.88, 0.30, 0.88},
    {"h100", "H100 SXM5, 80 GB", 132, 80 * GIB, 989.4e12, 3350e9, 50e9, 0.79, 0.315, 0.30, 0.88},
};
enum { N_CARDS = sizeof cards / sizeof *cards };

const struct cuda_card *cuda_card_at(int i) {
    return i >= 0 && i < N_CARDS ? &cards[i] : NULL;
}

const struct cuda_card *cuda_card_named(const char *name) {
    for (int i = 0; i < N_CARDS; i++)
        if (!strcasecmp(cards[i].name, name)) return &cards[i];
    return NULL;
}

char *cuda_card_names(char *out, size_t bytes) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < N_CARDS && n < bytes; i++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%s",
                              !i                ? ""
                              : i + 1 < N_CARDS ? ", "
                                                : " or ",
                              cards[i].name);
    return out;
}

/* Seconds from the end of a kernel to the first thread block of the next kernel, on a stream with queued
 * work. */
static const double gap_seconds = 1.5e-6;

/* Tile sizes of cuBLASLt kernels and their assumed efficiency relative to the largest tile: smaller tiles
 * read operands more often. */
static const struct {
    int32_t rows, columns;
    double share;
} tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.97}, {128, 64, 0.9}, {64, 128, 0.9}, {64, 64, 0.8}};
enum { N_TILES = sizeof tiles / sizeof *tiles };

/* Returns how many groups of `each` items n items fill, rounded up. */
static int64_t cuda_parts(int64_t n, int64_t each) {
    return (n + each - 1) / each;
}

/* Returns the seconds of a product of m x n x k in tiles, one tile for each multiprocessor in waves; rate:
 * FLOPs per second of a multiprocessor. */
static double tiled_seconds(const struct cuda_card *card, const struct work *work, double rate) {
    double least = 0;
    for (int i = 0; i < N_TILES; i++) {
        int64_t n = cuda_parts(work->m, tiles[i].rows) * cuda_parts(work->n, tiles[i].columns);
        double tile_flops = 2.0 * tiles[i].rows * tiles[i].columns * work->k;
        double seconds = (double)cuda_parts(n, card->multiprocessors) * tile_flops / (rate * tiles[i].share);
        if (!i || seconds < least) least = seconds;
    }
    return least;
}

/* Returns the compute seconds of one launch, without memory time. */
static double launch_seconds(const struct cuda_card *card, const struct work *work) {
    double flops = work->flops / work->launches / card->product_flops;
    if (work->class == WORK_ATTENTION) return flops * work->k / work->n / card->attention;
    double rate = card->product_flops / card->multiprocessors;
    if (work->class == WORK_PRODUCT) return tiled_seconds(card, work, card->products * rate);
    if (work->class != WORK_CONV) return 0;
    /* The share of a tile in TF32, half of which is the tensor cores' own rate; f16 has twice that rate. */
    return tiled_seconds(card, work, card->convolutions * (work->f16 ? 2 : 1) * rate);
}

double cuda_card_seconds(const struct cuda_card *card, const struct work *work) {
    double bytes = (work->read_bytes + work->written_bytes) / work->launches;
    double moving = bytes / (card->passes * card->memory_bytes_per_second);
    double computing = launch_seconds(card, work);
    return work->launches * ((computing > moving ? computing : moving) + gap_seconds);
}

struct op_rates cuda_card_rates(const struct cuda_card *card) {
    /* Share of tiles and waves that a product fills; 0.92 to 0.97 calculated for Z-Image's products. */
    const double filled = 0.95;
    double products = filled * card->products * card->product_flops;
    return (struct op_rates){
        .per_second = {[CLASS_LINEAR] = products / 2, /* f32 products run on tensor cores as TF32 */
                       [CLASS_LINEAR_BF16] = products,
                       [CLASS_ATTENTION] = card->attention * card->product_flops,
                       /* f16's rate; the TF32 convolutions of doubled images omit more than half of their
                        * multiplications */
                       [CLASS_CONV] = 2 * card->convolutions * card->product_flops,
                       [CLASS_BYTES] = card->passes * card->memory_bytes_per_second}};
}
