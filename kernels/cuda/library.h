/* A shared library that may be missing: opened by name when it is first needed, its functions in a table.
 *
 * The program links neither cuBLASLt nor cuDNN, so that it starts on machines without them and can say what
 * is missing. Where libraries are looked for is the dynamic linker's business; the last names are paths:
 * where CUDA installs itself, which the linker does not always know. */
#ifndef SLUICE_CUDA_LIBRARY_H
#define SLUICE_CUDA_LIBRARY_H

#include "engine/base/error.h"

#include <stddef.h>

#define LIBRARY_CUDA "/usr/local/cuda/lib64/"

struct library_function {
    const char *name;
    size_t offset; /* of its pointer in the table */
};

/* Tries the names in order (NULL ends them) and fills the table with all n functions of the first that opens.
 * DEVICE: what there is no library of, which names were tried and what the linker says; or which function it
 * lacks. NULL then. */
void *library_open(const char *what, const char *const *names, const struct library_function *functions,
                   int n, void *table, struct error *e);
/* NULL is fine. */
void library_close(void *library);

/* One row of an X-macro's table of functions: the pointer, and where it lies in struct api. */
#define LIBRARY_POINTER(name)  __typeof__(name) *name;
#define LIBRARY_FUNCTION(name) {#name, offsetof(struct api, name)},

#endif
