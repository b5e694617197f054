/* Cases of a fixture, and their runs through the public header. */
#ifndef SLUICE_TEST_GOLDEN_RUN_H
#define SLUICE_TEST_GOLDEN_RUN_H

#include "test/lib/golden.h"

enum { TAIL = 32, NAME = 64, PATH = 1024, IMAGES_MAX = 24 };

/* ---- cases ---- */

const char *text_of(const json_t *c, const char *key);

int number_of(const json_t *c, const char *key);

bool is_image(const json_t *c);

/* "case3.hidden.cond" */
char *case_tensor(const json_t *c, const char *tail, char *out);

/* ---- runs through the public header ---- */

/* Pictures, or all videos' frames, in the order in which they came. */
struct album {
    int n;
    uint8_t *rgb[IMAGES_MAX];
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

/* A session on those parts and an empty folder for what it leaves. */
struct public_run *open_parts(const struct golden *g, const struct sluice_model_options *from, bool images);

struct public_run *open_run(const struct golden *g, const char *model, bool images);

void close_run(struct public_run *p);

/* A tensor that the run left in its folder as FILE.safetensors. */
struct tensor read_dump(struct public_run *p, const char *file, const char *name);

/* What was decoded of the first image: [frames, 3, Y, X]. */
struct tensor read_decoded(struct public_run *p, int frames);

struct sluice_request request_of(struct public_run *p, const json_t *c);

/* ---- what came out ---- */

/* An angle of the conditioning is 1000 times the guidance times a frequency, of which PyTorch's are an ulp
 * off here and there (its exp is): from a guidance of 12 on that is what latents differ by. */
bool has_high_guidance(const json_t *c);

void expect_dump(struct public_run *p, const json_t *c, const char *file, const char *tolerance,
                 const char *tail);

/* What both prompts became. */
void expect_texts(struct public_run *p, const json_t *c);

/* The largest difference of noise from this seed from the reference's. */
double noise_error(struct tensor truth, uint64_t seed);

/* Each image of a batch by itself, against the reference's run with seed + k. */
void expect_latents(struct public_run *p, const json_t *c);

/* Draws a case without decoding it: its texts, the latent after each step and the last. */
void run_latents(struct public_run *p, const json_t *c);

#endif
