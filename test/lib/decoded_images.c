#include "test/lib/decoded_images.h"

#include <math.h>

static void collect_image(void *user, const struct sluice_image *image) {
    struct decoded_images *to = user;
    size_t bytes = (size_t)image->width * (size_t)image->height * 3;
    to->width = image->width;
    to->height = image->height;
    if (!image->frame) to->frames = 0;
    to->rgb = realloc(to->rgb, (size_t)image->frames * bytes);
    if (!to->rgb) abort();
    memcpy(to->rgb + (size_t)to->frames++ * bytes, image->rgb, bytes);
    snprintf(to->decoder, sizeof to->decoder, "%s", image->decoder ? image->decoder : "none");
}

struct decoded_images decode_images(options from, const char *latent) {
    struct decoded_images decoded = {0};
    struct rig rig;
    struct sluice_session_options session = {.threads = 1, .on_image = collect_image, .user = &decoded};
    from.decodes_only = true;
    from.latent = latent;
    if (rig_open_with(&rig, *model_options(&from), session, 1)) {
        struct sluice_request request = request_fox(8, 8, 1, 1, 1);
        struct result r = run_or_decode(&rig, &request, latent);
        check(r.code == SLUICE_OK && decoded.frames > 0, "%s: %s", latent, r.error.what);
    }
    rig_close(&rig);
    return decoded;
}

static int levels_off(unsigned char level, float colour) {
    return abs((int)lrintf(127.5F * (fminf(fmaxf(colour, -1), 1) + 1)) - level);
}

void decoded_images_expect(const struct decoded_images *decoded, int height, int width, const float *truth,
                           const char *what) {
    int n = decoded->frames * decoded->width * decoded->height * 3, off = 0, most = 0;
    if (!check(decoded->height == height && decoded->width == width, "%s: %dx%d", what, decoded->width,
               decoded->height))
        return;
    for (int i = 0; i < n; i++) {
        int apart = levels_off(decoded->rgb[i], truth[i]);
        off += apart > 0;
        most = apart > most ? apart : most;
    }
    check(most <= 1 && off * 1000 <= n, "%s: %d of %d levels differ, by %d at most", what, off, n, most);
}

const char *write_latent_file(const char *name, int rank, const int32_t *dim, const void *values) {
    struct tensor_set *file = calloc(1, sizeof *file);
    size_t bytes = sizeof(float);
    if (!file) abort();
    for (int i = 0; i < rank; i++) bytes *= (size_t)dim[i];
    tensor_set_add(file, "", "latent", "F32", rank, dim, values, bytes);
    const char *path = temporary_path(name);
    write_tensor_set(file, path, NULL);
    tensor_set_free(file);
    return path;
}

void add_other_tensor(struct tensor_set *p, const char *prefix) {
    static const float values[4];
    tensor_set_add(p, prefix, "0.weight", "F32", 2, (int32_t[]){2, 2}, values, sizeof values);
}

const char *write_near_decoder(const struct tensor_set *tiny, const char *without, const char *added) {
    struct tensor_set *p = tensor_set_copy(tiny, "");
    const char *path = temporary_path("near.safetensors");
    if (without) tensor_set_drop(p, without);
    if (added) add_other_tensor(p, added);
    write_tensor_set(p, path, tiny->config);
    tensor_set_free(p);
    return path;
}
