/* The host's turns in a run: what is done with what a stage's evaluation computed, before the next begins. */
#ifndef SLUICE_API_TURNS_H
#define SLUICE_API_TURNS_H

#include "engine/api/running.h"

/* Before the first visit: puts in its place what need not be encoded again. */
enum status turn_texts_recalled(struct running *r, struct error *e);
/* Checks what a text or vision encoder gave, and puts it in its place. */
enum status turn_text_ended(struct running *r, int stage, struct error *e);
/* Fills in the frames that are encoded, and takes what was made of them. */
enum status turn_picture_begins(struct running *r, int stage, int evaluation, struct error *e);
enum status turn_picture_encoded(struct running *r, int stage, int evaluation, struct error *e);
enum status turn_encode_ended(struct running *r, int stage, struct error *e);
/* Guides and updates the images of the group that was computed. */
enum status turn_call_ended(struct running *r, int stage, int evaluation, struct error *e);
/* Hashes and saves the latents, after the last denoiser. */
enum status turn_denoise_ended(struct running *r, int stage, struct error *e);
/* Hands the frames out. */
enum status turn_chunk_decoded(struct running *r, int stage, int evaluation, struct error *e);

/* Before the first visit: tokens, sigmas, and the latents if they are there. */
enum status turn_dump_start(const struct running *r, struct error *e);

#endif
