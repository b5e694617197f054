/* A session's adapters (LoRA): open files, which weights of the model they match, and components with their
 * changes applied. A request with other files or strengths rebuilds the components; files that a new request
 * names again stay open. A slot without adapters has no changed component and uses the base component
 * (requantised.h). */
#ifndef SLUICE_API_SESSION_ADAPTERS_H
#define SLUICE_API_SESSION_ADAPTERS_H

#include "engine/api/loras.h"
#include "engine/api/requantised.h"
#include "engine/open/adapter_combine.h"

struct loaded_adapter {
    struct lora lora; /* file and strength; lora.path is owned by this struct */
    char *name;       /* file name without folder and extension */
    struct adapter *adapter;
    struct adapter_match match;
    bool partial; /* adapter weights that match no model weight are allowed (--lora-partial) */
    bool finite;  /* all factors were checked for NaN and infinity */
};

struct session_adapters {
    struct sys *sys;
    struct loaded_adapter *file[SLUICE_LORAS_MAX]; /* selected files, in the order of the request */
    int n_files;
    enum dtype weights; /* weight type that the components were built for */
    struct adapter_combination combination[SLOTS_MAX];
    struct component *component[SLOTS_MAX]; /* with adapters applied; NULL: no adapter */
    char *names;         /* names and strengths for image metadata: "style:0.8, turbo:1"; NULL: no adapters */
    uint64_t open_bytes; /* largest temporary memory in bytes that opening an adapter file took */
};

/* The components that adapters apply to. */
struct adapter_base {
    const struct sluice_model *model;
    const struct requantised *requantised;
};

/* Opens the adapter files, matches them with the model and lays out the changed components. Reads no model
 * weights except vectors that adapters change. partial: adapter weights that match no model weight give a
 * note instead of an error. After failure no changed components exist. */
enum status session_adapters_prepare(struct session_adapters *a, const struct adapter_base *base,
                                     const struct loras *loras, bool partial, struct error *e);
/* Frees the changed components. Call this before the base components change. */
void session_adapters_drop_components(struct session_adapters *a);
void session_adapters_destroy(struct session_adapters *a);

/* The component that a run uses in the given slot. a NULL: no adapters. */
const struct component *session_adapters_component(const struct session_adapters *a,
                                                   const struct adapter_base *base, int slot);
/* Copies quantisation scales that requantised_scale found into the changed component. */
void session_adapters_copy_scales(struct session_adapters *a, const struct adapter_base *base, int slot);
/* Checks each file once for NaN and infinity; fails with NONFINITE. tick: called between files; if tick
 * returns false, the check fails with the error that tick has set. */
enum status session_adapters_check_finite(struct session_adapters *a,
                                          bool (*tick)(void *user, struct error *e), void *user,
                                          struct error *e);

/* True if the file changes weights of the given slot (SLOTS_MAX: of any slot). */
bool adapter_file_applies(const struct loaded_adapter *file, int slot);
/* Host bytes of the session's adapters; 0 for NULL. */
uint64_t session_adapters_bytes(const struct session_adapters *a);
/* Hash of the selected adapters: file names without folders, sizes, strengths and scales, in order. 0: no
 * adapters. */
uint64_t session_adapters_hash(const struct session_adapters *a);

#endif
