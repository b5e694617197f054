/* LoRA-style adapters, packed before a block's base weights: results, order of the pairs, hashes, rejected
 * shapes. test_lora_streaming.c tests sessions: bytes read, residents, bits under budgets. */
#include "engine/run/adapt.h"
#include "test/lib/synthetic_run.h"

enum { RANK = 3, PAIRS_MAX = 64, VECTORS_MAX = 32, NORM = 0, UP = 1, BIAS = 2, DOWN = 3 };

/* An adapter file for all stages of the synthetic pipeline, with LoRA pairs for weights and replacements for
 * vectors. */
static struct adapter {
    struct synthetic_files files;
    /* in-memory copy of the second adapter file, which holds derived LoRA factors */
    struct byte_source memory;
    struct adapted_weight pairs[SYNTHETIC_STAGES][PAIRS_MAX];
    struct replaced_vector vectors[SYNTHETIC_STAGES][VECTORS_MAX];
    struct adaptation all[SYNTHETIC_STAGES];
} adapter;

static struct component adapted[SYNTHETIC_STAGES];

static void add_tensor(struct synthetic_files *f, const char *kind, int s, int b, int32_t rows,
                       int32_t columns) {
    char name[SYNTHETIC_NAME];
    int32_t dim[] = {rows, columns};
    snprintf(name, sizeof name, "%s.%d.%d", kind, s, b);
    synthetic_files_add(f, name, b % 2 ? DTYPE_F32 : DTYPE_BF16, columns ? 2 : 1, dim);
}

static const struct tensor *shape_of(const struct block *block, int weight) {
    for (int i = 0; i < block->n_tensors; i++)
        if (block->tensors[i].offset == block->kind->weights[weight].offset) return &block->tensors[i].shape;
    return NULL;
}

static bool has_products(const struct block *block) {
    return block->kind->n_weights == 4;
}

static void write_files(struct adapter *a, uint64_t seed) {
    struct error e = {0};
    synthetic_files_begin(&a->files, &fault_sys.sys, seed);
    for (int i = 0; i < SYNTHETIC_STAGES * SYNTHETIC_BLOCKS; i++) {
        int s = i / SYNTHETIC_BLOCKS, b = i % SYNTHETIC_BLOCKS;
        const struct block *block = &synthetic.components[s].blocks[b];
        if (b >= synthetic.components[s].n_blocks || !has_products(block)) continue;
        const struct tensor *up = shape_of(block, UP), *down = shape_of(block, DOWN);
        add_tensor(&a->files, "u.down", s, b, RANK, up->dim[1]);
        add_tensor(&a->files, "u.up", s, b, up->dim[0], RANK);
        add_tensor(&a->files, "d.down", s, b, RANK + 2, down->dim[1]);
        add_tensor(&a->files, "d.up", s, b, down->dim[0], RANK + 2);
        add_tensor(&a->files, "bias", s, b, up->dim[0], 0);
        add_tensor(&a->files, "norm", s, b, up->dim[1], 0);
    }
    synthetic_files_end(&a->files);
    assert_ok(&e);
    a->memory = source_of_memory(&fault_sys.sys, "derived", a->files.contents[1], a->files.bytes[1]);
}

static struct factor factor_of(const struct adapter *a, const char *kind, int s, int b) {
    char name[SYNTHETIC_NAME];
    snprintf(name, sizeof name, "%s.%d.%d", kind, s, b);
    const struct index_entry *entry = index_find(&a->files.index, name);
    assert_non_null(entry);
    struct factor f = {.name = entry->name,
                       .source = entry->source ? &a->memory : &a->files.index.sources[0],
                       .offset = entry->offset,
                       .dtype = entry->dtype,
                       .rank = entry->rank};
    memcpy(f.dim, entry->dim, sizeof f.dim);
    return f;
}

/* Returns a LoRA factor of two row ranges: the tensor's last rows, then its first rows; one row in the middle
 * is left out. */
static struct factor two_parts(struct factor f) {
    f.n_parts = 2;
    f.part[0].first = f.dim[0] / 2 + 1;
    f.part[0].rows = f.dim[0] - f.part[0].first;
    f.part[1].rows = f.dim[0] / 2;
    return f;
}

