/* What the first step begins with: noise, a file's latent, or pictures that were encoded.
 *
 * An image has one generator, and draws from it in diffusers' order: for the picture that it starts from, for
 * its initial noise, for the picture around its mask. Pictures are encoded one after another in memory that
 * they share, so the host fills one in when it has taken what the encoder made of the last. */
#ifndef SLUICE_API_START_H
#define SLUICE_API_START_H

#include "engine/api/job.h"
#include "engine/sample/noise.h"

struct start {
    struct job *job;
    struct generator *generators; /* one an image, owned */
    const char *latent_file;      /* noise of a user's, or NULL */
};

/* Before the first visit: where the latents do not wait for a picture that is encoded, fills them in.
 * latent_file: tensor "latent" instead of noise; of a decode, the latents themselves. */
enum status start_open(struct start *start, struct job *job, const char *latent_file, struct error *e);
/* Whatever the caller's function that reads a frame fails with; MEMORY, NONFINITE. Before, and after, the
 * frames of that chunk of picture i are encoded; of a still picture chunk is 0. */
enum status start_fill(const struct job *job, int i, int chunk, struct error *e);
enum status start_encoded(struct start *start, int i, int chunk, struct error *e);
void start_close(struct start *start);
/* Standard normals of that image's generator. */
void start_draw(struct start *start, int image, struct tensor to);
/* What the denoiser reads of an image's sample in that call, where it does not read the sample itself. */
void start_scale_input(const struct job *job, int image, int i_call);

/* Whether latents are there before the first visit. */
bool start_is_early(const struct job *job);

/* NONFINITE, naming stage and step (from 0; negative: none), unless all values are finite numbers. */
enum status check_finite(struct tensor t, const char *what, const char *stage, int step, struct error *e);

#endif
