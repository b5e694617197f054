/* Shared by the CPU's operator files: the device struct and a table row of functions per operator.
 *
 * A workspace is described by a struct of offsets that cost() and run() both compute from the operator alone,
 * so cost() and run() agree. oneDNN's scratch comes last, so run() needs only its start. */
#ifndef SLUICE_CPU_OPERATORS_H
#define SLUICE_CPU_OPERATORS_H

#include "engine/base/thread_pool.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops.h"

#include <stdatomic.h>

struct cpu {
    struct device device; /* first member: struct device casts to struct cpu */
    struct sys *sys;
    int threads; /* threads of the pool, the calling thread included */
    struct thread_pool *thread_pool;
    struct onednn *onednn;
};

/* Functions of one operator. cost adds to *cost, which starts at zero; NULL: no workspace. prepare builds
 * library objects; NULL: none to build. run fails only in operators that use oneDNN; NULL: the thread pool
 * calls `rows` on all rows of `out`, with the struct op as context and without workspace. */
struct cpu_operator {
    void (*cost)(const struct cpu *cpu, const struct op *op, struct op_cost *cost);
    enum status (*prepare)(struct cpu *cpu, const struct op *op, struct error *e);
    enum status (*run)(struct cpu *cpu, const struct op *op, char *workspace, struct error *e);
    thread_pool_work *rows;
};

extern const struct cpu_operator cpu_linear, cpu_linear_int8, cpu_linear_few, cpu_attention,
    cpu_relative_bias, cpu_conv2d;
extern const struct cpu_operator cpu_rms_norm, cpu_layer_norm, cpu_group_statistics, cpu_group_norm,
    cpu_group_range;
extern const struct cpu_operator cpu_rope_table, cpu_rope_axis, cpu_rope, cpu_timestep;
extern const struct cpu_operator cpu_glu, cpu_add, cpu_copy, cpu_broadcast_row, cpu_add_positions;
extern const struct cpu_operator cpu_patchify, cpu_unpatchify, cpu_latent_to_image, cpu_image_to_rgb;
extern const struct cpu_operator cpu_mean_down, cpu_repeat_up;
extern const struct cpu_operator cpu_map, cpu_snake, cpu_sinc_up;

/* Adds a oneDNN primitive to an operator's cost; does nothing for a key with M or Y 0. */
void cost_add_primitive(const struct cpu *cpu, const struct onednn_key *key, struct op_cost *cost);
/* Returns the largest oneDNN scratch size of these primitives, in bytes. */
uint64_t scratch_bytes(const struct cpu *cpu, const struct onednn_key *keys, int n);
/* Returns how many threads work on n items, each with its own part of the workspace. */
int cpu_members(const struct cpu *cpu, int64_t n);

/* Reserves bytes at the end of a workspace that has *used bytes so far. Returns the offset, a multiple of
 * 256. */
static inline uint64_t workspace_take(uint64_t *used, uint64_t bytes) {
    uint64_t offset = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return offset;
}

/* An error that several threads may report; the first report is kept. */
struct thread_pool_error {
    atomic_flag taken;
    struct error *e;
};

static inline void thread_pool_error_report(struct thread_pool_error *shared, const struct error *own) {
    if (!atomic_flag_test_and_set(&shared->taken)) *shared->e = *own;
}

/* Returns row i of a tensor; rows are counted over all outer dimensions. */
static inline float *tensor_row(const struct tensor *t, int64_t i) {
    return (float *)((char *)t->data + i * t->row_bytes);
}

/* Applies an RMS norm to c values, with one factor per value (NULL: 1); `to` may alias `from`. */
void rms_norm_run(float *to, const float *from, const float *factor, float eps, int64_t c);

/* Per-channel vectors of a group norm in the workspace: mean, factor and bias. */
struct channel_norm {
    const float *mean, *factor, *bias;
};

/* Returns the workspace bytes of a group norm's per-channel vectors (struct channel_norm). */
uint64_t channel_norm_bytes(int64_t channels);
struct channel_norm channel_norm(const struct group_norm *norm, int64_t channels, char *workspace);
/* Applies a group norm to one pixel; `to` may alias `from`. */
void channel_norm_apply(const struct channel_norm *norm, float *to, const float *from, int64_t channels);

#endif