/* Attaches two LoRA pairs with a shared `down` factor to the weight UP, one pair to DOWN, and replaced
 * vectors to BIAS and NORM. */
static void attach(struct adapter *a, int s, int b) {
    struct adaptation *all = &a->all[s];
    struct adapted_weight *pair = &a->pairs[s][all->n_weights];
    struct factor down = factor_of(a, "u.down", s, b), up = factor_of(a, "u.up", s, b);
    *pair++ = (struct adapted_weight){b, UP, down, two_parts(up), 1, 0.5f};
    *pair++ = (struct adapted_weight){b, UP, down, up, 0, -0.25f};
    down = factor_of(a, "d.down", s, b), up = factor_of(a, "d.up", s, b);
    *pair++ = (struct adapted_weight){b, DOWN, down, up, 0, 1};
    all->n_weights += 3;
    if (shape_of(&synthetic.components[s].blocks[b], BIAS))
        a->vectors[s][all->n_vectors++] = (struct replaced_vector){b, BIAS, factor_of(a, "bias", s, b)};
    a->vectors[s][all->n_vectors++] = (struct replaced_vector){b, NORM, factor_of(a, "norm", s, b)};
}

/* Switches all synthetic stages to components with the adapter. */
static void use_adapter(void) {
    struct error e = {0};
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        struct component *c = &adapted[s];
        component_adapt(&synthetic.components[s], &adapter.all[s], c, &e);
        assert_ok(&e);
        synthetic.stages[s].component = c;
        for (int b = 0; b < c->n_blocks; b++) synthetic.list[s][b] = &c->blocks[b];
    }
    synthetic_measure();
}

static double value_of(const struct adapter *a, const struct factor *f, int32_t row, int32_t column) {
    int32_t columns = f->rank > 1 ? f->dim[1] : 1, element = f->dtype == DTYPE_F32 ? 4 : 2;
    for (int i = 0; i < f->n_parts; i++) {
        if (row < f->part[i].rows) {
            row += f->part[i].first;
            break;
        }
        row -= f->part[i].rows;
    }
    const unsigned char *file = a->files.contents[f->source == &a->memory];
    uint32_t bits = 0;
    float value;
    memcpy((char *)&bits + 4 - element, file + f->offset + (uint64_t)((row * columns + column) * element),
           (size_t)element);
    memcpy(&value, &bits, 4);
    return value;
}

static float *to_f32(const struct tensor *t) {
    float *values = malloc((size_t)tensor_elements(t) * sizeof *values);
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        uint32_t bits = 0;
        size_t element = t->dtype == DTYPE_F32 ? 4 : 2;
        memcpy((char *)&bits + 4 - element, (char *)t->data + (size_t)i * element, element);
        memcpy(&values[i], &bits, 4);
    }
    return values;
}

static struct tensor *weight_of(const struct block *block, int weight, void *weights) {
    return (struct tensor *)((char *)weights + block->kind->weights[weight].offset);
}

/* Values of weights with merged adapters, freed after the run. */
static float *merged_values[4096];
static int n_merged_values;

static void put_values(struct tensor *w, float *values) {
    assert_true(n_merged_values < (int)(sizeof merged_values / sizeof *merged_values));
    merged_values[n_merged_values++] = values;
    *w = tensor_make(values, DTYPE_F32, w->rank, w->dim);
}

static void merge(const struct adapter *a, const struct adapted_weight *pair, struct tensor *w) {
    float *merged = to_f32(w);
    int32_t rows = pair->up.n_parts ? pair->up.part[0].rows + pair->up.part[1].rows : pair->up.dim[0];
    for (int32_t n = 0; n < rows; n++)
        for (int32_t k = 0; k < w->dim[1]; k++) {
            double sum = 0;
            for (int32_t r = 0; r < pair->down.dim[0]; r++)
                sum += value_of(a, &pair->up, n, r) * value_of(a, &pair->down, r, k);
            merged[(pair->row + n) * w->dim[1] + k] += (float)(sum * (double)pair->scale);
        }
    put_values(w, merged);
}

