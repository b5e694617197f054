/* First/last-frame conditioning: the mask against diffusers' list (pipelines/wan/pipeline_wan_i2v.py,
 * prepare_latents), the frames that are encoded chunk by chunk, and copying the clean first latent frame
 * back. */
#include "engine/generate/frame_conditioning.h"
#include "test/lib/check.h"

#include <string.h>

enum { SIDE = 2, C = 3, FACTOR = 4, FRAMES_MAX = 13, LATENTS_MAX = 4 };

static uint8_t first[SIDE * SIDE * 3], last[SIDE * SIDE * 3];
static const struct sluice_picture end = {.width = SIDE, .height = SIDE, .rgb = last};

static struct job make_job(int frames, bool ends) {
    struct job job = {.latents = {.C = C, .F = (frames - 1) / FACTOR + 1, .Y = SIDE, .X = SIDE}};
    job.request.frames = frames;
    job.pictures.fitted[PICTURE_INIT] = (struct sluice_picture){.width = SIDE, .height = SIDE, .rgb = first};
    job.pictures.fitted[PICTURE_END] = end;
    if (ends) job.request.end_image = &job.pictures.fitted[PICTURE_END];
    return job;
}

/* diffusers' mask list has the first frame four times, then each other frame once. Entry 4 f + c is channel c
 * of latent frame f. */
static void check_mask(int frames, bool ends) {
    static float concat[(FACTOR + C) * LATENTS_MAX * SIDE * SIDE];
    struct job job = make_job(frames, ends);
    int listed[FRAMES_MAX + FACTOR - 1] = {1, 1, 1, 1}, n = FACTOR, wrong = 0;
    for (int frame = 1; frame < frames; frame++) listed[n++] = ends && frame == frames - 1;
    job.layout.concat[0] =
        tensor_make(concat, DTYPE_F32, 4, (int32_t[]){FACTOR + C, job.latents.F, SIDE, SIDE});
    for (size_t i = 0; i < sizeof concat / sizeof *concat; i++) concat[i] = 7;
    frame_conditioning_mask(&job);
    for (int c = 0; c < FACTOR + C; c++)
        for (int f = 0; f < job.latents.F; f++)
            for (int p = 0; p < SIDE * SIDE; p++) {
                float wanted = c < FACTOR ? (float)listed[FACTOR * f + c] : 7;
                wrong += concat[(c * job.latents.F + f) * SIDE * SIDE + p] != wanted;
            }
    check(!wrong, "%d frames, %s: %d values of the mask are wrong", frames,
          ends ? "first and last frame" : "first frame", wrong);
    check(frame_conditioning_latent(&job).data == concat + FACTOR * job.latents.F * SIDE * SIDE,
          "the latent does not follow the mask's channels");
}

/* Checks the frame chunks that the VAE encoder gets: one frame, then four frames each. */
static void check_frames(int frames, bool ends) {
    static float chunk[FACTOR * SIDE * SIDE * 3];
    struct job job = make_job(frames, ends);
    struct tensor out = tensor_make(chunk, DTYPE_F32, 4, (int32_t[]){FACTOR, SIDE, SIDE, 3});
    for (int k = 0; k < job.latents.F; k++) {
        struct frame_chunk part = {k, 1, k ? 1 + (k - 1) * FACTOR : 0, k ? FACTOR : 1};
        memset(chunk, 0x7f, sizeof chunk);
        frame_conditioning_fill(&job, &part, out);
        for (int i = 0; i < part.n_frames; i++) {
            int frame = part.first_frame + i;
            float wanted = !frame ? -1 : ends && frame == frames - 1 ? 1 : 0;
            bool right = true;
            for (int v = 0; v < SIDE * SIDE * 3; v++) right &= chunk[i * SIDE * SIDE * 3 + v] == wanted;
            check(right, "%d frames: frame %d is not %g", frames, frame, (double)wanted);
        }
    }
}

static void check_first_frame_restored(void) {
    float clean[C * SIDE * SIDE], latent[C * 3 * SIDE * SIDE];
    struct job job = make_job(9, false);
    for (int i = 0; i < C * SIDE * SIDE; i++) clean[i] = (float)i;
    for (int i = 0; i < C * 3 * SIDE * SIDE; i++) latent[i] = -1;
    struct tensor to = tensor_make(latent, DTYPE_F32, 4, (int32_t[]){C, 3, SIDE, SIDE});
    frame_conditioning_put_clean(&job, to);
    check(latent[0] == -1, "the latent changes without a clean frame");
    job.latents.n_clean_frames = 1;
    job.layout.clean_frame = tensor_make(clean, DTYPE_F32, 4, (int32_t[]){C, 1, SIDE, SIDE});
    frame_conditioning_put_clean(&job, to);
    bool right = true;
    for (int c = 0; c < C; c++)
        for (int i = 0; i < 3 * SIDE * SIDE; i++) {
            float wanted = i < SIDE * SIDE ? (float)(c * SIDE * SIDE + i) : -1;
            right &= latent[c * 3 * SIDE * SIDE + i] == wanted;
        }
    check(right, "not exactly the first frame of every channel is replaced");
}

int main(void) {
    memset(last, 255, sizeof last);
    for (int frames = 1; frames <= FRAMES_MAX; frames += FACTOR)
        for (int ends = 0; ends <= (frames > 1); ends++) {
            check_mask(frames, ends);
            check_frames(frames, ends);
        }
    check_first_frame_restored();
    return finish();
}
