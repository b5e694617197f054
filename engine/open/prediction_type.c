#include "engine/open/prediction_type.h"

#include "engine/base/half.h"

#include <math.h>
#include <string.h>

static bool has_marker(void *user, const char *name) {
    const struct tensor_index *index = user;
    if (index_find(index, name)) return true;
    for (int i = 0; i < index->n_entries; i++)
        if (!strcmp(index->entries[i].name, name)) return true;
    return false;
}

enum { PROBE_VALUES_MAX = 4096 };

static float value_of(const void *values, enum dtype dtype, int i) {
    uint16_t half = 0;
    if (dtype == DTYPE_F32) return ((const float *)values)[i];
    memcpy(&half, (const char *)values + (size_t)i * sizeof half, sizeof half);
    return dtype == DTYPE_BF16 ? half_bf16_f32(half) : half_f16_f32(half);
}

static double deviation(const void *values, enum dtype dtype, int n) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)value_of(values, dtype, i);
    for (int i = 0; i < n; i++) squares += pow((double)value_of(values, dtype, i) - sum / n, 2);
    return sqrt(squares / n);
}

static const struct index_entry *find_probe(const struct tensor_index *index,
                                            const struct prediction_probe *probe) {
    for (int i = 0; i < PREDICTION_PROBE_NAMES && probe->name[i]; i++) {
        const struct index_entry *entry = index_find(index, probe->name[i]);
        if (entry) return entry;
    }
    return NULL;
}

static enum status detect_by_probe(struct sluice_model *m, const struct tensor_index *index,
                                   struct error *e) {
    const struct prediction_probe *probe = &m->recipe->prediction_probe;
    const struct index_entry *entry = find_probe(index, probe);
    if (!entry || entry->rank != 1 || entry->dim[0] > PROBE_VALUES_MAX) return OK;
    if (entry->dtype != DTYPE_F32 && entry->dtype != DTYPE_F16 && entry->dtype != DTYPE_BF16) return OK;
    void *values = m->sys->alloc(m->sys, LINE_HOST, entry->bytes);
    if (!values) return error_set(e, MEMORY, "no memory to detect the prediction type");
    if (source_read(&index->sources[entry->source], values, entry->bytes, entry->offset, e) == OK &&
        deviation(values, entry->dtype, entry->dim[0]) > probe->deviation)
        m->sampling.prediction = &prediction_v;
    m->sys->release(m->sys, values);
    return e->code;
}

enum status prediction_type_detect(struct sluice_model *m, struct error *e) {
    struct tensor_index *index = &m->component[recipe_slot(m->recipe, FAMILY_DENOISER)].index;
    if (m->sampling.prediction->is_flow) return OK;
    if (!m->has_schedule && detect_by_probe(m, index, e) != OK) return e->code;
    if (index->predicts_v) m->sampling.prediction = &prediction_v;
    if (sampling_detect(has_marker, index, &m->sampling, e) != OK)
        return error_where(e, "%s", index->sources[0].path);
    /* `leading` spacing is replaced for zero-SNR models: it omits the last training timestep, at which they
     * must start. */
    if (!m->has_schedule && m->sampling.noise.rescale_zero_snr != ZERO_SNR_NO)
        m->sampling.grid.spacing = SPACING_TRAILING;
    return OK;
}
