/* Data of GPU models, and seconds of operators calculated from the data (cards.h). */
#include "kernels/cuda/cards.h"

#include "kernels/cuda/int8_tiles.h"

#include <strings.h>

#define GIB ((uint64_t)1 << 30)

/* Multiprocessors and rates of a GeForce RTX 30, 40 or 50 from its boost clock in MHz. Tensor cores of a
 * multiprocessor compute 512 (bf16 with f32 sums), 1,024 (f16 with f16 sums) or 2,048 (int8) operations per
 * clock: the white papers' tables divided by multiprocessors and clock.
 *
 * Efficiencies. int8_products is below products for two reasons. With tiles of 128 x 256 a multiprocessor
 * runs one thread block, so the epilogue (scales, bias, gate, residual) does not overlap with the next tile's
 * products. And int8 halves the time of the products but not of the epilogue. int8_attention: SageAttention
 * 1's kernels with the same two types reach 320 to 340 of 440 TOPS on a 4090 (paper, 2024). */
#define GEFORCE(n, mhz)                                                                                      \
    .multiprocessors = (n), .product_flops = 512e6 * (n) * (mhz), .half_sum_flops = 1024e6 * (n) * (mhz),    \
    .int8_ops = 2048e6 * (n) * (mhz), .products = 0.90, .attention = 0.88, .convolutions = 0.30,             \
    .passes = 0.88, .int8_products = 0.75, .int8_attention = 0.70

/* A data center GPU: f16 sums are no faster than f32 sums. per_clock: bf16 operations of a multiprocessor per
 * clock. */
#define DATA_CENTER(n, mhz, per_clock)                                                                       \
    .multiprocessors = (n), .product_flops = 1e6 * (per_clock) * (n) * (mhz),                                \
    .half_sum_flops = 1e6 * (per_clock) * (n) * (mhz), .int8_ops = 2e6 * (per_clock) * (n) * (mhz),          \
    .passes = 0.88

/* The power limit slows products: cuBLAS reaches about 0.8 of the data sheet. Attention is close to the
 * instruction issue limit, like FlashAttention 2 (0.73). */
#define A100                                                                                                 \
    DATA_CENTER(108, 1410, 2048), .products = 0.82, .attention = 0.65, .convolutions = 0.30,                 \
                                  .int8_products = 0.65, .int8_attention = 0.58
/* The power limit slows products. The mma.sync instruction reaches 0.63 of the data sheet (arXiv:2402.13499),
 * which limits our kernels for attention and int8 products. */
#define H100                                                                                                 \
    DATA_CENTER(132, 1830, 4096), .products = 0.79, .attention = 0.315, .convolutions = 0.30,                \
                                  .int8_products = 0.47, .int8_attention = 0.30

/* Sources. NVIDIA's architecture white papers: GA102 2.1 (3070, 3080, 3090), Ada 2.1 (4070 Ti, 4080, 4090,
 * L4), RTX Blackwell 1.1 (5070 to 5090), A100, H100. NVIDIA's product pages: the other GeForce cards, whose
 * multiprocessors are CUDA cores / 128. Data sheets: A100, H200, L4, L40S. The bus is PCIe 4.0 or 5.0, with
 * 16 lanes (24 or 50 GB/s) or 8 (4060, 4060 Ti, 5060, 5060 Ti). L4 (72 W) and L40S (350 W) lower their clock
 * under load; their efficiencies are guesses. */
