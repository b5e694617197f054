/* A session's adapters (LoRA): open files, which weights of the model they match, and components with the
 * adapters applied. A request with other files or strengths rebuilds the components; files that a new request
 * names again stay open. A slot without adapters uses the base component
 * (requantised.h). */
#ifndef SLUICE_CACHE_SESSION_ADAPTERS_H
#define SLUICE_CACHE_SESSION_ADAPTERS_H

#include "engine/base/source.h"
#include "engine/cache/requantised.h"
#include "engine/open/adapter_combine.h"
#include "engine/open/prompt_syntax.h"

/* A LoRA file of a request. */
struct lora {
    char *path;
    struct file_identity identity;
    struct file_identity config; /* identity of the adapter_config.json in the file's folder; all 0: none */
    double strength;             /* sum of the strengths with which the request names the file; not 0 */
};

struct loaded_adapter {
    struct lora lora; /* file and strength; lora.path is owned by this struct */
    char *name;       /* file name without folder and extension */
    struct adapter *adapter;
    struct adapter_match match;
    bool partial; /* adapter weights that match no model weight are allowed (--lora-partial) */
    bool finite;  /* true: all factors of the file were checked for NaN and infinity */
};

struct session_adapters {
    struct sys *sys;
    struct loaded_adapter *file[SLUICE_LORAS_MAX]; /* selected files, in the order of the request */
    int n_files;
    struct conversion_choice weights; /* conversion that the components were built for */
    struct adapter_combination combination[SLOTS_MAX];
    /* Component of each slot with adapters applied; NULL: no adapter changes the slot. */
    struct component *component[SLOTS_MAX];
    char *names;         /* names and strengths for image metadata: "style:0.8, turbo:1"; NULL: no adapters */
    uint64_t open_bytes; /* largest temporary memory in bytes that opening an adapter file took */
};

/* Model and weight conversion of the components that adapters apply to. */
struct adapter_base {
    const struct sluice_model *model;
    const struct requantised *requantised;
};

/* Opens the LoRA files of a request (--lora, and the <lora:...> tags of n prompts). Matches them with the
 * model and lays out the components with adapters. A file that is named several times is loaded once, with
 * the sum of its strengths; a file of strength 0 is dropped. Reads no model weights except vectors that
 * adapters change. With request->lora_partial, adapter weights that match no model weight give a note instead
 * of an error. Fails with MISSING or IO for a file, USAGE for too many files, MEMORY; the session then has no
 * components with adapters. */
enum status session_adapters_prepare(struct session_adapters *a, const struct adapter_base *base,
                                     const struct sluice_request *request, const struct lora_tags *tags,
                                     int n, struct error *e);
/* Frees the components with adapters. Call before base components change. */
void session_adapters_drop_components(struct session_adapters *a);
void session_adapters_destroy(struct session_adapters *a);

/* The component that a run uses in the given slot. a NULL: no adapters. */
const struct component *session_adapters_component(const struct session_adapters *a,
                                                   const struct adapter_base *base, int slot);
/* Copies quantisation scales that requantised_scale found into the slot's component with adapters. */
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
