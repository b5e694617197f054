/* The cases of a fixture ("cases" in expect.json), run through the public API. */
#ifndef SLUICE_TEST_GOLDEN_RUN_H
#define SLUICE_TEST_GOLDEN_RUN_H

#include "test/lib/golden.h"

enum { TAIL = 32, NAME = 64, PATH = 1024, IMAGES_MAX = 24 };

const char *text_of(const json_t *c, const char *key);

int number_of(const json_t *c, const char *key);

bool is_image(const json_t *c);

/* Writes the name of a case's tensor, such as "case3.hidden.cond", to out[NAME]. */
char *case_tensor(const json_t *c, const char *tail, char *out);

/* Decoded images, or the frames of all decoded videos, in the order in which the run delivers them: packed
 * RGB, or RGBA from a model with alpha. */
struct album {
    int n;
    uint8_t *pixels[IMAGES_MAX];
    size_t bytes;
};

struct public_run {
    const struct golden *golden;
    char folder[64];
    sluice_model *model;
    sluice_session *session;
    struct album album;
};

void assert_public(int code, const struct sluice_error *error);

const char *model_path(const struct golden *g, char *path);

/* Opens a session on the given files, with an empty folder for dumped tensors. images: true also collects
 * decoded images. */
struct public_run *open_parts(const struct golden *g, const struct sluice_model_options *from, bool images);

struct public_run *open_run(const struct golden *g, const char *model, bool images);

void close_run(struct public_run *p);

/* Reads a tensor that the run dumped to FILE.safetensors in its folder. */
struct tensor read_dump(struct public_run *p, const char *file, const char *name);

/* Reads the decoded frames of the first image: [frames, 3, Y, X]. */
struct tensor read_decoded(struct public_run *p, int frames);

struct sluice_request request_of(struct public_run *p, const json_t *c);

/* True for a guidance above 10 in f32. The guidance embedding takes angles of 1000 * guidance * frequency,
 * and some of PyTorch's frequencies are an ulp off, because of its exp. From a guidance of 12 on, the
 * frequency error causes most of the latent's difference from the reference. */
bool has_high_guidance(const json_t *c);

void expect_dump(struct public_run *p, const json_t *c, const char *file, const char *tolerance,
                 const char *tail);

/* Compares the text embeddings of positive and negative prompt with the reference. */
void expect_texts(struct public_run *p, const json_t *c);

/* Returns the largest difference between the noise of engine and reference for the given seed. */
double noise_error(struct tensor truth, uint64_t seed);

/* Compares image k of a batch with the reference's run with seed + k. */
void expect_latents(struct public_run *p, const json_t *c);

/* Compares the final sound latents, which the run saved to final_sound.safetensors. Does nothing if the
 * reference has none. */
void expect_sounds(struct public_run *p, const json_t *c);

/* Runs a case without decoding; compares text embeddings, the latent after each step and the final latent. */
void run_latents(struct public_run *p, const json_t *c);

#endif
