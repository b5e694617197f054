/* The dry device: touches no memory and needs no hardware. It runs the very same forwards against another
 * device's cost table and adds up what they would need. The planner has no other source of sizes. */
#ifndef SLUICE_KERNELS_DRY_H
#define SLUICE_KERNELS_DRY_H

#include "kernels/device.h"

struct dry {
    struct device device;
    struct sys *sys;
    struct device *target;
    bool prepare;                 /* let the target build what each operator needs */
    const struct op_rates *rates; /* NULL: no seconds are counted */
    double seconds;               /* of all calls at these rates; the user may reset it */
    const struct arena *pictures; /* counts apart; NULL: the next stays 0 */
    uint64_t picture_bytes;       /* that all calls read and write there; the user may reset it */
    uint64_t workspace_bytes;     /* largest so far; the user may reset it */
    uint64_t hidden_bytes;        /* likewise */
    uint64_t primitives_bytes;    /* of all different primitives so far */
    uint64_t *primitives;         /* open addressing, 0 is free */
    int n_primitives, capacity;
};

/* Makes a dry device in place. target is borrowed. */
void dry_init(struct dry *dry, struct sys *sys, struct device *target, bool prepare);
void dry_destroy(struct dry *dry);

#endif
