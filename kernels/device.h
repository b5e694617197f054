/* Interface of a compute device: operator costs, preparation, operators, memory and copies.
 *
 * A device gets addresses only: no plan, and no information whether a weight is resident or in the ring.
 * cost() is a pure function of the operator's shapes and types and of the thread count. run() uses exactly
 * the workspace that cost() reports and no other memory. */
#ifndef SLUICE_KERNELS_DEVICE_H
#define SLUICE_KERNELS_DEVICE_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

struct op;

enum { OP_PRIMITIVES_MAX = 8 };

/* Type to which large products round both operands, to nearest even. Sums and other activations are f32.
 * INT8: products rotate the rows of both operands and quantise them to 8 bits (ops.h). Their sums are
 * exact integers. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16, PRECISION_INT8, N_PRECISIONS };

/* Returns "f32", "bf16", "f16" or "int8". */
const char *precision_name(enum precision precision);
/* Finds a precision by name; N_PRECISIONS if unknown. */
enum precision precision_named(const char *name);

/* Memory that one operator call needs besides its operands, in bytes. */
struct op_cost {
    uint64_t workspace_bytes; /* bytes of workspace passed to run() */
    uint64_t internal_bytes;  /* bytes that a library (oneDNN, cuBLASLt) allocates temporarily inside run() */
    int n_primitives;         /* number of library primitives that prepare() builds once */
    struct {
        uint64_t id;    /* ids of the primitives; operators with equal ids share one primitive */
        uint64_t bytes; /* upper bound of the primitive's memory in bytes */
    } primitive[OP_PRIMITIVES_MAX];
};

struct device;
struct cuda_card;

/* Callback: reports the library algorithm chosen for an operator's shape, as the library names it. */
typedef void device_algorithm(void *user, const char *op, const char *shape, const char *algorithm);

/* Types besides f32 in which products and attention accept operands, per precision. Products and attention
 * round f32 operands to this type. So a tensor that only products and attention read can be stored in this
 * type without changing results. F32: only f32 operands. */
struct operand_types {
    enum dtype in[N_PRECISIONS];
};

/* Row chunks of wide layers (feed-forward): a forward processes about `rows` rows at a time, a multiple of
 * `step`. A constant of the device, independent of the plan, so results do not depend on the plan. rows 0:
 * all rows at once. */
struct row_chunks {
    int32_t rows, step;
};

/* Memory and queues of a device with its own memory. Two queues run in parallel: operators in the order of
 * run() calls, and host-to-device copies in the order of copy() calls. An event marks a position in the
 * operator queue, a fence a position in the copy queue; event or fence 0 precedes all work. Any thread may
 * call these functions, except record_event and await_copy: only the thread that runs operators. */
struct device_memory {
    /* Reserve address space, then commit pages in it, like the functions of struct sys. Sizes are multiples
     * of 4,096 bytes. */
    void *(*reserve)(struct device *device, size_t bytes);
    int (*commit)(struct device *device, void *memory,
                  size_t bytes); /* commits pages; returns 0 or a negative errno */
    void (*decommit)(struct device *device, void *memory, size_t bytes);
    void (*unreserve)(struct device *device, void *memory, size_t bytes);
    /* Records an event, which passes when all operators queued so far have finished. Returns its number. */
    uint64_t (*record_event)(struct device *device);
    /* Queues a host-to-device copy that starts after the event. The source must stay unchanged until the
     * returned fence has passed. The source lies within one range pinned by one call, or outside all pinned
     * ranges: drivers refuse anything else. */
    uint64_t (*copy)(struct device *device, void *to, const void *from, size_t bytes, uint64_t event);
    /* Makes operators queued from now on wait for the copy before this fence. Returns the seconds of waiting
     * if known, else 0. */
    double (*await_copy)(struct device *device, uint64_t fence);
    /* Blocks the host until the copy before this fence has finished. */
    void (*wait_copy)(struct device *device, uint64_t fence);
    /* Blocks the host until both queues are empty. The next wait() or run() reports errors. */
    void (*finish)(struct device *device);
    /* Copies within device memory between runs, without overlap. Blocks; the next wait() or run() reports
     * errors. */
    void (*move)(struct device *device, void *to, const void *from, size_t bytes);

    /* Optional functions follow; a NULL function means that the device needs no such step. */

