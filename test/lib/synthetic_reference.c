#include "test/lib/synthetic_reference.h"

#include "engine/pictures/pictures.h"
#include "engine/sample/noise.h"
#include "test/lib/synthetic_pipeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct matrix {
    int rows, columns;
    double *at;
};

/* All matrices of the reference are freed together, from this list. */
enum { ALLOCATIONS_MAX = 8192 };
static void *allocations[ALLOCATIONS_MAX];
static int n_allocations;

static struct matrix zeros(int rows, int columns) {
    struct matrix m = {rows, columns, calloc((size_t)rows * (size_t)columns + 1, sizeof *m.at)};
    if (!m.at || n_allocations == ALLOCATIONS_MAX) abort();
    allocations[n_allocations++] = m.at;
    return m;
}

/* Reads a tensor as a matrix: rows by its first dimension; a vector is one row. */
static struct matrix weight(const struct component *c, const char *format, int number) {
    char name[96];
    struct error e = {0};
    snprintf(name, sizeof name, format, number);
    const struct index_entry *entry = index_find(&c->index, name);
    if (!entry || entry->dtype != DTYPE_F32) abort();
    int n = (int)(entry->bytes / sizeof(float)), rows = entry->rank > 1 ? entry->dim[0] : 1;
    struct matrix m = zeros(rows, n / rows);
    float *values = malloc(entry->bytes);
    if (!values) abort();
    if (source_read(&c->index.sources[entry->source], values, entry->bytes, entry->offset, &e) != OK) abort();
    for (int i = 0; i < n; i++) m.at[i] = (double)values[i];
    free(values);
    return m;
}

/* Returns the product of `in` and the transposed `w`, plus `bias`; `bias` NULL: none. */
static struct matrix product(struct matrix in, struct matrix w, const double *bias) {
    struct matrix out = zeros(in.rows, w.rows);
    for (int i = 0; i < in.rows; i++)
        for (int j = 0; j < w.rows; j++) {
            double sum = bias ? bias[j] : 0;
            for (int k = 0; k < w.columns; k++) sum += in.at[i * in.columns + k] * w.at[j * w.columns + k];
            out.at[i * w.rows + j] = sum;
        }
    return out;
}

static void add(struct matrix to, struct matrix more) {
    for (int i = 0; i < to.rows * to.columns; i++) to.at[i] += more.at[i];
}

static void gelu(struct matrix m) {
    for (int i = 0; i < m.rows * m.columns; i++) {
        double v = m.at[i];
        m.at[i] = v / 2 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    }
}

static struct matrix rms_norm(struct matrix in, struct matrix w) {
    struct matrix out = zeros(in.rows, in.columns);
    for (int i = 0; i < in.rows; i++) {
        const double *row = in.at + i * in.columns;
        double sum = 0;
        for (int k = 0; k < in.columns; k++) sum += row[k] * row[k];
        for (int k = 0; k < in.columns; k++)
            out.at[i * in.columns + k] = row[k] / sqrt(sum / in.columns + (double)SYNTHETIC_EPS) * w.at[k];
    }
    return out;
}

/* Returns the layer norm of each row; `scale` and `shift` NULL: none. */
static struct matrix layer_norm(struct matrix in, const double *scale, const double *shift) {
    struct matrix out = zeros(in.rows, in.columns);
    for (int i = 0; i < in.rows; i++) {
        const double *row = in.at + i * in.columns;
        double mean = 0, variance = 0;
        for (int k = 0; k < in.columns; k++) mean += row[k] / in.columns;
        for (int k = 0; k < in.columns; k++) variance += (row[k] - mean) * (row[k] - mean) / in.columns;
        for (int k = 0; k < in.columns; k++)
            out.at[i * in.columns + k] =
                (row[k] - mean) / sqrt(variance + (double)SYNTHETIC_EPS) * (1 + (scale ? scale[k] : 0)) +
                (shift ? shift[k] : 0);
    }
    return out;
}

