/* Interface of a compute device: operator costs, preparation, operators, memory and copies.
 *
 * A device has no information about where weights are stored (rule R8, kernels/README.md) or about the plan.
 * cost() is a pure function of the operator's shapes and types and of the thread count (rules R1, R2); run()
 * gets exactly the workspace that cost() reports and uses no other memory. */
#ifndef SLUICE_KERNELS_DEVICE_H
#define SLUICE_KERNELS_DEVICE_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

struct op;
struct op_rates;

enum { OP_PRIMITIVES_MAX = 8 };

/* Type to which large products round both operands, once, to nearest even. Sums and all other activations are
 * f32. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16, N_PRECISIONS };

/* "f32", "bf16", "f16". */
const char *precision_name(enum precision precision);

/* Memory of one operator call besides its operands. */
struct op_cost {
    uint64_t workspace_bytes; /* scratch passed to run() */
    uint64_t internal_bytes;  /* temporary allocations of a library inside run(); 0: none */
    int n_primitives;         /* library objects built once by prepare() and kept for the session */
    struct {
        uint64_t id;    /* equal ids are the same object */
        uint64_t bytes; /* memory of the object, an upper bound */
    } primitive[OP_PRIMITIVES_MAX];
};

struct device;
struct cuda_card;

/* Callback: reports the library algorithm chosen for an operator's shape, as the library names it. */
typedef void device_algorithm(void *user, const char *op, const char *shape, const char *algorithm);

/* Types that products and attention accept besides f32, per precision: the type to which they round f32
 * operands. A tensor that only products and attention read may be stored in this type without changing any
 * result. F32: no other type. */
struct operand_types {
    enum dtype in[N_PRECISIONS];
};

/* Number of rows that a forward processes at a time in wide layers (feed-forward): about `rows`, a multiple
 * of `step`. A constant of the device, independent of the plan (rule R3). rows 0: all rows at once. */
struct row_chunks {
    int32_t rows, step;
};

/* Memory and queues of a device with its own memory. Two queues run in parallel: operators in the order of
 * run(), and host-to-device copies in the order of copy(). An event marks a position in the operator queue, a
 * fence marks a position in the copy queue; 0 is before everything. Functions may be called from several
 * threads, except record_event and await_copy: only the thread that runs operators may call these. */
struct device_memory {
    /* Reserve address space, then commit pages in it (multiples of 4,096 bytes), as struct sys does on the
     * host. */
    void *(*reserve)(struct device *device, size_t bytes);
    int (*commit)(struct device *device, void *memory, size_t bytes); /* 0 or negative errno */
    void (*decommit)(struct device *device, void *memory, size_t bytes);
    void (*unreserve)(struct device *device, void *memory, size_t bytes);
    /* Returns an event after all operators queued so far. */
    uint64_t (*record_event)(struct device *device);
    /* Queues a copy that starts after the event; `from` must stay unchanged until the returned fence has
     * passed. The source range lies within one range pinned by one call, or outside all pinned ranges:
     * drivers refuse anything else. */
    uint64_t (*copy)(struct device *device, void *to, const void *from, size_t bytes, uint64_t event);
    /* Makes operators queued from now on wait for the copy. Returns the wait in seconds if it is already
     * known, else 0. */
    double (*await_copy)(struct device *device, uint64_t fence);
    /* Blocks the host until the copy has finished. */
    void (*wait_copy)(struct device *device, uint64_t fence);
    /* Blocks the host until both queues are empty. Errors are reported by the next wait() or run(). */
    void (*finish)(struct device *device);
    /* Copies within device memory; the ranges do not overlap. Called between runs; blocks until done. Errors
     * are reported as for finish(). */
    void (*move)(struct device *device, void *to, const void *from, size_t bytes);

    /* The functions below are optional (NULL: nothing to do). */