    /* Allocates the physical memory of a whole run; commit() then only maps this memory, and fails when all
     * of this memory is mapped. A later call with another size grows or shrinks the allocation. Also loads
     * the code of prepared operators. Fails with MEMORY. */
    enum status (*preallocate)(struct device *device, uint64_t bytes, struct error *e);
    /* Allocate and free zeroed host memory (whole pages) that operators read in place over the bus (CUDA:
     * mapped pinned memory). alloc_mapped returns NULL when no memory is left. NULL functions: operators can
     * read any host memory. */
    void *(*alloc_mapped)(struct device *device, size_t bytes);
    void (*free_mapped)(struct device *device, void *memory, size_t bytes);
    /* Pins committed host pages, so that copies from pinned pages are asynchronous and run at the bus rate;
     * copies from pageable memory block the caller. Returns 0 or a negative errno. unpin must precede freeing
     * the memory. */
    int (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory, size_t bytes);
    /* Returns how many of `bytes` bytes of host memory (mapped and pinned together) can be pinned, found by
     * one trial. NULL function: no limit. Called between runs. */
    uint64_t (*pinnable)(struct device *device, uint64_t bytes);
    /* Blocks the host until all queued operators have finished (not copies) and returns their errors. Adds to
     * *stalled the seconds that operators waited for copies since the last call. NULL function: run() is
     * synchronous. */
    enum status (*wait)(struct device *device, double *stalled, struct error *e);
    /* Reports device memory in bytes. used: by this process now; available: what this process could have in
     * total. */
    uint64_t (*used)(struct device *device);
    uint64_t (*available)(struct device *device);
    /* Returns the part of used() in bytes that driver context and libraries take, measured at preallocate();
     * 0: unknown. */
    uint64_t (*context)(struct device *device);
};

struct device {
    const char *name;
    int threads;                   /* number of CPU threads that compute; 0 for a GPU */
    struct row_chunks chunks;      /* row chunks of wide layers; a planning device has its target's */
    struct operand_types operands; /* operand types; a planning device has those of its target device */
    const char *unsupported[N_PRECISIONS]; /* reason why a precision is not supported, or NULL */
    const struct device_memory *memory;    /* memory and queues; NULL: the device computes in host memory */
    /* Memory overheads in bytes, counted by plans. overhead_bytes: device memory for context, libraries,
     * kernel code and allocation granularity. host_bytes: host memory of driver and libraries. Constants of
     * the build; on a real GPU overhead_bytes grows between runs if a measurement exceeds it. */
    uint64_t overhead_bytes, host_bytes;
    uint64_t memory_bytes; /* device memory in bytes; 0: unknown */
    bool plan_only; /* true: device for planning without hardware; its properties are assumed and its run()
                       fails */
    const struct cuda_card *card; /* GPU model that a planning device assumes; NULL: unspecified */
    char note[512];               /* one line to show the user after opening the device; empty: none */
    void (*cost)(const struct device *device, const struct op *op, struct op_cost *cost);
    /* Builds library objects for the operator, so that run() allocates nothing. Ignores operand addresses. */
    enum status (*prepare)(struct device *device, const struct op *op, struct error *e);
    /* Computes the operator, or queues it if the device has queues. workspace has the size that cost()
     * reports, aligned to 256 bytes. */
    enum status (*run)(struct device *device, const struct op *op, void *workspace, struct error *e);
    /* Reports every library algorithm that has run since opening. NULL function: no library chooses
     * algorithms. */
    void (*algorithms)(struct device *device, device_algorithm *say, void *user);
    void (*destroy)(struct device *device);
};

/* Returns the device's most exact precision. VAEs always use it; text encoders and denoisers use it by
 * default (UNets: family_precision). In int8 mode text encoders and products without int8 use it. */
static inline enum precision device_default_precision(const struct device *device) {
    return device->unsupported[PRECISION_F32] ? PRECISION_BF16 : PRECISION_F32;
}

/* Waits for the device's queued operators and returns their errors; OK if the device has no queues. */
static inline enum status device_wait(struct device *device, double *stalled, struct error *e) {
    const struct device_memory *own = device->memory;
    return own && own->wait ? own->wait(device, stalled, e) : OK;
}

/* State of a forward pass: device, scratch memory, and the error that stops all later operators. */
struct context {
    struct device *device;
    enum precision precision;
    struct arena *scratch; /* activations of one visit; reset between visits */
    void *workspace;       /* workspace for operators; as large as the operator that needs most */
    uint64_t workspace_bytes;
    struct error *error;
    double flops;         /* FLOPs computed since the visit began */
    double adapter_flops; /* FLOPs of adapters since the visit began, included in flops */
    /* Optional callback before each operator, for progress and cancellation inside long visits. Returns
     * false, with the error set, to stop the visit. */
    bool (*tick)(void *user);
    void *tick_user;
    /* Optional callback for each tensor that an operator is about to read, so that it can wait for streamed
     * weights. Returns false, with the error set, to stop the visit. */
    bool (*await)(void *user, const struct tensor *tensor);
    void *await_user;
};

/* Allocates a tensor in the visit's scratch memory. On failure sets the context's error and returns a tensor
 * without data. */
struct tensor context_tensor(struct context *x, enum dtype dtype, int rank, const int32_t *dim);
/* Allocates a tensor that only products and attention read, in the type to which products and attention round
 * operands. Rows of 2-byte types may be padded to multiples of 16 bytes. */
struct tensor context_operand(struct context *x, int rank, const int32_t *dim);
/* Returns the f32 tensor in which an operand is computed before rounding: the operand if its type is f32,
 * else a new tensor of the same shape. */
struct tensor context_unrounded(struct context *x, struct tensor operand);

#endif