static void mlp(const struct component *c, const char *prefix, int layer, struct matrix x) {
    static const char *const names[] = {"norm.weight", "up.weight", "up.bias", "down.weight", "down.bias"};
    struct matrix w[5];
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.layers.%%d.%s", prefix, names[i]);
        w[i] = weight(c, name, layer);
    }
    struct matrix up = product(rms_norm(x, w[0]), w[1], w[2].at);
    gelu(up);
    add(x, product(up, w[3], w[4].at));
}

static struct matrix embedded(const struct component *c, const char *name, const int32_t *ids, int n) {
    struct matrix table = weight(c, name, 0), x = zeros(n, table.columns);
    for (int i = 0; i < n; i++)
        memcpy(x.at + i * x.columns, table.at + ids[i] * x.columns, (size_t)x.columns * sizeof *x.at);
    return x;
}

enum { LAYERS_MAX = 3 };

/* Computes a prompt's token rows after each of n_layers encoder layers, `normed` by the final norm if that
 * layer is marked so. *pooled: the row of the first end-of-text token after all layers, not normed. */
static void encode(const struct synthetic_input *in, int slot, int prompt, int n_layers, const bool *normed,
                   struct matrix after[LAYERS_MAX], struct matrix *pooled) {
    const struct component *c = &in->model->component[slot];
    const int32_t *ids = in->tokens[slot][prompt].ids;
    int n = in->tokens[slot][prompt].n, end = 0;
    struct matrix x = embedded(c, "text.embedding.weight", ids, n);
    for (int layer = 0; layer < n_layers; layer++) {
        mlp(c, "text", layer, x);
        after[layer] = zeros(x.rows, x.columns);
        add(after[layer], x);
        if (normed[layer]) after[layer] = rms_norm(x, weight(c, "text.norm.weight", 0));
    }
    while (ids[end] != ids[n - 1]) end++;
    struct matrix row = {1, x.columns, x.at + end * x.columns};
    *pooled = product(row, weight(c, "text.pool.weight", 0), weight(c, "text.pool.bias", 0).at);
}

/* Returns the image resized to `size`, with values from -1 to 1. */
static struct matrix pixels(const struct synthetic_input *in, const struct sluice_picture *p,
                            struct picture_size size) {
    struct error e = {0};
    struct matrix out = zeros(size.height * size.width, 3);
    uint8_t *bytes = malloc((size_t)(size.height * size.width * 3));
    if (!bytes) abort();
    if (p->width == size.width && p->height == size.height)
        memcpy(bytes, p->rgb, (size_t)(size.height * size.width * 3));
    else if (picture_resize(in->model->sys, p, TORCH_BICUBIC, size, bytes, &e) != OK)
        abort();
    for (int i = 0; i < out.rows * 3; i++) out.at[i] = bytes[i] / 255.0 * 2 - 1;
    free(bytes);
    return out;
}

/* Returns a 3x3 convolution of an image [height width, C]. `halves`: with stride 2 and zero padding right and
 * below; else after upsampling by 2, with zero padding on all sides. */
static struct matrix convolution(struct matrix image, int width, struct matrix w, struct matrix bias,
                                 bool halves) {
    int height = image.rows / width, C = image.columns;
    int Y = halves ? height / 2 : 2 * height, X = halves ? width / 2 : 2 * width;
    struct matrix out = zeros(Y * X, w.rows);
    for (int i = 0; i < Y * X * w.rows; i++) {
        int n = i % w.rows, x = i / w.rows % X, y = i / w.rows / X;
        double sum = bias.at[n];
        for (int k = 0; k < 9 * C; k++) {
            int c = k / 9, from_y = k % 9 / 3 + (halves ? 2 * y : y - 1),
                from_x = k % 3 + (halves ? 2 * x : x - 1);
            if (from_y < 0 || from_x < 0) continue;
            if (!halves) from_y = from_y < Y ? from_y / 2 : height, from_x = from_x < X ? from_x / 2 : width;
            if (from_y < height && from_x < width)
                sum += image.at[(from_y * width + from_x) * C + c] * w.at[n * w.columns + k];
        }
        out.at[i] = sum;
    }
    return out;
}

