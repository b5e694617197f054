#include "engine/bench/stream_shapes.h"

/* Dense bf16 FLOPs per second reached in practice, from published measurements; assumed for the RTX 3060: the
 * same share of the peak (51 TFLOP/s) as the 4060 Ti reaches. */
#define FLOPS_3060   20e12
#define FLOPS_4060TI 32e12
#define FLOPS_4090   115e12
/* FLOPs per step: Z-Image at 1024x1024 with 200 text tokens, Flux at 1024x1024. */
#define ZIMAGE_LAYER_FLOPS (61.3e12 / 32)
#define FLUX_BLOCK_FLOPS   (74.3e12 / 57)

/* Blocks of Z-Image: number, bytes, seconds. The noise refiners process image tokens only. */
#define ZIMAGE_BLOCKS(flops)                                                                                 \
    {                                                                                                        \
        {2, 354e6, 0.95 * ZIMAGE_LAYER_FLOPS / (flops)}, {                                                   \
            30, 354e6, ZIMAGE_LAYER_FLOPS / (flops)                                                          \
        }                                                                                                    \
    }

/* Number, bytes (in bf16) and compute seconds of the published models' blocks. */
const struct stream_shape stream_shapes[STREAM_SHAPES_ALL] = {
    {"zimage", ZIMAGE_BLOCKS(FLOPS_4060TI)},
    /* The next two models have the compute times of an RTX 4090; qwen_image at 1328x1328. */
    {"flux", {{19, 680e6, FLUX_BLOCK_FLOPS / FLOPS_4090}, {38, 283.2e6, FLUX_BLOCK_FLOPS / FLOPS_4090}}},
    {"qwen_image", {{60, 680e6, 1.15 / 60}}},
    /* uniform: computing a block takes as long as copying the block over PCIe Gen4 x16. */
    {"uniform", {{40, 300e6, 0.5 / 40}}},
    {"zimage_4090", ZIMAGE_BLOCKS(FLOPS_4090)},
    {"zimage_3060", ZIMAGE_BLOCKS(FLOPS_3060)},
};

void stream_shape_add(const struct stream_shape *shape, double flops, struct stream_model *m) {
    for (int k = 0; k < COUNT_OF(shape->blocks); k++)
        for (int i = 0; i < shape->blocks[k].n; i++)
            m->sizes[m->n_blocks++] =
                stream_block_of(shape->blocks[k].bytes, shape->blocks[k].seconds, flops);
}
