/* What a device must provide: a cost table, preparation, and operators.
 *
 * A device never learns where weights rest (R8) nor what the plan is. cost() is a pure function of the
 * operator's shapes, types and the session's thread count (R1, R2); what it says is what run() is given and
 * all it may use. */
#ifndef SLUICE_KERNELS_DEVICE_H
#define SLUICE_KERNELS_DEVICE_H

#include "engine/base/arena.h"
#include "engine/base/error.h"
#include "engine/base/sys.h"
#include "engine/base/tensor.h"

struct op;
struct op_rates;

enum { OP_PRIMITIVES_MAX = 8 };

/* What the large products round both operands to, once each, to nearest even. Sums and everything between
 * products are f32 in any. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_F16, N_PRECISIONS };

/* "f32", "bf16", "f16". */
const char *precision_name(enum precision precision);

/* What one operator call costs besides its operands. */
struct op_cost {
    uint64_t workspace_bytes; /* scratch of ours that run() is handed */
    uint64_t hidden_bytes;    /* what a library allocates behind our back while it runs; 0 if nothing */
    int n_primitives;         /* objects a library must build once before; kept for the session */
    struct {
        uint64_t id;    /* equal number, equal object */
        uint64_t bytes; /* memory that it keeps, an upper bound */
    } primitive[OP_PRIMITIVES_MAX];
};

struct device;
struct cuda_card;

/* What a library computes an operator's shape with, in the library's words. */
typedef void device_algorithm(void *user, const char *op, const char *shape, const char *algorithm);

/* What products and attention read besides f32, in each precision: what they round f32 to anyway, so that a
 * result which only they read may be of this type and no bit that follows from it changes. F32: nothing else.
 */
struct operand_types {
    enum dtype in[N_PRECISIONS];
};

/* Rows that a forward takes at a time where they are wide, as in a feed-forward: about so many, in whole
 * steps. A constant of the device, never of the plan (R3). rows 0: all there are. */
struct row_chunks {
    int32_t rows, step;
};

/* Memory and queues of a device that does not compute in the host's memory. Two queues run beside each other:
 * operators, in the order of run(), and copies from host memory, in the order of copy(). An event is a place
 * in the first, a fence one in the second; 0 is the beginning of both, behind which nobody waits. Functions
 * may be called from several threads, but record_event and await_copy only from the one that runs
 * operators. */
struct device_memory {
    /* Address space, then pages within it (multiples of 4,096 bytes), as sys does for the host. */
    void *(*reserve)(struct device *device, size_t bytes);
    int (*commit)(struct device *device, void *memory, size_t bytes); /* 0 or negative errno */
    void (*decommit)(struct device *device, void *memory, size_t bytes);
    void (*unreserve)(struct device *device, void *memory, size_t bytes);
    /* The place behind all operators so far. */
    uint64_t (*record_event)(struct device *device);
    /* Queues a copy that begins after the event; from stays untouched until its fence has passed. What is
     * copied lies within one range that was pinned in one call, or outside of all of them: drivers refuse
     * anything else. */
    uint64_t (*copy)(struct device *device, void *to, const void *from, size_t bytes, uint64_t event);
    /* Operators from here on wait for the copy. Returns the seconds that they wait, if that is known by now.
     */
    double (*await_copy)(struct device *device, uint64_t fence);
    /* The host waits for the copy. */
    void (*wait_copy)(struct device *device, uint64_t fence);
    /* The host waits for both queues. What has failed surfaces at the next wait() or run(). */
    void (*finish)(struct device *device);
    /* Copies within the device's memory, to where it is not from. Between runs; it is over when this returns.
     * What has failed surfaces as above. */
    void (*move)(struct device *device, void *to, const void *from, size_t bytes);

    /* What follows may be NULL: then there is nothing to do. */