    /* Allocates the physical memory for everything that will be committed together; commit() then only maps
     * it and fails beyond it. A later call with another size grows or shrinks the allocation. Also loads the
     * code of prepared operators. Fails with MEMORY. */
    enum status (*preallocate)(struct device *device, uint64_t bytes, struct error *e);
    /* Allocate and free zeroed host memory (whole pages) that operators access in place over the bus (CUDA:
     * mapped pinned memory). alloc_mapped returns NULL when none is left. NULL functions: any host memory
     * will do. */
    void *(*alloc_mapped)(struct device *device, size_t bytes);
    void (*free_mapped)(struct device *device, void *memory, size_t bytes);
    /* Pins host memory (whole pages that are committed), so that copies from it are asynchronous and run at
     * the bus rate; copies from pageable memory block the caller. 0 or negative errno. Call unpin before
     * freeing the memory. */
    int (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory, size_t bytes);
    /* Returns how many of these bytes of host memory (mapped and pinned together) can be pinned, found by one
     * trial. NULL: all. Called between runs. */
    uint64_t (*pinnable)(struct device *device, uint64_t bytes);
    /* Blocks the host until all operators so far have finished (not copies) and returns their errors. Adds to
     * *stalled the seconds that operators waited for copies since the last call. NULL: run() is
     * synchronous. */
    enum status (*wait)(struct device *device, double *stalled, struct error *e);
    /* Device memory that this process has now, and that it could have in total, in bytes. */
    uint64_t (*used)(struct device *device);
    uint64_t (*available)(struct device *device);
    /* Measured part of used() that the driver context and libraries take, as of the last preallocate(); 0:
     * unknown. */
    uint64_t (*context)(struct device *device);
};

struct device {
    const char *name;
    int threads;                   /* number of CPU threads; 0 for a GPU */
    struct row_chunks chunks;      /* a planning device copies the value of its target */
    struct operand_types operands; /* copied likewise */
    const char
        *unsupported[N_PRECISIONS];     /* reason why a precision is not supported; NULL: it is supported */
    const struct device_memory *memory; /* NULL: the device computes in host memory */
    /* Overheads of a device with its own memory, for plans. overhead_bytes: device memory for context,
     * libraries, kernel code and allocation granularity; host_bytes: host memory of driver and libraries.
     * Constants of the build; on a real GPU overhead_bytes grows between runs if measurement finds more. */
    uint64_t overhead_bytes, host_bytes;
    uint64_t memory_bytes;        /* total device memory; 0: unknown */
    bool plan_only;               /* no real device: its properties are assumptions and run() fails */
    const struct cuda_card *card; /* card of a plan-only device; NULL: unspecified */
    char note[256];               /* one line to show to the user after opening; empty: none */
    void (*cost)(const struct device *device, const struct op *op, struct op_cost *cost);
    /* Builds library objects for the operator, so that run() allocates nothing. Ignores the operands'
     * addresses. */
    enum status (*prepare)(struct device *device, const struct op *op, struct error *e);
    /* Computes the operator, or queues it on a device with its own queues. workspace has the size that cost()
     * reports, aligned to 256. */
    enum status (*run)(struct device *device, const struct op *op, void *workspace, struct error *e);
    /* Reports every library algorithm that has run since the device was opened. NULL: no library chooses
     * algorithms. */
    void (*algorithms)(struct device *device, device_algorithm *say, void *user);
    void (*destroy)(struct device *device);
};

/* Calls device->memory->wait if the device has it. */
static inline enum status device_wait(struct device *device, double *stalled, struct error *e) {
    const struct device_memory *own = device->memory;
    return own && own->wait ? own->wait(device, stalled, e) : OK;
}

/* State of a forward pass: device, scratch memory, and the error that stops all later operators. */
struct context {
    struct device *device;
    enum precision precision;
    struct arena *scratch; /* activations of one visit; reset between visits */
    void *workspace;       /* sized for the largest operator */
    uint64_t workspace_bytes;
    struct error *error;
    double flops;         /* FLOPs since the visit began */
    double adapter_flops; /* part of flops that adapters cause */
    /* Optional; called before each operator, for progress and cancellation inside long visits. Returns false
     * to stop, with the error set. */
    bool (*tick)(void *user);
    void *tick_user;
    /* Optional; called before an operator runs with each tensor that it reads, because a streamed weight may
     * not have arrived yet. Returns false to stop, with the error set. */
    bool (*await)(void *user, const struct tensor *tensor);
    void *await_user;
};

/* Allocates a tensor in the visit's scratch. On failure sets the context's error; the tensor then has no
 * data. */
struct tensor context_tensor(struct context *x, enum dtype dtype, int rank, const int32_t *dim);
/* Allocates a tensor that only products and attention read, in the type to which they round. Rows of a type
 * other than f32 may have a gap after them. */
struct tensor context_operand(struct context *x, int rank, const int32_t *dim);
/* Returns the f32 tensor in which an operand's values are computed before rounding: the operand itself if it
 * is f32, else a new tensor of its shape. */
struct tensor context_unrounded(struct context *x, struct tensor operand);

#endif
