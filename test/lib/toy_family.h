/* A family small enough to follow: two or three operators a block, on made-up files. */
#ifndef SLUICE_TEST_TOY_FAMILY_H
#define SLUICE_TEST_TOY_FAMILY_H

#include "engine/run/family.h"
#include "test/lib/toy_files.h"

enum { TOY_D, TOY_F, TOY_T, TOY_LAYERS, TOY_ONE };

struct toy_state {
    struct tensor x, base;
};

extern const struct block_kind toy_kind_once, toy_kind_scale, toy_kind_end;

extern const struct family toy_family;

/* Opens a component of D columns, F wide, T rows and so many layers; its files go to *f. */
enum status toy_open(struct sys *sys, const int32_t *dims, uint64_t seed, struct toy_files *f,
                     struct component *c, struct error *e);

#endif