static const struct cuda_card cards[] = {
    {"3060", "GeForce RTX 3060, 12 GB", 12 * GIB, 360e9, 24e9, GEFORCE(28, 1777)},
    {"3070", "GeForce RTX 3070, 8 GB", 8 * GIB, 448e9, 24e9, GEFORCE(46, 1725)},
    {"3070ti", "GeForce RTX 3070 Ti, 8 GB", 8 * GIB, 608e9, 24e9, GEFORCE(48, 1770)},
    {"3080", "GeForce RTX 3080, 10 GB", 10 * GIB, 760e9, 24e9, GEFORCE(68, 1710)},
    {"3080ti", "GeForce RTX 3080 Ti, 12 GB", 12 * GIB, 912e9, 24e9, GEFORCE(80, 1665)},
    {"3090", "GeForce RTX 3090, 24 GB", 24 * GIB, 936e9, 24e9, GEFORCE(82, 1695)},
    {"4060", "GeForce RTX 4060, 8 GB", 8 * GIB, 272e9, 12e9, GEFORCE(24, 2460)},
    {"4060ti", "GeForce RTX 4060 Ti, 16 GB", 16 * GIB, 288e9, 12e9, GEFORCE(34, 2535)},
    {"4070", "GeForce RTX 4070, 12 GB", 12 * GIB, 504e9, 24e9, GEFORCE(46, 2475)},
    {"4070super", "GeForce RTX 4070 Super, 12 GB", 12 * GIB, 504e9, 24e9, GEFORCE(56, 2475)},
    {"4070ti", "GeForce RTX 4070 Ti, 12 GB", 12 * GIB, 504e9, 24e9, GEFORCE(60, 2610)},
    {"4070tisuper", "GeForce RTX 4070 Ti Super, 16 GB", 16 * GIB, 672e9, 24e9, GEFORCE(66, 2610)},
    {"4080", "GeForce RTX 4080, 16 GB", 16 * GIB, 717e9, 24e9, GEFORCE(76, 2505)},
    {"4080super", "GeForce RTX 4080 Super, 16 GB", 16 * GIB, 736e9, 24e9, GEFORCE(80, 2550)},
    {"4090", "GeForce RTX 4090, 24 GB", 24 * GIB, 1008e9, 24e9, GEFORCE(128, 2520)},
    {"5060", "GeForce RTX 5060, 8 GB", 8 * GIB, 448e9, 24e9, GEFORCE(30, 2497)},
    {"5060ti", "GeForce RTX 5060 Ti, 16 GB", 16 * GIB, 448e9, 24e9, GEFORCE(36, 2572)},
    {"5070", "GeForce RTX 5070, 12 GB", 12 * GIB, 672e9, 50e9, GEFORCE(48, 2512)},
    {"5070ti", "GeForce RTX 5070 Ti, 16 GB", 16 * GIB, 896e9, 50e9, GEFORCE(70, 2452)},
    {"5080", "GeForce RTX 5080, 16 GB", 16 * GIB, 960e9, 50e9, GEFORCE(84, 2617)},
    {"5090", "GeForce RTX 5090, 32 GB", 32 * GIB, 1792e9, 50e9, GEFORCE(170, 2407)},
    {"a100", "A100 SXM, 40 GB", 40 * GIB, 1555e9, 24e9, A100},
    {"a100_80gb", "A100 SXM, 80 GB", 80 * GIB, 2039e9, 24e9, A100},
    {"h100", "H100 SXM5, 80 GB", 80 * GIB, 3350e9, 50e9, H100},
    {"h200", "H200 SXM, 141 GB", 140 * GIB, 4800e9, 50e9, H100},
    {"l4", "L4, 24 GB", 24 * GIB, 300e9, 24e9, DATA_CENTER(58, 2040, 1024), .products = 0.50,
     .attention = 0.50, .convolutions = 0.25, .int8_products = 0.45, .int8_attention = 0.40},
    {"l40s", "L40S, 48 GB", 48 * GIB, 864e9, 24e9, DATA_CENTER(142, 2520, 1024), .products = 0.65,
     .attention = 0.60, .convolutions = 0.30, .int8_products = 0.55, .int8_attention = 0.50},
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

/* Returns the seconds of a product with the fastest of the library's usual tiles, one tile per multiprocessor
 * at a time. rate: operations per second of a multiprocessor while it computes a tile. */
static double library_seconds(const struct cuda_card *card, const struct work *work, double rate) {
    double least = 0;
    for (int i = 0; i < N_TILES; i++) {
        int64_t n = cuda_parts(work->m, tiles[i].rows) * cuda_parts(work->n, tiles[i].columns);
        double tile_flops = 2.0 * tiles[i].rows * tiles[i].columns * work->k;
        double seconds = (double)cuda_parts(n, card->multiprocessors) * tile_flops / (rate * tiles[i].share);
        if (!i || seconds < least) least = seconds;
    }
    return least;
}

static double int8_product_seconds(const struct cuda_card *card, const struct work *work) {
    int tile;
    double sums = int8_product_cost(work->m, work->n, card->multiprocessors, &tile);
    return sums * 2 * work->k * card->multiprocessors / (card->int8_products * card->int8_ops);
}

/* Returns the compute seconds of one launch, without memory time. */
static double launch_seconds(const struct cuda_card *card, const struct work *work) {
    double flops = work->flops / work->launches, rate = card->product_flops / card->multiprocessors;
    switch (work->class) {
    case WORK_PRODUCT:
        return library_seconds(card, work, card->products * rate);
    case WORK_PRODUCT_INT8:
        return int8_product_seconds(card, work);
    case WORK_ATTENTION:
        return flops * work->k / work->n / (card->attention * card->product_flops);
    case WORK_ATTENTION_INT8: /* Q K^T and P V are half of the operations each */
        return flops * work->k / work->n / card->int8_attention *
               (0.5 / card->int8_ops + 0.5 / card->half_sum_flops);
    case WORK_CONV: /* `convolutions` is the efficiency in TF32; f16 has twice the rate */
        return library_seconds(card, work, card->convolutions * (work->f16 ? 2 : 1) * rate);
    default:
        return 0;
    }
}

double cuda_card_seconds(const struct cuda_card *card, const struct work *work) {
    double bytes = (work->read_bytes + work->written_bytes) / work->launches;
    double moving = bytes / (card->passes * card->memory_bytes_per_second);
    double computing = launch_seconds(card, work);
    return work->launches * ((computing > moving ? computing : moving) + gap_seconds);
}

struct op_rates cuda_card_rates(const struct cuda_card *card) {
    /* Share of tiles and waves that a product fills: 0.92 to 0.97 calculated for Z-Image's products.
     * filled_int8 also covers the pass that rotates and quantises the input: 0.69 to 0.92 calculated for
     * Z-Image, Flux and WAN on four cards. */
    const double filled = 0.95, filled_int8 = 0.75;
    double products = filled * card->products * card->product_flops;
    double int8_attention = 2 * card->int8_attention / (1 / card->int8_ops + 1 / card->half_sum_flops);
    return (struct op_rates){
        .per_second = {[CLASS_LINEAR] = products / 2, /* f32 products run on tensor cores as TF32 */
                       [CLASS_LINEAR_BF16] = products,
                       [CLASS_LINEAR_INT8] = filled_int8 * card->int8_products * card->int8_ops,
                       [CLASS_ATTENTION] = card->attention * card->product_flops,
                       [CLASS_ATTENTION_INT8] = int8_attention,
                       /* the rate of f16; TF32 convolutions of upsampled images come close to it, because
                        * they skip more than half of the multiplications (conv.h) */
                       [CLASS_CONV] = 2 * card->convolutions * card->product_flops,
                       [CLASS_BYTES] = card->passes * card->memory_bytes_per_second}};
}
