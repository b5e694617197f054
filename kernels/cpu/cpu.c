/* The CPU device (cpu.h): its table of operator functions, and the memory check before each operator. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/operators.h"

static const struct cpu_operator *const operators[N_OP_KINDS] = {
    [OP_LINEAR] = &cpu_linear,
    [OP_LINEAR_FEW] = &cpu_linear_few,
    [OP_ATTENTION] = &cpu_attention,
    [OP_RELATIVE_BIAS] = &cpu_relative_bias,
    [OP_RMS_NORM] = &cpu_rms_norm,
    [OP_LAYER_NORM] = &cpu_layer_norm,
    [OP_GROUP_STATISTICS] = &cpu_group_statistics,
    [OP_GROUP_NORM] = &cpu_group_norm,
    [OP_GROUP_RANGE] = &cpu_group_range,
    [OP_ROPE_TABLE] = &cpu_rope_table,
    [OP_ROPE_AXIS] = &cpu_rope_axis,
    [OP_ROPE] = &cpu_rope,
    [OP_GLU] = &cpu_glu,
    [OP_ADD] = &cpu_add,
    [OP_COPY] = &cpu_copy,
    [OP_ADD_POSITIONS] = &cpu_add_positions,
    [OP_BROADCAST_ROW] = &cpu_broadcast_row,
    [OP_PATCHIFY] = &cpu_patchify,
    [OP_UNPATCHIFY] = &cpu_unpatchify,
    [OP_TIMESTEP] = &cpu_timestep,
    [OP_CONV2D] = &cpu_conv2d,
    [OP_MEAN_DOWN] = &cpu_mean_down,
    [OP_REPEAT_UP] = &cpu_repeat_up,
    [OP_LATENT_TO_IMAGE] = &cpu_latent_to_image,
    [OP_IMAGE_TO_RGB] = &cpu_image_to_rgb,
    [OP_MAP] = &cpu_map,
    [OP_SNAKE] = &cpu_snake,
    [OP_SINC_UP] = &cpu_sinc_up,
};

static const struct cpu_operator *operator_of(const struct op *op) {
    if (op->kind == OP_LINEAR && op->precision == PRECISION_INT8) return &cpu_linear_int8;
    return operators[op->kind];
}

static void device_cost(const struct device *device, const struct op *op, struct op_cost *cost) {
    const struct cpu *cpu = (const struct cpu *)device;
    *cost = (struct op_cost){0};
    if (operator_of(op)->cost) operator_of(op)->cost(cpu, op, cost);
}

static enum status device_prepare(struct device *device, const struct op *op, struct error *e) {
    struct cpu *cpu = (struct cpu *)device;
    if (thread_pool_start(cpu->thread_pool, e) != OK || !operator_of(op)->prepare) return e->code;
    return operator_of(op)->prepare(cpu, op, e);
}

/* Checks that memory is free before oneDNN is called: without memory oneDNN terminates the program (a C++
 * exception through C code, or a null pointer). The check costs 3 us per operator, or 5 to 26 us while
 * another thread touches new pages (measured: 1 to 200 MiB, two shared cores, Linux 6). */
static enum status device_run(struct device *device, const struct op *op, void *workspace, struct error *e) {
    struct cpu *cpu = (struct cpu *)device;
    struct op_cost cost;
    device_cost(device, op, &cost);
    if (!cpu->sys->can_allocate(cpu->sys, cost.internal_bytes + ONEDNN_MARGIN))
        return error_set(e, MEMORY, "no memory for library buffers of operator %s: %llu bytes",
                         op_name(op->kind), (unsigned long long)cost.internal_bytes);
    if (operator_of(op)->run) return operator_of(op)->run(cpu, op, workspace, e);
    thread_pool_run(cpu->thread_pool, tensor_rows(&op->out), operator_of(op)->rows, op);
    return OK;
}

static void device_destroy(struct device *device) {
    struct cpu *cpu = (struct cpu *)device;
    thread_pool_close(cpu->thread_pool);
    onednn_close(cpu->onednn);
    cpu->sys->release(cpu->sys, cpu);
}

void cost_add_primitive(const struct cpu *cpu, const struct onednn_key *key, struct op_cost *cost) {
    if (!key->number[0]) return;
    struct onednn_facts facts = onednn_facts(cpu->onednn, key);
    int i = cost->n_primitives++;
    cost->primitive[i].id = onednn_signature(key);
    cost->primitive[i].bytes = onednn_primitive_bytes(key);
    if (facts.internal_bytes > cost->internal_bytes) cost->internal_bytes = facts.internal_bytes;
}

uint64_t scratch_bytes(const struct cpu *cpu, const struct onednn_key *keys, int n) {
    uint64_t most = 0;
    for (int i = 0; i < n; i++) {
        if (!keys[i].number[0]) continue;
        uint64_t bytes = onednn_facts(cpu->onednn, &keys[i]).scratch_bytes;
        most = most > bytes ? most : bytes;
    }
    return most;
}

int cpu_members(const struct cpu *cpu, int64_t n) {
    return n < cpu->threads ? (int)n : cpu->threads;
}

/* Wide layers run in chunks of 512 rows, so that their activations stay small. Multiplying a chunk still
 * takes longer than converting the weights. */
static const struct row_chunks row_chunks = {512, 1};

struct device *cpu_open(struct sys *sys, int threads, struct error *e) {
    if (threads < 1 || threads > CPU_THREADS_MAX) {
        error_set(e, USAGE, "the number of threads is out of range" FOUND "%d" EXPECTED "1 to %d", threads,
                  CPU_THREADS_MAX);
        return NULL;
    }
    struct cpu *cpu = sys_new(sys, 1, sizeof *cpu, "the CPU device", e);
    if (!cpu) return NULL;
    *cpu = (struct cpu){.device = {.name = "cpu",
                                   .threads = threads,
                                   .chunks = row_chunks,
                                   .cost = device_cost,
                                   .prepare = device_prepare,
                                   .run = device_run,
                                   .destroy = device_destroy},
                        .sys = sys,
                        .threads = threads};
    cpu->device.unsupported[PRECISION_F16] = "the CPU device has no f16 arithmetic";
    if (!onednn_has_bf16())
        cpu->device.unsupported[PRECISION_BF16] = "this CPU has no bf16 instructions (AVX512_BF16)";
    if (!onednn_has_int8())
        cpu->device.unsupported[PRECISION_INT8] =
            "this CPU has no int8 product instructions (AVX512_VNNI, AVX_VNNI)";
    cpu->thread_pool = thread_pool_open(sys, threads, e);
    cpu->onednn = cpu->thread_pool ? onednn_open(sys, threads, e) : NULL;
    if (cpu->onednn) return &cpu->device;
    device_destroy(&cpu->device);
    return NULL;
}
