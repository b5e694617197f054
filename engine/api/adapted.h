/* A session's adapters: files that requests name, what of each concerns the model, and the components that
 * they change. Made again where a request names others, or others' strengths; a file that is still named
 * stays open, and its match with it. A component that nothing concerns is not there: it is the model's, or as
 * requantised.h has it. */
#ifndef SLUICE_API_ADAPTED_H
#define SLUICE_API_ADAPTED_H

#include "engine/api/loras.h"
#include "engine/api/requantised.h"
#include "engine/open/adapters.h"

struct adapted_file {
    struct lora lora; /* its path is owned */
    char *name;       /* of the file, as it is told of */
    struct adapter *adapter;
    struct adapter_match match;
    bool partial; /* matched so */
    bool finite;  /* all of its numbers are: they have been read */
};

struct adapted {
    struct sys *sys;
    struct adapted_file *file[SLUICE_LORAS_MAX]; /* in the order of the request */
    int n_files;
    enum dtype weights; /* of the components below, as requantised has them */
    struct adapter_combination combination[SLOTS_MAX];
    struct component *component[SLOTS_MAX]; /* NULL: nothing concerns it */
    char *names;                            /* "style:0.8, turbo:1"; NULL without adapters */
    uint64_t open_bytes;                    /* the most that opening needed for a while */
};

/* Where components come from. */
struct adapted_base {
    const struct sluice_model *model;
    const struct requantised *requantised;
};

/* Opens, matches and lays out; of weights nothing is read but vectors that adapters change. partial: what
 * fits nothing is a note of its match. After failure there are no components. */
enum status adapted_make(struct adapted *a, const struct adapted_base *base, const struct loras *loras,
                         bool partial, struct error *e);
/* Before the components below change. */
void adapted_forget(struct adapted *a);
void adapted_destroy(struct adapted *a);

/* The component in that slot as it is run. a: NULL for none. */
const struct component *adapted_component(const struct adapted *a, const struct adapted_base *base, int slot);
/* Scales that a run has found: see requantised_scale. */
void adapted_scale(struct adapted *a, const struct adapted_base *base, int slot);
/* Reads the numbers of files that have not been looked at: NONFINITE. tick: as requantised_scale's, asked
 * between files. */
enum status adapted_check(struct adapted *a, bool (*tick)(void *user, struct error *e), void *user,
                          struct error *e);

/* Of the slot, or of any where it is SLOTS_MAX. */
bool adapted_concerns(const struct adapted_file *file, int slot);
/* Of our allocator; 0 for NULL. */
uint64_t adapted_bytes(const struct adapted *a);
/* Tells one choice of adapters from another, wherever their files lie: names, sizes, strengths and scales, in
 * their order. 0: none. */
uint64_t adapted_hash(const struct adapted *a);

#endif
