/* The suites of block tests. blocks_NAME.c defines suite blocks_NAME; blocks_t5.c also defines blocks_umt5.
 */
#ifndef SLUICE_TEST_SUITES_H
#define SLUICE_TEST_SUITES_H

#include "test/lib/golden.h"

extern const struct suite blocks_zimage, blocks_flux, blocks_qwen_image, blocks_clip, blocks_unet, blocks_t5,
    blocks_vae, blocks_vae_encoder, blocks_clip_kinds, blocks_qwen25vl, blocks_qwen25vl_vision, blocks_umt5,
    blocks_clip_vision, blocks_wan, blocks_sd3, blocks_taesd, blocks_taehv;

/* Open and close reference data of a VAE encoder without a pipeline. */
void vae_encoder_open(struct golden *g);
void vae_encoder_close(struct golden *g);
/* Open and close reference data of the tiny decoders TAESD and TAEHV. */
void taesd_open(struct golden *g);
void taesd_close(struct golden *g);
void taehv_open(struct golden *g);
void taehv_close(struct golden *g);
/* Open and close reference data of text encoders without a pipeline. */
void clip_kinds_open(struct golden *g);
void clip_kinds_close(struct golden *g);

#endif
