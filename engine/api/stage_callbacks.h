/* Stage callbacks: the host's work before, between and after the evaluations of each stage (embeddings,
 * sampler updates, previews, decoded images). The structs in stages.c refer to these functions. */
#ifndef SLUICE_API_STAGE_CALLBACKS_H
#define SLUICE_API_STAGE_CALLBACKS_H

#include "engine/api/running.h"

/* Before the first visit: copies the prompt embeddings found in the prompt cache into place. */
enum status on_prompts_cached(struct running *r, struct error *e);
/* After a text or vision encoder stage: checks the encoder's output for NaN, applies prompt weights, stores
 * the output in the prompt cache and copies it into place. */
enum status on_text_stage_end(struct running *r, int stage, struct error *e);
/* Image encoding stages: on_encode_begin writes an evaluation's input frames, on_encode_end stores the
 * encoded latent, on_encode_stage_end dumps the latents. */
enum status on_encode_begin(struct running *r, int stage, int evaluation, struct error *e);
enum status on_encode_end(struct running *r, int stage, int evaluation, struct error *e);
enum status on_encode_stage_end(struct running *r, int stage, struct error *e);
/* After a denoiser evaluation: applies guidance and moves the samples of the evaluated group of images to the
 * next noise level; dumps and records each finished step. */
enum status on_denoise_end(struct running *r, int stage, int evaluation, struct error *e);
/* After the last denoiser stage: hashes the latents and saves them (--save-latent). */
enum status on_denoise_stage_end(struct running *r, int stage, struct error *e);
/* After a decoder evaluation: checks and hashes the decoded frames, and passes them to the caller. */
enum status on_decode_end(struct running *r, int stage, int evaluation, struct error *e);

/* Writes the --dump files that are known before the first visit: tokens, sigmas, and latents that are already
 * complete. */
enum status dump_run_start(const struct running *r, struct error *e);

#endif