    /* Takes so many bytes from the machine, once, for the pages of everything that will be committed
     * together: commit only maps them. Another number gives back or takes more; nothing may be committed but
     * what fits. Also loads what operators that have been prepared load when they first run. MEMORY. */
    enum status (*provide)(struct device *device, uint64_t bytes, struct error *e);
    /* Host memory (zeroed, whole pages) that operators read and write where it lies, over the bus. NULL: any
     * will do. take gives NULL when there is none. */
    void *(*take_shared)(struct device *device, size_t bytes);
    void (*give_shared)(struct device *device, void *memory, size_t bytes);
    /* From here on copies out of this host memory (whole pages that are there) run beside everything else, at
     * the bus's rate; out of any other the caller waits. 0 or negative errno. Whoever gives the memory back
     * unpins it first. */
    int (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory, size_t bytes);
    /* Of so many bytes of host memory, shared and pinned, how many can be taken together; as tried, once.
     * NULL: all. Between runs. */
    uint64_t (*pinnable)(struct device *device, uint64_t bytes);
    /* The host waits for all operators so far, not for copies. *stalled grows by the seconds that operators
     * have waited for copies since the last time. Operators' failures surface here. NULL: run() waits. */
    enum status (*wait)(struct device *device, double *stalled, struct error *e);
    /* Bytes of the device that this process has now; that it could have, those among them. */
    uint64_t (*used)(struct device *device);
    uint64_t (*available)(struct device *device);
    /* What of used() the device takes by itself, as measured when memory was last provided; 0: not known. */
    uint64_t (*context)(struct device *device);
};

struct device {
    const char *name;
    int threads; /* the session's, where the device computes with the host's processors; else 0 */
    struct row_chunks chunks;           /* whoever stands in for another device has that one's */
    struct operand_types operands;      /* likewise */
    const char *lacks[N_PRECISIONS];    /* why it cannot compute in this precision; NULL: it can */
    const struct device_memory *memory; /* NULL: everything lies in the host's memory */
    /* Of a device with memory of its own, for plans: what it takes there by itself (context, libraries,
     * kernels, whole granules), and what its libraries take of the host's. Constants of the build; of a
     * device that is there the first grows where it has turned out to be more, between runs. */
    uint64_t own_bytes, host_bytes;
    uint64_t memory_bytes;        /* all that it has; 0: not known */
    bool planned;                 /* there is none: what is said about it is assumed, and run() only fails */
    const struct cuda_card *card; /* which one is planned for; NULL: none that is known */
    char note[256];               /* what whoever opened it should be told, a line; empty: nothing */
    void (*cost)(const struct device *device, const struct op *op, struct op_cost *cost);
    /* Builds what the operator needs, so that run() allocates nothing. Operands' addresses are not looked at.
     */
    enum status (*prepare)(struct device *device, const struct op *op, struct error *e);
    /* Computes. workspace has the bytes that cost() said, aligned to 256. */
    enum status (*run)(struct device *device, const struct op *op, void *workspace, struct error *e);
    /* Says every algorithm that has run since the device was opened. NULL: it leaves no choice to a library.
     */
    void (*algorithms)(struct device *device, device_algorithm *say, void *user);
    void (*destroy)(struct device *device);
};

/* The host waits for operators so far, if it must: see wait. */
static inline enum status device_wait(struct device *device, double *stalled, struct error *e) {
    const struct device_memory *own = device->memory;
    return own && own->wait ? own->wait(device, stalled, e) : OK;
}

/* What a forward computes with: a device, scratch memory, and the error that stops everything after it. */
struct context {
    struct device *device;
    enum precision precision;
    struct arena *scratch; /* activations of one visit; reset between visits */
    void *workspace;       /* of the largest operator */
    uint64_t workspace_bytes;
    struct error *error;
    double flops;         /* done since the visit began */
    double adapter_flops; /* of those, what adapters of weights bring */
    /* Called between operators with the work done so far in this visit: progress inside long visits, and
     * cancelling them. Returns false to stop (the error is then set). May be NULL. */
    bool (*tick)(void *user);
    void *tick_user;
    /* Called with each tensor that an operator reads, before it runs: a weight may be on its way still.
     * Returns false to stop (the error is then set). May be NULL. */
    bool (*await)(void *user, const struct tensor *tensor);
    void *await_user;
};

/* A tensor in the visit's scratch. On failure the context's error is set and the tensor has no data. */
struct tensor context_tensor(struct context *x, enum dtype dtype, int rank, const int32_t *dim);
/* The same for what only products and attention read: of the type that they read there. Rows of another type
 * than f32 may have a gap behind them. */
struct tensor context_operand(struct context *x, int rank, const int32_t *dim);
/* Where values are computed in f32 that become such an operand: in place, or in a tensor of its size. */
struct tensor context_unrounded(struct context *x, struct tensor operand);

#endif