static struct matrix encode_image(const struct synthetic_input *in, const struct sluice_picture *p) {
    const struct component *c = &in->model->component[SYNTHETIC_VISION];
    struct picture_size size = {p->width > p->height ? 8 : 4, 4};
    struct matrix x = convolution(pixels(in, p, size), size.width, weight(c, "vision.in.weight", 0),
                                  weight(c, "vision.in.bias", 0), true);
    for (int layer = 0; layer < 3; layer++) mlp(c, "vision", layer, x);
    return rms_norm(x, weight(c, "vision.norm.weight", 0));
}

static void put(struct matrix to, int row, int column, struct matrix from, int first) {
    for (int i = first; i < from.rows; i++)
        memcpy(to.at + (row + i - first) * to.columns + column, from.at + i * from.columns,
               (size_t)from.columns * sizeof *to.at);
}

/* Returns the conditioning of a prompt: by columns two layers of the first encoder and one of the second;
 * then the rows of two layers of the third, then the images' rows. */
static struct matrix condition(const struct synthetic_input *in, int prompt, struct matrix *pooled) {
    static const bool normed[LAYERS_MAX] = {true, true, true}, only_last[LAYERS_MAX] = {false, true};
    struct matrix rows[3], a[LAYERS_MAX], b[LAYERS_MAX], words[LAYERS_MAX], vision[REFERENCE_PICTURES_MAX];
    encode(in, SYNTHETIC_TEXT, prompt, 3, normed, a, &rows[0]);
    encode(in, SYNTHETIC_TEXT_2, prompt, 3, normed, b, &rows[1]);
    encode(in, SYNTHETIC_LLM, prompt, 2, only_last, words, &rows[2]);
    int below = b->rows > SYNTHETIC_PADDED ? b->rows : SYNTHETIC_PADDED;
    int kept = words->rows - SYNTHETIC_DROPPED;
    int pictures = below + (2 * kept > SYNTHETIC_PADDED ? 2 * kept : SYNTHETIC_PADDED), all = pictures;
    for (int i = 0; i < in->request->n_references; i++) {
        vision[i] = encode_image(in, in->request->references[i]);
        all += vision[i].rows;
    }
    struct matrix text = zeros(all, 64);
    put(text, 0, 0, a[0], 0);
    put(text, 0, a->columns, a[1], 0);
    put(text, 0, 2 * a->columns, b[1], 0);
    put(text, below, 0, words[1], SYNTHETIC_DROPPED);
    put(text, below + kept, 0, words[0], SYNTHETIC_DROPPED);
    for (int i = 0; i < in->request->n_references; pictures += vision[i++].rows)
        put(text, pictures, 0, vision[i], 0);
    *pooled = zeros(1, rows[0].columns + rows[1].columns);
    put(*pooled, 0, 0, rows[0], 0);
    put(*pooled, 0, rows[0].columns, rows[1], 0);
    return text;
}

/* RoPE: rotates the pairs of each head's values by the row number. */
static void rotate(struct matrix m) {
    int head = m.columns / SYNTHETIC_HEADS;
    for (int i = 0; i < m.rows; i++)
        for (int k = 0; k < m.columns; k += 2) {
            double angle = i * pow(100, -(double)(k % head) / head), *v = m.at + i * m.columns + k;
            double a = v[0] * cos(angle) - v[1] * sin(angle), b = v[0] * sin(angle) + v[1] * cos(angle);
            v[0] = a;
            v[1] = b;
        }
}

static struct matrix attention(struct matrix q, struct matrix k, struct matrix v) {
    int head = q.columns / SYNTHETIC_HEADS;
    struct matrix out = zeros(q.rows, q.columns), score = zeros(1, k.rows);
    for (int i = 0; i < q.rows * SYNTHETIC_HEADS; i++) {
        const double *query = q.at + i * head;
        int h = i % SYNTHETIC_HEADS * head;
        double sum = 0;
        for (int s = 0; s < k.rows; s++) {
            double dot = 0;
            for (int d = 0; d < head; d++) dot += query[d] * k.at[s * k.columns + h + d];
            score.at[s] = exp(dot / sqrt(head));
            sum += score.at[s];
        }
        for (int s = 0; s < k.rows; s++)
            for (int d = 0; d < head; d++)
                out.at[i * head + d] += score.at[s] / sum * v.at[s * v.columns + h + d];
    }
    return out;
}