static void merge_into(const struct visit *v, void *weights) {
    const struct adapter *a = &adapter;
    const struct block *block = synthetic.stages[v->stage].blocks[v->block];
    for (int i = 0; i < a->all[v->stage].n_weights; i++) {
        const struct adapted_weight *pair = &a->pairs[v->stage][i];
        if (pair->block == v->block) merge(a, pair, weight_of(block, pair->weight, weights));
    }
    for (int i = 0; i < a->all[v->stage].n_vectors; i++) {
        const struct replaced_vector *vector = &a->vectors[v->stage][i];
        if (vector->block != v->block) continue;
        struct tensor *w = weight_of(block, vector->weight, weights);
        float *values = malloc((size_t)w->dim[0] * sizeof *values);
        for (int32_t n = 0; n < w->dim[0]; n++) values[n] = (float)value_of(a, &vector->values, n, 0);
        put_values(w, values);
    }
}

static double difference(const float *a, const float *b) {
    double sum = 0, size = 0;
    for (int i = 0; i < SYNTHETIC_LANES * SYNTHETIC_ROWS * SYNTHETIC_COLUMNS; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(sum / size);
}

static void begin(void) {
    synthetic_make();
    adapter = (struct adapter){0};
    write_files(&adapter, seed_base + 100);
    for (int s = 0; s < SYNTHETIC_STAGES; s++) {
        adapter.all[s] = (struct adaptation){.weights = adapter.pairs[s], .vectors = adapter.vectors[s]};
        for (int b = 0; b < synthetic.components[s].n_blocks; b++)
            if (has_products(&synthetic.components[s].blocks[b])) attach(&adapter, s, b);
    }
}

static void end(void) {
    for (int s = 0; s < SYNTHETIC_STAGES; s++)
        if (adapted[s].family) component_destroy(&adapted[s]);
    index_destroy(&adapter.files.index);
    synthetic_files_remove(&adapter.files);
    synthetic_remove();
}

/* Checks adapters on all or some rows of a weight, two LoRA pairs on one weight, a shared `down` factor and
 * replaced vectors against merged weights. */
TEST(adapter_matches_merged_weights) {
    static float base[SYNTHETIC_LANES * SYNTHETIC_ROWS * SYNTHETIC_COLUMNS],
        merged[SYNTHETIC_LANES * SYNTHETIC_ROWS * SYNTHETIC_COLUMNS];
    begin();
    synthetic_expect(false);
    memcpy(base, synthetic.latent[1], sizeof base);
    synthetic.change_weights = merge_into;
    synthetic_expect(false);
    synthetic.change_weights = NULL;
    while (n_merged_values) free(merged_values[--n_merged_values]);
    memcpy(merged, synthetic.latent[1], sizeof merged);
    use_adapter();
    synthetic_expect(false);
    double adapter_error = difference(synthetic.latent[1][0], merged), base_error = difference(base, merged);
    printf("relative error against merged weights: %.1e; without the adapter: %.1e\n", adapter_error,
           base_error);
    assert_true(adapter_error < 2e-6 && base_error > 0.1);
    end();
}

static void check_factor(const struct adapter *a, const struct factor *f, const struct tensor *t,
                         const struct block *block, const char *packed) {
    float *values = to_f32(t);
    assert_true(t->weight_end == (uint64_t)((char *)t->data - packed) + (uint64_t)tensor_bytes(t));
    assert_true(t->weight_end <= block->adapter_bytes);
    for (int64_t i = 0; i < tensor_elements(t); i++)
        assert_true((double)values[i] == value_of(a, f, (int32_t)(i / t->dim[1]), (int32_t)(i % t->dim[1])));
    free(values);
}

/* Checks three properties of packed LoRA pairs: their order, the byte range that an operator awaits for each
 * factor, and that a shared factor is stored once. */
TEST(packed_pairs_keep_order_and_share_factors) {
    begin();
    use_adapter();
    struct adapter *a = &adapter;
    struct reader reader = {0};
    struct error e = {0};
    const struct block *block = &adapted[0].blocks[a->pairs[0][0].block];
    char *packed = aligned_alloc(ARENA_ALIGN, block->bytes);
    void *weights = calloc(1, block_weights_bytes(block));
    reader_read(&reader, block, 0, block->bytes, packed, &e);
    assert_ok(&e);
    block_point(block, packed_contiguous(block, packed), weights);
    const struct low_rank *chain = weight_of(block, UP, weights)->adapters;
    for (int i = 0; i < 2; i++, chain = chain->next) {
        const struct adapted_weight *pair = &a->pairs[0][i];
        check_factor(a, &pair->down, &chain->down, block, packed);
        check_factor(a, &pair->up, &chain->up, block, packed);
        assert_true(chain->row == pair->row && chain->up.scale == pair->scale);
        if (!i) assert_ptr_equal(chain->down.data, chain->next->down.data);
    }
    assert_null(chain);
    assert_non_null(weight_of(block, DOWN, weights)->adapters);
    assert_null(weight_of(block, NORM, weights)->adapters);
    free(weights);
    free(packed);
    end();
}

static uint64_t adapter_hash_with(const struct adapter *a, int block) {
    struct component c;
    struct error e = {0};
    component_adapt(&synthetic.components[0], &a->all[0], &c, &e);
    assert_ok(&e);
    uint64_t hash = c.blocks[block].adapter_hash;
    component_destroy(&c);
    return hash;
}

/* Flips the highest bits of two 64-bit words: the hash of the adapter bytes must change. */
TEST(hash_detects_two_flipped_signs) {
    begin();
    struct adapter *a = &adapter;
    int derived = 0;
    for (int i = 0; i < a->all[0].n_vectors; i++) {
        const struct replaced_vector *v = &a->vectors[0][i];
        if (v->values.source != &a->memory || v->values.dim[0] < 8) continue;
        unsigned char *values = a->files.contents[1] + v->values.offset;
        uint64_t before = adapter_hash_with(a, v->block);
        for (int k = 7; k < 16; k += 8) {
            values[k] ^= 0x80;
            assert_true(adapter_hash_with(a, v->block) != before);
        }
        derived++;
    }
    assert_true(derived > 0);
    end();
}

static enum status adapt_with(struct adapted_weight pair, struct error *e) {
    struct component c;
    struct adaptation all = {.weights = &pair, .n_weights = 1};
    *e = (struct error){0};
    if (component_adapt(&synthetic.components[0], &all, &c, e) == OK) component_destroy(&c);
    return e->code;
}

static void expect(enum status status, const char *what, struct adapted_weight pair) {
    struct error e;
    char line[1200];
    enum status found = adapt_with(pair, &e);
    error_line(&e, line, sizeof line);
    if (found != status || (status != OK && !strstr(line, what))) fail_msg("%d: %s", found, line);
}

TEST(mismatched_factors_are_rejected) {
    begin();
    const struct adapted_weight fits = adapter.pairs[0][1];
    struct adapted_weight p = fits;
    expect(OK, "", p);
    p.down.dim[1]++;
    expect(SHAPE, "expected [3, 48]", p);
    p = fits, p.up.dim[1]++;
    expect(SHAPE, "expected [40, 3]", p);
    p = fits, p.row = 1;
    expect(SHAPE, "or some of its rows", p);
    p = fits, p.down.rank = 4, p.down.dim[2] = p.down.dim[3] = 1;
    expect(OK, "", p);
    p.down.dim[2] = 2, p.down.dim[1] /= 2;
    expect(SHAPE, "expected [3, 48]", p);
    p = fits, p.down.dtype = DTYPE_I64;
    expect(UNSUPPORTED, "found I64", p);
    p = fits, p.up.n_parts = 1, p.up.part[0].first = 39, p.up.part[0].rows = 2;
    expect(SHAPE, "rows 39 to 41", p);
    p = fits, p.weight = 9;
    expect(MISSING, "does not have", p);
    p = fits, p.weight = NORM;
    expect(SHAPE, "does not fit the weight 'mix.0.norm'", p);
    end();
}

TEST(failed_allocation_leaks_nothing) {
    begin();
    int64_t before = fault_sys_live_bytes(&fault_sys);
    for (long k = 1;; k++) {
        struct error e = {0};
        memory_checker_restart();
        fault_sys_fail(&fault_sys, CALL_ALLOC, k, 0);
        if (component_adapt(&synthetic.components[1], &adapter.all[1], &adapted[1], &e) == OK) {
            assert_true(k > 10);
            break;
        }
        assert_int_equal(e.code, MEMORY);
        assert_int_equal(fault_sys_live_bytes(&fault_sys), before);
    }
    memory_checker_restart();
    end();
}

int main(void) {
    return run_seeded_tests();
}
