/* The dry device: computes nothing and needs no hardware. It runs the same forwards with another device's
 * costs and adds up what they need. The planner gets all sizes from it. */
#ifndef SLUICE_KERNELS_DRY_H
#define SLUICE_KERNELS_DRY_H

#include "kernels/device.h"

struct dry {
    struct device device;
    struct sys *sys;
    struct device *target;
    bool prepare;                 /* also call the target's prepare for each operator */
    const struct op_rates *rates; /* NULL: seconds stays 0 */
    double seconds;               /* of all calls at these rates; the caller may reset it */
    const struct arena *pictures; /* arena counted separately; NULL: picture_bytes stays 0 */
    uint64_t picture_bytes;       /* bytes read and written in that arena; the caller may reset it */
    uint64_t workspace_bytes;     /* largest so far; the caller may reset it */
    uint64_t internal_bytes;      /* likewise */
    uint64_t primitives_bytes;    /* of all distinct primitives so far */
    uint64_t *primitives;         /* hash set of ids, open addressing, 0: free */
    int n_primitives, capacity;
};

/* Initialises a dry device in place. target is borrowed. */
void dry_init(struct dry *dry, struct sys *sys, struct device *target, bool prepare);
void dry_destroy(struct dry *dry);

#endif