/* The weight of one stream of a double block, such as "text.q". */
static struct matrix stream(const struct component *c, int layer, const char *name) {
    char format[64];
    snprintf(format, sizeof format, "denoiser.layers.%%d.%s.weight", name);
    return weight(c, format, layer);
}

/* Returns the rows of `top`, then those of `bottom`. */
static struct matrix below(struct matrix top, struct matrix bottom) {
    struct matrix all = zeros(top.rows + bottom.rows, top.columns);
    put(all, 0, 0, top, 0);
    put(all, top.rows, 0, bottom, 0);
    return all;
}

static bool is_skipped(const struct sluice_request *r, int layer) {
    int i = 0;
    while (i < r->n_slg_layers && r->slg_layers[i] != layer) i++;
    return i < r->n_slg_layers;
}

/* Returns the noise that a denoiser predicts for z [F Y X, C] at a timestep. skips: a request whose
 * slg_layers are skipped, or NULL. */
static struct matrix predict_noise(const struct component *c, struct matrix z, const int32_t *dim,
                                   struct matrix text, struct matrix pooled, double timestep,
                                   const struct sluice_request *skips) {
    struct matrix positions = weight(c, "denoiser.positions.weight", 0), f = zeros(1, 16);
    struct matrix x = product(z, weight(c, "denoiser.in.weight", 0), weight(c, "denoiser.in.bias", 0).at);
    for (int i = 0; i < x.rows; i++) {
        int frame = i / dim[2] / dim[1], row = i / dim[2] % dim[1], column = i % dim[2];
        const double *at =
            positions.at + ((frame * SYNTHETIC_SIDE + row) * SYNTHETIC_SIDE + column) * x.columns;
        for (int k = 0; k < x.columns; k++) x.at[i * x.columns + k] += at[k];
    }
    text = product(text, weight(c, "denoiser.context.weight", 0), weight(c, "denoiser.context.bias", 0).at);
    for (int i = 0; i < 8; i++) {
        f.at[i] = cos(timestep * pow(10000, -i / 8.0));
        f.at[8 + i] = sin(timestep * pow(10000, -i / 8.0));
    }
    struct matrix condition = product(f, weight(c, "denoiser.time.weight", 0), NULL);
    add(condition,
        product(pooled, weight(c, "denoiser.pooled.weight", 0), weight(c, "denoiser.pooled.bias", 0).at));
    for (int k = 0; k < condition.columns; k++) condition.at[k] /= 1 + exp(-condition.at[k]);
    for (int i = 0; i < 4; i++) {
        if (skips && is_skipped(skips, i)) continue;
        struct matrix m = product(condition, weight(c, "denoiser.layers.%d.modulation.weight", i),
                                  weight(c, "denoiser.layers.%d.modulation.bias", i).at);
        struct matrix n = layer_norm(text, m.at, m.at + x.columns), q, k, v;
        struct matrix n_x = layer_norm(x, m.at + 2 * x.columns, m.at + 3 * x.columns);
        k = product(n, stream(c, i, "text.k"), NULL);
        rotate(k);
        q = below(product(n, stream(c, i, "text.q"), NULL), product(n_x, stream(c, i, "image.q"), NULL));
        k = below(k, product(n_x, stream(c, i, "image.k"), NULL));
        v = below(product(n, stream(c, i, "text.v"), NULL), product(n_x, stream(c, i, "image.v"), NULL));
        q = attention(q, k, v);
        k = (struct matrix){x.rows, x.columns, q.at + text.rows * text.columns};
        q.rows = text.rows;
        add(text, product(q, stream(c, i, "text.out"), NULL));
        add(x, product(k, stream(c, i, "image.out"), NULL));
        n = product(layer_norm(text, m.at, m.at + x.columns), stream(c, i, "text.up"), NULL);
        gelu(n);
        add(text, product(n, stream(c, i, "text.down"), NULL));
        n = product(layer_norm(x, m.at + 2 * x.columns, m.at + 3 * x.columns), stream(c, i, "image.up"),
                    NULL);
        gelu(n);
        add(x, product(n, stream(c, i, "image.down"), NULL));
    }
    return product(layer_norm(x, NULL, NULL), weight(c, "denoiser.out.weight", 0),
                   weight(c, "denoiser.out.bias", 0).at);
}

