/* Optional shared libraries (dlopen) with a table of function pointers.
 *
 * The program does not link cuBLASLt or cuDNN, so the program starts without these libraries and can report a
 * missing library. The dynamic linker searches the libraries; the last names are full paths of CUDA's default
 * location, which the linker may not search. */
#ifndef SLUICE_CUDA_LIBRARY_H
#define SLUICE_CUDA_LIBRARY_H

#include "engine/base/error.h"

#include <stddef.h>

#define LIBRARY_CUDA "/usr/local/cuda/lib64/"

struct library_function {
    const char *name;
    size_t offset; /* offset of the function's pointer in the caller's struct of pointers */
};

/* Opens the first library of names (NULL-terminated) that loads and fills the table with all n functions.
 * NULL with DEVICE: the error lists the tried names and the linker's message, or the missing function. */
void *library_open(const char *what, const char *const *names, const struct library_function *functions,
                   int n, void *table, struct error *e);
void library_close(void *library);

/* Macros for X-macro lists of library functions. LIBRARY_POINTER declares a function pointer;
 * LIBRARY_FUNCTION gives a function's name and its pointer's offset in struct api. */
#define LIBRARY_POINTER(name)  __typeof__(name) *name;
#define LIBRARY_FUNCTION(name) {#name, offsetof(struct api, name)},

#endif
