#include "engine/generate/frame_conditioning.h"

#include "engine/pictures/pictures.h"

#include <string.h>

/* Returns the input image used as a video frame (--init-img for the first frame, --end-img for the last);
 * NULL: the frame is generated. */
static const struct sluice_picture *conditioning_frame(const struct job *job, int32_t frame) {
    const struct sluice_request *r = &job->request;
    if (!frame) return &job->pictures.fitted[PICTURE_INIT];
    return r->end_image && frame == r->frames - 1 ? &job->pictures.fitted[PICTURE_END] : NULL;
}

void frame_conditioning_fill(const struct job *job, const struct frame_chunk *chunk, struct tensor out) {
    for (int32_t i = 0; i < chunk->n_frames; i++) {
        const struct sluice_picture *picture = conditioning_frame(job, chunk->first_frame + i);
        struct tensor frame = tensor_reshape(tensor_slice(out, i, 1), 3, out.dim + 1);
        if (picture)
            picture_to_tensor(picture, NULL, false, frame);
        else
            memset(frame.data, 0, (size_t)tensor_bytes(&frame));
    }
}

/* The first latent frame covers one video frame, each later latent frame covers `factor` video frames. All
 * `factor` mask channels of the first latent frame have the mask value of video frame 0. */
void frame_conditioning_mask(const struct job *job) {
    const struct job_latents *size = &job->latents;
    const struct tensor *concat = job->layout.concat;
    int32_t factor = concat->dim[0] - size->C;
    int64_t pixels = (int64_t)size->Y * size->X;
    float *to = concat->data;
    for (int32_t i = 0; i < factor; i++)
        for (int32_t f = 0; f < size->F; f++) {
            bool fixed = conditioning_frame(job, f ? 1 + (f - 1) * factor + i : 0);
            for (int64_t p = 0; p < pixels; p++) *to++ = fixed;
        }
}

struct tensor frame_conditioning_latent(const struct job *job) {
    struct tensor concat = job->layout.concat[0];
    return tensor_slice(concat, concat.dim[0] - job->latents.C, job->latents.C);
}

void frame_conditioning_put_clean(const struct job *job, struct tensor latent) {
    const struct job_latents *size = &job->latents;
    const struct tensor *clean = &job->layout.clean_frame;
    size_t plane = (size_t)size->n_clean_frames * (size_t)size->Y * (size_t)size->X;
    size_t all = (size_t)size->F * (size_t)size->Y * (size_t)size->X;
    for (size_t c = 0; c < (size_t)size->C && plane; c++)
        memcpy((float *)latent.data + c * all, (const float *)clean->data + c * plane, plane * sizeof(float));
}
