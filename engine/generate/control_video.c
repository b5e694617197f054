#include "engine/generate/control_video.h"

#include "engine/job/pictures.h"
#include "engine/pictures/pictures.h"

#include <string.h>

/* Concat channels of WAN VACE, in order. encoded.reference says which part of a control video is encoded:
 * inactive or reactive. */
enum { PART_INACTIVE, PART_REACTIVE, PART_MASK };

/* Gets frame i of the control video at the output size: the caller's pixels if already of the output size,
 * else read and resized into layout.control_rgb. */
static enum status control_video_read(const struct job *job, int32_t i, struct sluice_picture *picture,
                                      struct error *e) {
    struct tensor rgb = job->layout.control_rgb;
    copy_sized(picture, sizeof *picture, job->request.control[i]);
    if (!picture->rgb || fit_changes(&job->pictures.control_fitting)) {
        fit_read(job->sys, picture, &job->pictures.control_fitting, rgb.data, NULL, e);
        picture->rgb = rgb.data;
    }
    picture->width = job->request.width;
    picture->height = job->request.height;
    return e->code;
}

enum status control_video_fill(const struct job *job, const struct encoded *encoded,
                               const struct frame_chunk *chunk, struct tensor out, struct error *e) {
    const struct sluice_picture *mask = job->request.mask ? &job->pictures.fitted[PICTURE_MASK] : NULL;
    bool reactive = encoded->reference == PART_REACTIVE;
    for (int32_t i = 0; i < chunk->n_frames && e->code == OK; i++) {
        struct tensor frame = tensor_reshape(tensor_slice(out, i, 1), 3, out.dim + 1);
        struct sluice_picture picture;
        if (!job->request.n_control || (!mask && !reactive))
            memset(frame.data, 0, (size_t)tensor_bytes(&frame));
        else if (control_video_read(job, chunk->first_frame + i, &picture, e) == OK)
            picture_to_tensor(&picture, mask, reactive, frame);
    }
    return e->code;
}

void control_video_fill_reference(const struct job *job, const struct encoded *encoded, struct tensor out) {
    picture_letterbox(pictures_fitted(job, encoded), tensor_reshape(out, 3, out.dim + 1));
}

static struct tensor control_video_part(const struct job *job, int part) {
    struct tensor concat = job->layout.concat[0];
    int32_t first = part * job->latents.C;
    return tensor_slice(concat, first, part == PART_MASK ? concat.dim[0] - first : job->latents.C);
}

struct tensor control_video_latent(const struct job *job, const struct encoded *encoded) {
    return control_video_part(job,
                              encoded->kind == ENCODED_REFERENCE_FRAME ? PART_INACTIVE : encoded->reference);
}

int control_video_frame(const struct job *job, const struct encoded *encoded, int chunk) {
    return encoded->kind == ENCODED_REFERENCE_FRAME ? job->latents.n_reference_frames - 1 - encoded->reference
                                                    : job->latents.n_reference_frames + chunk;
}

/* Writes one latent frame of the mask channels. A still mask (--mask) gives the same values for every frame;
 * without a mask every value is 1 (repaint). Reference frames get 0. */
static void control_video_put_mask(const struct job *job, struct tensor to, int32_t frame) {
    const struct job_latents *size = &job->latents;
    const struct sluice_picture *mask = &job->pictures.fitted[PICTURE_MASK];
    size_t pixels = (size_t)size->Y * (size_t)size->X, all = (size_t)to.dim[1] * pixels;
    float *values = (float *)to.data + (size_t)frame * pixels;
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    for (int32_t c = 0; c < to.dim[0]; c++)
        for (size_t p = 0; p < pixels; p++) {
            int y = (int)(p / (size_t)size->X) * factor + c / factor;
            int x = (int)(p % (size_t)size->X) * factor + c % factor;
            float level = job->request.mask ? mask_level(mask, y, x) : 1;
            values[(size_t)c * all + p] = frame >= size->n_reference_frames ? level : 0;
        }
}

/* Without a control video, one grey video is encoded and used for both the inactive and the reactive part. */
void control_video_finish(const struct job *job) {
    const struct job_latents *size = &job->latents;
    struct tensor inactive = control_video_part(job, PART_INACTIVE),
                  reactive = control_video_part(job, PART_REACTIVE),
                  mask = control_video_part(job, PART_MASK);
    size_t pixels = (size_t)size->Y * (size_t)size->X, all = (size_t)size->F * pixels;
    size_t front = (size_t)size->n_reference_frames * pixels;
    if (!job->request.n_control) memcpy(reactive.data, inactive.data, (size_t)tensor_bytes(&inactive));
    for (size_t c = 0; c < (size_t)size->C; c++)
        memset((float *)reactive.data + c * all, 0, front * sizeof(float));
    for (int32_t frame = 0; frame < size->F; frame++) control_video_put_mask(job, mask, frame);
}

void control_video_cut_references(const struct job *job, struct tensor latent) {
    const struct job_latents *size = &job->latents;
    size_t pixels = (size_t)size->Y * (size_t)size->X, front = (size_t)size->n_reference_frames * pixels;
    size_t all = (size_t)size->F * pixels, left = all - front;
    float *values = latent.data;
    for (size_t c = 0; c < (size_t)size->C && front; c++)
        memmove(values + c * left, values + c * all + front, left * sizeof(float));
}
