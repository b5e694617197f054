/* The suites of reference tensors that fixtures have. Each is at the end of the file of its name, whose tests
 * and tolerances it lists. */
#ifndef SLUICE_TEST_SUITES_H
#define SLUICE_TEST_SUITES_H

#include "test/lib/golden.h"

extern const struct suite blocks_zimage, blocks_flux, blocks_qwen_image, blocks_clip, blocks_unet, blocks_t5,
    blocks_vae, blocks_vae_encoder, blocks_clip_kinds, blocks_qwen25vl, blocks_qwen25vl_vision, blocks_umt5,
    blocks_clip_vision, blocks_wan, blocks_sd3, blocks_taesd, blocks_taehv;

/* Of the encoder alone, whose data are no whole model's. */
void vae_encoder_open(struct golden *g);
void vae_encoder_close(struct golden *g);
/* Of the tiny decoders. */
void taesd_open(struct golden *g);
void taesd_close(struct golden *g);
void taehv_open(struct golden *g);
void taehv_close(struct golden *g);
/* Of text encoders alone. */
void clip_kinds_open(struct golden *g);
void clip_kinds_close(struct golden *g);

#endif
