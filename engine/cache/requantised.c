#include "engine/cache/requantised.h"

#include "engine/base/thread_pool.h"
#include "kernels/cpu/weights.h"
#include "loaders/quantise/quantise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REQUANTISED_TYPES                                                                                    \
    "int8_convrot, f8_e4m3, f8_e5m2, q8_0, q6_k, q5_k, q5_0, q4_k, q4_0, bf16, f16 or f32"

/* Weight values per second and thread, measured (bench/LOG.md): conversion by rounding, to types whose scales
 * are searched, and to rotated types; scan for row scales. */
#define ROUNDED_VALUES  1e8
#define SEARCHED_VALUES 5e7
#define ROTATED_VALUES  6e8
#define SCANNED_VALUES  8e8

enum status requantised_choice(const char *type, const char *precision, struct conversion_choice *choice,
                               struct error *e) {
    choice->type = type ? quantise_type(type) : N_DTYPES;
    choice->int8 = !type && precision && precision_named(precision) == PRECISION_INT8;
    if (!type || choice->type != N_DTYPES) return OK;
    return error_set(e, USAGE, "unknown weight type (--type)" FOUND "%s" EXPECTED REQUANTISED_TYPES, type);
}

/* Buffers of one thread that scans weights for their scales, and the thread's first error. */
struct scan {
    struct error error;
    char stored[4 * READER_VALUES];
    float numbers[READER_VALUES];
};

void requantised_destroy(struct requantised *r) {
    for (int i = 0; i < MODEL_COMPONENTS; i++) {
        if (!r->component[i]) continue;
        component_destroy(r->component[i]);
        row_scales_free(r->sys, &r->row_scales[i]);
        r->sys->release(r->sys, r->component[i]);
    }
    *r = (struct requantised){0};
}

enum status requantised_prepare(struct requantised *r, const struct sluice_model *model,
                                struct conversion_choice choice, struct error *e) {
    if (r->made && conversion_equals(r->choice, choice)) return OK;
    requantised_destroy(r);
    r->made = true;
    r->sys = model->sys;
    r->choice = choice;
    const struct weight_type wanted = {choice.int8 ? DTYPE_I8_ROT256 : choice.type, choice.int8};
    if (wanted.type == N_DTYPES) return OK;
    for (int i = 0; i < MODEL_COMPONENTS && e->code == OK; i++) {
        const struct family *family = model->component[i].family;
        if (!family || family_decodes(family) || family->kind == FAMILY_ENCODER ||
            family->kind == FAMILY_SOUND_DECODER || family->kind == FAMILY_VOCODER ||
            family->kind == FAMILY_UPSCALER || family->kind == FAMILY_LATENT_UPSCALER)
            continue;
        bool of_denoiser = family->kind == FAMILY_DENOISER || family->kind == FAMILY_CONTROL;
        if (choice.int8 && !of_denoiser) continue;
        r->component[i] = sys_new(r->sys, 1, sizeof **r->component, "the weights of --type", e);
        if (!r->component[i]) break;
        component_requantise(&model->component[i], wanted, &r->row_scales[i], r->component[i], e);
    }
    if (e->code != OK) requantised_destroy(r);
    return e->code;
}

const struct component *requantised_component(const struct requantised *r, const struct sluice_model *model,
                                              int slot) {
    return r && r->component[slot] ? r->component[slot] : &model->component[slot];
}

uint64_t requantised_bytes(const struct requantised *r, int readers) {
    uint64_t bytes = 0;
    for (int i = 0; r && i < MODEL_COMPONENTS; i++)
        if (r->component[i])
            bytes += sizeof **r->component + component_layout_bytes(r->component[i]) +
                     (uint64_t)r->row_scales[i].n * sizeof *r->row_scales[i].scale;
    return bytes ? bytes + (uint64_t)readers * READER_WORK_BYTES + sizeof(struct scan) : 0;
}

static void stored_to_f32(float *numbers, const void *from, enum dtype dtype, float scale, int64_t values) {
    struct tensor stored = tensor_make((void *)(uintptr_t)from, dtype, 1, (int32_t[]){(int32_t)values});
    stored.scale = scale;
    weights_widen(numbers, &stored, 0, 1);
}

void requantised_convert(const struct packed_conversion *c, const void *from, float *numbers, void *to,
                         int64_t first, int64_t values) {
    stored_to_f32(numbers, from, c->from, c->from_scale, values);
    if (!c->row_scales) {
        quantise_rows(c->to, c->to_scale, numbers, 1, values, to);
        return;
    }
    for (int64_t done = 0, n; done < values; done += n) {
        int64_t row = (first + done) / c->columns, left = (row + 1) * c->columns - first - done;
        n = left < values - done ? left : values - done;
        quantise_row_part(c->to, c->row_scales[row], numbers + done, n, (int8_t *)to + done);
    }
}

static bool makes_rotated(struct conversion_choice choice) {
    return choice.int8 || (choice.type != N_DTYPES && dtype_is_rotated(choice.type));
}

double requantised_seconds(struct conversion_choice choice, int64_t values) {
    if (makes_rotated(choice)) return (double)values / ROTATED_VALUES;
    bool searches = choice.type != N_DTYPES && dtype_block_values(choice.type) == 256;
    return (double)values / (searches ? SEARCHED_VALUES : ROUNDED_VALUES);
}

