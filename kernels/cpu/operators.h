/* What the CPU's operator files share: the device, and one row of functions per operator.
 *
 * A workspace is laid out by a struct of offsets which cost() and run() both compute from the operator alone,
 * so they cannot disagree. oneDNN's scratch always comes last: run() then needs to know where it starts, not
 * how long it is. */
#ifndef SLUICE_CPU_OPERATORS_H
#define SLUICE_CPU_OPERATORS_H

#include "engine/base/team.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops.h"

#include <stdatomic.h>

struct cpu {
    struct device device; /* first: a device is a cpu */
    struct sys *sys;
    int threads; /* the team's members */
    struct team *team;
    struct onednn *onednn;
};

/* cost adds to *cost, which starts as zero; prepare may be NULL (nothing to build); run cannot fail without
 * oneDNN. */
struct cpu_operator {
    void (*cost)(const struct cpu *cpu, const struct op *op, struct op_cost *cost);
    enum status (*prepare)(struct cpu *cpu, const struct op *op, struct error *e);
    enum status (*run)(struct cpu *cpu, const struct op *op, char *workspace, struct error *e);
};

extern const struct cpu_operator cpu_linear, cpu_linear_few, cpu_attention, cpu_relative_bias, cpu_conv2d;
extern const struct cpu_operator cpu_rms_norm, cpu_layer_norm, cpu_group_statistics, cpu_group_norm;
extern const struct cpu_operator cpu_rope_table, cpu_rope, cpu_timestep;
extern const struct cpu_operator cpu_glu, cpu_add, cpu_copy, cpu_broadcast_row;
extern const struct cpu_operator cpu_patchify, cpu_unpatchify, cpu_latent_to_image, cpu_image_to_rgb;
extern const struct cpu_operator cpu_mean_down, cpu_repeat_up;

/* Adds a primitive to an operator's cost. M or Y of 0: nothing. */
void cost_add_primitive(const struct cpu *cpu, const struct onednn_key *key, struct op_cost *cost);
/* The scratch of whichever of these primitives needs the most. */
uint64_t scratch_bytes(const struct cpu *cpu, const struct onednn_key *keys, int n);
/* How many members of the team may come to work of n items: so many have memory of their own. */
int cpu_members(const struct cpu *cpu, int64_t n);

/* Takes bytes of a workspace that so far has *used; everything starts at a multiple of 256. */
static inline uint64_t workspace_take(uint64_t *used, uint64_t bytes) {
    uint64_t offset = *used;
    *used += align_up(bytes, ARENA_ALIGN);
    return offset;
}

/* What members of the team report to whoever called it: the first error of any of them. */
struct team_error {
    atomic_flag taken;
    struct error *e;
};

static inline void team_error_report(struct team_error *shared, const struct error *own) {
    if (!atomic_flag_test_and_set(&shared->taken)) *shared->e = *own;
}

/* Row i of a tensor, counting rows over all outer dimensions. */
static inline float *tensor_row(const struct tensor *t, int64_t i) {
    return (float *)((char *)t->data + i * t->row_bytes);
}

/* A run of c values over its root mean square, times a factor each; to may be from. */
void rms_norm_run(float *to, const float *from, const float *factor, float eps, int64_t c);

/* A group norm with given statistics, spread to one mean, factor and bias a channel in the workspace. */
struct channel_norm {
    const float *mean, *factor, *bias;
};

uint64_t channel_norm_bytes(int64_t channels);
struct channel_norm channel_norm(const struct group_norm *norm, int64_t channels, char *workspace);
/* One pixel; to may be from. */
void channel_norm_apply(const struct channel_norm *norm, float *to, const float *from, int64_t channels);

#endif
