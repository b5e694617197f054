/* Led videos: see led.h. */
#include "engine/api/led.h"

#include "engine/pictures/pictures.h"

#include <string.h>

/* The parts of what lies beside the latent, in their order; encoded.reference of videos is one of the first
 * two. */
enum { PART_KEPT, PART_DRAWN, PART_MASK };

/* ---- frames ---- */

/* Frame i of the leading video, made to fit: its own pixels, or read to memory that all share. */
static enum status led_read(const struct job *job, int32_t i, struct sluice_picture *picture,
                            struct error *e) {
    struct tensor rgb = job->layout.led_rgb;
    copy_sized(picture, sizeof *picture, job->request.control[i]);
    if (!picture->rgb || fit_changes(&job->control_fitting)) {
        fit_read(job->sys, picture, &job->control_fitting, rgb.data, e);
        picture->rgb = rgb.data;
    }
    picture->width = job->request.width;
    picture->height = job->request.height;
    return e->code;
}

enum status led_fill(const struct job *job, const struct encoded *encoded, const struct frame_chunk *chunk,
                     struct tensor out, struct error *e) {
    const struct sluice_picture *mask = job->request.mask ? &job->picture[PICTURE_MASK] : NULL;
    bool drawn = encoded->reference == PART_DRAWN;
    for (int32_t i = 0; i < chunk->n_frames && e->code == OK; i++) {
        struct tensor frame = tensor_reshape(tensor_slice(out, i, 1), 3, out.dim + 1);
        struct sluice_picture picture;
        if (!job->request.n_control || (!mask && !drawn))
            memset(frame.data, 0, (size_t)tensor_bytes(&frame));
        else if (led_read(job, chunk->first_frame + i, &picture, e) == OK)
            picture_to_part(&picture, mask, drawn, frame);
    }
    return e->code;
}

void led_fill_front(const struct job *job, const struct encoded *encoded, struct tensor out) {
    picture_to_canvas(job_source(job, encoded), tensor_reshape(out, 3, out.dim + 1));
}

/* ---- what lies beside the latent ---- */

static struct tensor led_part(const struct job *job, int part) {
    struct tensor concat = job->layout.concat[0];
    int32_t first = part * job->C;
    return tensor_slice(concat, first, part == PART_MASK ? concat.dim[0] - first : job->C);
}

struct tensor led_latent(const struct job *job, const struct encoded *encoded) {
    return led_part(job, encoded->kind == ENCODED_FRONT ? PART_KEPT : encoded->reference);
}

int led_frame(const struct job *job, const struct encoded *encoded, int chunk) {
    return encoded->kind == ENCODED_FRONT ? job->n_front - 1 - encoded->reference : job->n_front + chunk;
}

/* Of a still mask every frame is alike. The model is told greys as they are; what is drawn anew is from half
 * of white on. */
static void led_put_mask(const struct job *job, struct tensor to, int32_t frame) {
    const struct sluice_picture *mask = &job->picture[PICTURE_MASK];
    size_t pixels = (size_t)job->Y * (size_t)job->X, all = (size_t)to.dim[1] * pixels;
    float *values = (float *)to.data + (size_t)frame * pixels;
    int factor = model_component(job->model, FAMILY_ENCODER)->pixel_factor;
    for (int32_t c = 0; c < to.dim[0]; c++)
        for (size_t p = 0; p < pixels; p++) {
            int y = (int)(p / (size_t)job->X) * factor + c / factor;
            int x = (int)(p % (size_t)job->X) * factor + c % factor;
            float drawn = job->request.mask ? mask_level(mask, y, x) : 1;
            values[(size_t)c * all + p] = frame >= job->n_front ? drawn : 0;
        }
}

/* Where nothing leads one grey video stands for both. */
void led_finish(const struct job *job) {
    struct tensor kept = led_part(job, PART_KEPT), drawn = led_part(job, PART_DRAWN),
                  mask = led_part(job, PART_MASK);
    size_t pixels = (size_t)job->Y * (size_t)job->X, all = (size_t)job->F * pixels;
    size_t front = (size_t)job->n_front * pixels;
    if (!job->request.n_control) memcpy(drawn.data, kept.data, (size_t)tensor_bytes(&kept));
    for (size_t c = 0; c < (size_t)job->C; c++)
        memset((float *)drawn.data + c * all, 0, front * sizeof(float));
    for (int32_t frame = 0; frame < job->F; frame++) led_put_mask(job, mask, frame);
}

void led_cut(const struct job *job, struct tensor latent) {
    size_t pixels = (size_t)job->Y * (size_t)job->X, front = (size_t)job->n_front * pixels;
    size_t all = (size_t)job->F * pixels, left = all - front;
    float *values = latent.data;
    for (size_t c = 0; c < (size_t)job->C && front; c++)
        memmove(values + c * left, values + c * all + front, left * sizeof(float));
}
