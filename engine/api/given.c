/* Given frames: see given.h. */
#include "engine/api/given.h"

#include "engine/pictures/pictures.h"

#include <string.h>

/* The picture of a frame, if it is given. */
static const struct sluice_picture *given_frame(const struct job *job, int32_t frame) {
    const struct sluice_request *r = &job->request;
    if (!frame) return &job->picture[PICTURE_INIT];
    return r->end_image && frame == r->frames - 1 ? &job->picture[PICTURE_END] : NULL;
}

void given_fill(const struct job *job, const struct frame_chunk *chunk, struct tensor out) {
    for (int32_t i = 0; i < chunk->n_frames; i++) {
        const struct sluice_picture *picture = given_frame(job, chunk->first_frame + i);
        struct tensor frame = tensor_reshape(tensor_slice(out, i, 1), 3, out.dim + 1);
        if (picture)
            picture_to_tensor(picture, NULL, frame);
        else
            memset(frame.data, 0, (size_t)tensor_bytes(&frame));
    }
}

/* The first frame of a video stands for all under the first of the latent. */
void given_mask(const struct job *job) {
    const struct tensor *concat = job->layout.concat;
    int32_t factor = concat->dim[0] - job->C;
    int64_t pixels = (int64_t)job->Y * job->X;
    float *to = concat->data;
    for (int32_t i = 0; i < factor; i++)
        for (int32_t f = 0; f < job->F; f++) {
            bool given = given_frame(job, f ? 1 + (f - 1) * factor + i : 0);
            for (int64_t p = 0; p < pixels; p++) *to++ = given;
        }
}

struct tensor given_latent(const struct job *job) {
    struct tensor concat = job->layout.concat[0];
    return tensor_slice(concat, concat.dim[0] - job->C, job->C);
}

void given_put(const struct job *job, struct tensor latent) {
    const struct tensor *given = &job->layout.given;
    size_t plane = (size_t)job->given_frames * (size_t)job->Y * (size_t)job->X;
    size_t all = (size_t)job->F * (size_t)job->Y * (size_t)job->X;
    for (size_t c = 0; c < (size_t)job->C && plane; c++)
        memcpy((float *)latent.data + c * all, (const float *)given->data + c * plane, plane * sizeof(float));
}