/* Returns the denoised latent. z is scaled to the same variance for every sigma. */
static struct matrix denoised(const struct synthetic_input *in, const double *x, const int32_t *dim,
                              double sigma, double timestep, bool second, int step, const struct matrix *text,
                              const struct matrix *pooled) {
    const struct sluice_request *r = in->request;
    const struct component *c = &in->model->component[second ? SYNTHETIC_DENOISER_2 : SYNTHETIC_DENOISER];
    int n = dim[0] * dim[1] * dim[2];
    struct matrix z = zeros(n, SYNTHETIC_CHANNELS), out = zeros(1, n * SYNTHETIC_CHANNELS);
    for (int i = 0; i < n * SYNTHETIC_CHANNELS; i++)
        z.at[i % n * SYNTHETIC_CHANNELS + i / n] = x[i] / sqrt(sigma * sigma + 1);
    struct matrix noise = predict_noise(c, z, dim, text[0], pooled[0], timestep, NULL), without = noise,
                  skipped = noise;
    double low = r->cfg_scale_low, scale = second && low != 0 ? low : r->cfg_scale, length = 0, guided = 0;
    /* Timesteps of steps fall evenly from 1000 to 100. */
    if (r->cfg_until != 0 && 0.9 * step / r->steps > r->cfg_until) scale = 1;
    bool skips =
        r->n_slg_layers && scale != 1 && step > r->steps * r->slg_start && step < r->steps * r->slg_end;
    if (scale != 1) without = predict_noise(c, z, dim, text[1], pooled[1], timestep, NULL);
    if (skips) skipped = predict_noise(c, z, dim, text[0], pooled[0], timestep, r);
    for (int i = 0; i < n * SYNTHETIC_CHANNELS; i++) {
        length += noise.at[i] * noise.at[i];
        guided += pow(without.at[i] + scale * (noise.at[i] - without.at[i]), 2);
    }
    double factor = r->cfg_norm > 0 && scale != 1 ? fmin(1, r->cfg_norm * sqrt(length / guided)) : 1;
    for (int i = 0; i < n * SYNTHETIC_CHANNELS; i++) {
        int at = i % n * SYNTHETIC_CHANNELS + i / n;
        out.at[i] = x[i] - sigma * (factor * (without.at[at] + scale * (noise.at[at] - without.at[at])) +
                                    r->slg_scale * (noise.at[at] - skipped.at[at]));
    }
    return out;
}

/* Decodes all latent frames at once: [frames, 3, 2 Y, 2 X]. */
static void decode_video(const struct synthetic_input *in, const double *latent, const int32_t *dim,
                         double *frames) {
    const struct component *c = &in->model->component[SYNTHETIC_VIDEO_VAE];
    int pixels = dim[1] * dim[2], n = dim[0] * pixels;
    struct matrix z = zeros(n, SYNTHETIC_CHANNELS), mean = weight(c, "video_vae.bn.running_mean", 0);
    struct matrix variance = weight(c, "video_vae.bn.running_var", 0);
    for (int i = 0; i < n * SYNTHETIC_CHANNELS; i++)
        z.at[i % n * SYNTHETIC_CHANNELS + i / n] =
            latent[i] * sqrt(variance.at[i / n] + SYNTHETIC_BATCH_NORM_EPS) + mean.at[i / n];
    struct matrix x = product(z, weight(c, "video_vae.in.weight", 0), weight(c, "video_vae.in.bias", 0).at);
    gelu(x);
    for (int layer = 0; layer < 3; layer++) {
        struct matrix more = product(x, weight(c, "video_vae.time.%d.weight", layer), NULL);
        for (int i = pixels * x.columns; i < n * x.columns; i++) x.at[i] += more.at[i - pixels * x.columns];
    }
    struct matrix split = weight(c, "video_vae.split.weight", 0);
    for (int frame = 0; frame < 2 * dim[0] - 1; frame++) {
        int of = (frame + 1) / 2, half = frame && frame % 2 == 0;
        struct matrix from = {pixels, x.columns, x.at + of * pixels * x.columns};
        struct matrix w = {x.columns, x.columns, split.at + half * x.columns * x.columns};
        struct matrix picture =
            convolution(product(from, w, NULL), dim[2], weight(c, "video_vae.out.weight", 0),
                        weight(c, "video_vae.out.bias", 0), false);
        for (int i = 0; i < picture.rows * 3; i++)
            frames[(frame * 3 + i % 3) * picture.rows + i / 3] = picture.at[i];
    }
}