double requantised_scan_seconds(struct conversion_choice choice, int64_t values) {
    return makes_rotated(choice) ? (double)values / SCANNED_VALUES : 0;
}

struct scaling {
    bool (*tick)(void *user, struct error *e);
    void *user;
    struct scan *scan;
};

static enum status scan_entry(const struct component *c, const struct index_entry *entry, struct scan *scan,
                              float *most, struct error *e) {
    int64_t n = index_elements(entry);
    *most = 0;
    for (int64_t at = 0; at < n && e->code == OK; at += READER_VALUES) {
        int64_t values = n - at < READER_VALUES ? n - at : READER_VALUES;
        if (source_read(&c->index.sources[entry->source], scan->stored,
                        (uint64_t)dtype_bytes(entry->dtype, values),
                        entry->offset + (uint64_t)dtype_bytes(entry->dtype, at), e) != OK)
            break;
        stored_to_f32(scan->numbers, scan->stored, entry->dtype, entry->scale, values);
        for (int64_t i = 0; i < values; i++)
            if (fabsf(scan->numbers[i]) > *most) *most = fabsf(scan->numbers[i]);
    }
    return e->code;
}

static enum status scale_component(struct component *c, enum dtype type, const struct scaling *scaling,
                                   struct error *e) {
    for (int i = 0; i < c->index.n_entries && e->code == OK; i++) {
        const struct index_entry *entry = &c->index.entries[i];
        float most;
        if (requantise_of_entry(c, entry) != type || !scaling->tick(scaling->user, e)) continue;
        if (scan_entry(c, entry, scaling->scan, &most, e) == OK)
            requantise_set_scale(c, entry, quantise_scale(type, most));
    }
    return e->code;
}

/* One parallel round of scan_rows: each thread scans one of consecutive blocks. */
struct row_scan {
    const struct block *blocks;
    struct scan *buffers; /* one per thread */
};

/* Computes the row scales of one segment. Errors are set in buffer->error. */
static void scan_segment(const struct packed_segment *g, struct scan *buffer) {
    const struct packed_conversion *c = &g->conversion;
    struct reader reader = {0};
    float *scale = (float *)(uintptr_t)c->row_scales;
    int64_t rows = (int64_t)g->bytes / dtype_bytes(c->to, c->columns), most = READER_VALUES / c->columns;
    uint64_t row_bytes = (uint64_t)dtype_bytes(c->from, c->columns);
    for (int64_t at = 0, n; at < rows; at += n) {
        n = rows - at < most ? rows - at : most;
        if (reader_read_stored(&reader, g, (uint64_t)at * row_bytes, (uint64_t)n * row_bytes, buffer->stored,
                               &buffer->error) != OK)
            return;
        stored_to_f32(buffer->numbers, buffer->stored, c->from, c->from_scale, n * c->columns);
        for (int64_t i = 0; i < n; i++) {
            const float *row = buffer->numbers + i * c->columns;
            scale[at + i] = quantise_row_scale(c->to, row, c->columns);
        }
    }
}

static void scan_blocks(const void *context, int64_t first, int64_t end, int member) {
    const struct row_scan *scan = context;
    struct scan *buffer = &scan->buffers[member];
    for (int64_t b = first; b < end; b++)
        for (int i = 0; i < scan->blocks[b].n_segments && buffer->error.code == OK; i++) {
            const struct packed_segment *g = &scan->blocks[b].segments[i];
            if (g->conversion.row_scales) scan_segment(g, buffer);
        }
}

/* Computes the row scales of a component's weights. The calling thread calls tick before each round. */
static enum status scan_rows(struct component *c, const struct scaling *scaling, struct thread_pool *pool,
                             struct error *e) {
    int members = thread_pool_members(pool);
    for (int b = 0; b < c->n_blocks && e->code == OK && scaling->tick(scaling->user, e); b += members) {
        struct row_scan scan = {&c->blocks[b], scaling->scan};
        thread_pool_run(pool, c->n_blocks - b < members ? c->n_blocks - b : members, scan_blocks, &scan);
        for (int i = 0; i < members && e->code == OK; i++)
            if (scaling->scan[i].error.code != OK) *e = scaling->scan[i].error;
    }
    return e->code;
}

enum status requantised_scale(struct requantised *r, struct sys *sys, int slot, int readers,
                              bool (*tick)(void *user, struct error *e), void *user, struct error *e) {
    struct component *c = r->component[slot];
    bool f8 = r->choice.type == DTYPE_F8_E4M3 || r->choice.type == DTYPE_F8_E5M2;
    if ((!f8 && !r->row_scales[slot].n) || r->scaled[slot] || !c) return OK;
    struct scaling scaling = {tick, user, sys->alloc(sys, LINE_HOST, (size_t)readers * sizeof *scaling.scan)};
    if (!scaling.scan) return error_set(e, MEMORY, "no memory to scan weights for their scale");
    for (int i = 0; i < readers; i++) scaling.scan[i].error = (struct error){0};
    struct thread_pool *pool = f8 ? NULL : thread_pool_open(sys, readers, e);
    if (f8)
        scale_component(c, r->choice.type, &scaling, e);
    else if (pool && thread_pool_start(pool, e) == OK)
        scan_rows(c, &scaling, pool, e);
    thread_pool_close(pool);
    sys->release(sys, scaling.scan);
    r->scaled[slot] = e->code == OK;
    return e->code;
}
