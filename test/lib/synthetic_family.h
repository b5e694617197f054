/* A small family for executor tests, with synthetic weight files: two or three operators per block. */
#ifndef SLUICE_TEST_SYNTHETIC_FAMILY_H
#define SLUICE_TEST_SYNTHETIC_FAMILY_H

#include "engine/run/family.h"
#include "test/lib/synthetic_files.h"

enum { SYNTHETIC_D, SYNTHETIC_F, SYNTHETIC_T, SYNTHETIC_LAYERS, SYNTHETIC_ONE };

struct synthetic_state {
    struct tensor x, base;
};

extern const struct block_kind synthetic_kind_once, synthetic_kind_scale, synthetic_kind_end;

extern const struct family synthetic_family;

/* Opens a component with dims {columns D, feed-forward width F, rows T, layers}; *f gets its weight files. */
enum status synthetic_open(struct sys *sys, const int32_t *dims, uint64_t seed, struct synthetic_files *f,
                           struct component *c, struct error *e);

#endif