static void random_normals(struct generator *g, double *to, int n) {
    float *values = malloc((size_t)n * sizeof *values);
    if (!values) abort();
    generator_normals(g, values, n);
    for (int i = 0; i < n; i++) to[i] = (double)values[i];
    free(values);
}

static void sample(const struct synthetic_input *in, const struct matrix *text, const struct matrix *pooled,
                   const int32_t *dim, double *x) {
    struct generator g;
    int n = SYNTHETIC_CHANNELS * dim[0] * dim[1] * dim[2], steps = in->request->steps;
    struct matrix past = zeros(1, n), noise = zeros(1, n);
    generator_seed(&g, in->request->seed);
    random_normals(&g, x, n);
    for (int i = 0; i < n; i++) x[i] *= 8;
    for (int step = 0; step < steps; step++) {
        double sigma = exp2(3 - 4.0 * step / steps), time = 1000 - 900.0 * step / steps;
        bool last = step + 1 == steps, second = time < 1000 * SYNTHETIC_BOUNDARY;
        double next = last ? 0 : exp2(3 - 4.0 * (step + 1) / steps), middle = sqrt(sigma * next);
        struct matrix now = denoised(in, x, dim, sigma, time, second, step, text, pooled);
        for (int i = 0; i < n; i++) {
            double towards = step ? 1.25 * now.at[i] - 0.25 * past.at[i] : now.at[i];
            x[i] = middle / sigma * x[i] + (1 - middle / sigma) * towards;
        }
        past = now;
        if (last) break;
        time += (1000 - 900.0 * (step + 1) / steps - time) * (sigma - middle) / (sigma - next);
        now = denoised(in, x, dim, middle, time, second, step, text, pooled);
        random_normals(&g, noise.at, n);
        for (int i = 0; i < n; i++)
            x[i] = next / middle * x[i] + (1 - next / middle) * (now.at[i] + past.at[i]) / 2 +
                   sigma / 8 * noise.at[i];
        past = now;
    }
}

void synthetic_reference_open(struct synthetic_reference *truth, const struct synthetic_input *in) {
    const struct sluice_request *r = in->request;
    int32_t dim[3] = {(r->frames - 1) / 2 + 1, r->height / 2, r->width / 2};
    int n = SYNTHETIC_CHANNELS * dim[0] * dim[1] * dim[2];
    struct matrix text[2], pooled[2];
    for (int prompt = 0;
         prompt < (r->cfg_scale == 1 && (r->cfg_scale_low == 0 || r->cfg_scale_low == 1) ? 1 : 2); prompt++)
        text[prompt] = condition(in, prompt, &pooled[prompt]);
    *truth = (struct synthetic_reference){.rows = text->rows,
                                          .columns = text->columns,
                                          .pooled_columns = pooled->columns,
                                          .text = text->at,
                                          .pooled = pooled->at,
                                          .latent = zeros(1, n).at,
                                          .frames = zeros(r->frames, 3 * r->height * r->width).at};
    sample(in, text, pooled, dim, truth->latent);
    decode_video(in, truth->latent, dim, truth->frames);
}

void synthetic_reference_close(struct synthetic_reference *truth) {
    while (n_allocations) free(allocations[--n_allocations]);
    *truth = (struct synthetic_reference){0};
}
