#include "engine/generate/dump.h"

#include "engine/open/latent_file.h"
#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

/* Passes the bytes of several tensors to a file writer piece by piece, in order, so that no tensor is copied
 * whole. */
struct stream {
    const struct tensor *tensors;
    uint64_t done; /* bytes passed on */
};

static enum status next_stacked(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    (void)i, (void)e;
    struct stream *stream = user;
    uint64_t each = (uint64_t)tensor_bytes(stream->tensors);
    for (uint64_t filled = 0; filled < bytes;) {
        uint64_t offset = stream->done % each,
                 n = each - offset < bytes - filled ? each - offset : bytes - filled;
        memcpy((char *)to + filled, (const char *)stream->tensors[stream->done / each].data + offset, n);
        filled += n;
        stream->done += n;
    }
    return OK;
}

static enum status next_planar(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    (void)i, (void)e;
    struct stream *stream = user;
    const float *picture = stream->tensors->data;
    uint64_t pixels = (uint64_t)tensor_rows(stream->tensors), first = stream->done / sizeof *picture;
    uint64_t columns = (uint64_t)tensor_columns(stream->tensors);
    for (uint64_t k = 0; k < bytes / sizeof *picture; k++)
        ((float *)to)[k] = picture[(first + k) % pixels * columns + (first + k) / pixels];
    stream->done += bytes;
    return OK;
}

enum status latents_save(struct sys *sys, const char *path, const char *name, const char *recipe,
                         const struct tensor *latents, int n, struct error *e) {
    int32_t C = latents->dim[0], F = latents->dim[1], Y = latents->dim[2], X = latents->dim[3];
    struct named_tensor tensor = {name, F == 1 ? tensor_make(NULL, DTYPE_F32, 4, (int32_t[]){n, C, Y, X})
                                               : tensor_make(NULL, DTYPE_F32, 5, (int32_t[]){n, C, F, Y, X})};
    struct stream stream = {.tensors = latents};
    char config[96];
    const struct safetensors_text metadata = {"config", config};
    const struct safetensors_content content = {&tensor, 1, &metadata, recipe != NULL};
    if (recipe) snprintf(config, sizeof config, "{\"" LATENT_RECIPE "\": \"%s\"}", recipe);
    return safetensors_write_content(sys, path, &content, &(struct tensor_maker){&stream, next_stacked}, e);
}

static char *dump_path(struct sys *sys, const char *folder, const char *name, struct error *e) {
    char file[64];
    snprintf(file, sizeof file, "%s.safetensors", name);
    char *path = path_join(sys, folder, file);
    if (!path) error_set(e, MEMORY, "no memory for a path");
    return path;
}

enum status dump_save(struct sys *sys, const char *folder, const char *name, struct tensor tensor,
                      struct error *e) {
    char *path = dump_path(sys, folder, name, e);
    struct named_tensor named = {name, tensor};
    if (path) safetensors_write(sys, path, &named, 1, e);
    sys->release(sys, path);
    return e->code;
}

enum status dump_step_latents(const struct job *job, int step, struct error *e) {
    const struct job *first = job->context.first_pass;
    int number = first ? first->schedule.grid.n + 1 + step : step;
    char name[32];
    snprintf(name, sizeof name, "latent_%03d", number);
    char *path = dump_path(job->sys, job->request.dump, name, e);
    if (path) latents_save(job->sys, path, name, NULL, job->layout.latent, job->latents.batch, e);
    job->sys->release(job->sys, path);
    if (!job->latents.sound[0] || e->code != OK) return e->code;
    struct tensor sound[BATCH_MAX];
    for (int i = 0; i < job->latents.batch; i++) sound[i] = job_sound(job, job->layout.latent[i]);
    snprintf(name, sizeof name, "sound_%03d", number);
    path = dump_path(job->sys, job->request.dump, name, e);
    if (path) latents_save(job->sys, path, name, NULL, sound, job->latents.batch, e);
    job->sys->release(job->sys, path);
    return e->code;
}

enum status dump_run_start(const struct job *job, struct error *e) {
    const char *folder = job->request.dump;
    for (int text = 0; text < job->prompts.n_texts; text++)
        for (int i = 0; i < job->settings.n_encoded_prompts && e->code == OK; i++) {
            const struct prompt_tokens *tokens = &job->prompts.tokens[job->prompts.text_slot[text]][i];
            char number[16], name[32];
            if (!tokens->ids) continue; /* reads another text encoder's output */
            snprintf(name, sizeof name, "%s%s", job_numbered("tokens", text, number), i ? "_uncond" : "");
            dump_save(job->sys, folder, name, tensor_make(tokens->ids, DTYPE_I32, 1, &tokens->n_ids), e);
        }
    if (e->code != OK) return e->code;
    /* Sigma at the beginning of each step, then sigma at the end of the last step. */
    int32_t n = job->schedule.grid.n + 1;
    float *sigmas = sys_new(job->sys, (size_t)n, sizeof *sigmas, "sigmas", e);
    if (!sigmas) return e->code;
    for (int i = 0; i < n - 1; i++) sigmas[i] = job->schedule.grid.step[i].at.sigma;
    sigmas[n - 1] = job->schedule.grid.step[n - 2].to.sigma;
    dump_save(job->sys, folder, "sigmas", tensor_make(sigmas, DTYPE_F32, 1, &n), e);
    job->sys->release(job->sys, sigmas);
    return e->code;
}

enum status dump_save_picture(struct sys *sys, const char *folder, const char *name, struct tensor picture,
                              struct error *e) {
    char *path = dump_path(sys, folder, name, e);
    int32_t dim[4] = {1, picture.dim[2], picture.dim[0], picture.dim[1]};
    struct named_tensor tensor = {name, tensor_make(NULL, DTYPE_F32, 4, dim)};
    struct stream stream = {.tensors = &picture};
    const struct safetensors_content content = {.tensors = &tensor, .n_tensors = 1};
    if (path) safetensors_write_content(sys, path, &content, &(struct tensor_maker){&stream, next_planar}, e);
    sys->release(sys, path);
    return e->code;
}
