/* The host's turns in a run: what is done with what a stage's evaluation computed, before the next begins. */
#ifndef SLUICE_API_TURNS_H
#define SLUICE_API_TURNS_H

#include "engine/api/session.h"
#include "engine/api/start.h"

#include <nettle/sha2.h>

/* What a run keeps on the way. */
struct running {
    struct sluice_session *session;
    struct job *job;
    struct start start;
    struct sha256_ctx frames;       /* of the video that is being decoded */
    struct store_counters counters; /* kept up to date by the executor */
    struct store_counters at_stage, at_step, at_visit;
    const struct visit *visit; /* the last one seen by tick */
    double began, stage_began, step_began, last_progress;
    double done, all; /* FLOPs */
    double done_at_stage;
    double rate;            /* FLOPs a second, measured before the run; 0 if unknown */
    double planned_seconds; /* of the stages after the text, from measured rates; 0 if there are none */
    uint64_t reserve;       /* free memory under which residents are given up */
};

/* Checks and dumps what a text encoder gave, and puts it in its place. */
enum status turn_text_ended(struct running *r, int stage, struct error *e);
enum status turn_vision_ended(struct running *r, int stage, struct error *e);
/* Takes what was made of a picture, and fills the next in. */
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
