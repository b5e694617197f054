/* The dry device runs the families' forwards without hardware and computes nothing. It adds up memory, FLOPs
 * and bytes from the costs of a target device. The planner gets all sizes from the dry device. */
#ifndef SLUICE_KERNELS_DRY_H
#define SLUICE_KERNELS_DRY_H

#include "kernels/device.h"

struct dry {
    struct device device;
    struct sys *sys;
    struct device *target;        /* target device, whose operator costs are counted; borrowed */
    bool prepare;                 /* true: also call the target device's prepare for each operator */
    const struct op_rates *rates; /* rates to estimate seconds from; NULL: seconds stays 0 */
    double seconds;               /* estimated seconds of all calls so far; callers may reset this field */
    const struct arena *pictures; /* arena whose bytes are counted separately; NULL: none */
    uint64_t picture_bytes; /* bytes read and written in the arena `pictures`; callers may reset this field */
    uint64_t workspace_bytes;  /* largest operator workspace so far, in bytes; callers may reset this field */
    uint64_t internal_bytes;   /* most bytes that a library allocates during one operator so far; callers may
                                  reset this field */
    uint64_t primitives_bytes; /* bytes of all distinct library primitives counted so far */
    uint64_t *primitives;      /* hash set of primitive ids: open addressing, 0 marks an unused entry */
    int n_primitives, capacity;
};

/* Initialises a dry device in place. target: the device whose costs are used, borrowed. */
void dry_init(struct dry *dry, struct sys *sys, struct device *target, bool prepare);
void dry_destroy(struct dry *dry);

#endif
