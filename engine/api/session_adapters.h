/* A session's adapters (LoRA): open files, their matches with the model, and the components that they change.
 * A request with other files or strengths rebuilds the components; a file that is named again stays open,
 * with its match. A slot without adapters has no component here and uses the base one (requantised.h). */
#ifndef SLUICE_API_SESSION_ADAPTERS_H
#define SLUICE_API_SESSION_ADAPTERS_H

#include "engine/api/loras.h"
#include "engine/api/requantised.h"
#include "engine/open/adapters.h"

struct loaded_adapter {
    struct lora lora; /* file and strength; the path is owned */
    char *name;       /* file name without folder and extension */
    struct adapter *adapter;
    struct adapter_match match;
    bool partial; /* the match allows unmatched weights (--lora-partial) */
    bool finite;  /* all factors were checked for NaN and infinity */
};

struct session_adapters {
    struct sys *sys;
    struct loaded_adapter *file[SLUICE_LORAS_MAX]; /* selected files, in the order of the request */
    int n_files;
    enum dtype weights; /* weight type that the components were built for */
    struct adapter_combination combination[SLOTS_MAX];
    struct component *component[SLOTS_MAX]; /* changed component of each slot; NULL: no adapter */
    char *names;                            /* for image metadata: "style:0.8, turbo:1"; NULL: no adapters */
    uint64_t open_bytes;                    /* largest temporary memory that opening a file took */
};

/* The components that adapters apply to. */
struct adapter_base {
    const struct sluice_model *model;
    const struct requantised *requantised;
};

/* Opens and matches the files and lays out the changed components. Reads no weights except vectors that
 * adapters change. partial: weights that match nothing become a note instead of an error. After failure
 * there are no components. */
enum status session_adapters_prepare(struct session_adapters *a, const struct adapter_base *base,
                                     const struct loras *loras, bool partial, struct error *e);
/* Frees the changed components; call before the base components change. */
void session_adapters_drop_components(struct session_adapters *a);
void session_adapters_destroy(struct session_adapters *a);

/* The component that the run uses in that slot. a NULL: no adapters. */
const struct component *session_adapters_component(const struct session_adapters *a,
                                                   const struct adapter_base *base, int slot);
/* Copies quantisation scales that requantised_scale found into the changed component. */
void session_adapters_copy_scales(struct session_adapters *a, const struct adapter_base *base, int slot);
/* Checks each file once for NaN and infinity: NONFINITE. tick: called between files, as in
 * requantised_scale. */
enum status session_adapters_check_finite(struct session_adapters *a,
                                          bool (*tick)(void *user, struct error *e), void *user,
                                          struct error *e);

/* True if the file changes weights of that slot; SLOTS_MAX: of any slot. */
bool adapter_file_applies(const struct loaded_adapter *file, int slot);
/* Host bytes of the session's adapters; 0 for NULL. */
uint64_t session_adapters_bytes(const struct session_adapters *a);
/* Hash of the selected adapters: names, sizes, strengths and scales in order, without folders. 0: none. */
uint64_t session_adapters_hash(const struct session_adapters *a);

#endif
