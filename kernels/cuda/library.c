#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Writes the names as "a, b, c" to out, as far as they fit. */
static void list(const char *const *names, char *out, size_t out_bytes) {
    out[0] = '\0';
    for (size_t used = 0; *names && used < out_bytes; names++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used ? ", " : "", *names);
}

static const char *reason(void) {
    const char *message = dlerror();
    return message ? message : "no reason given";
}

/* RTLD_NODELETE: a library stays loaded after closing, because it leaves code with the driver, threads, exit
 * handlers and other libraries behind. */
static void *open_first(const char *what, const char *const *names, struct error *e) {
    char first[160] = "", tried[200];
    for (const char *const *name = names; *name; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library) return library;
        if (!*first) snprintf(first, sizeof first, "%s", reason());
    }
    list(names, tried, sizeof tried);
    error_set(e, DEVICE, "%s cannot be loaded" FOUND "%s" EXPECTED "one of %s", what, first, tried);
    return NULL;
}

void *library_open(const char *what, const char *const *names, const struct library_function *functions,
                   int n, void *table, struct error *e) {
    void *library = open_first(what, names, e);
    for (int i = 0; library && i < n; i++) {
        void *address = dlsym(library, functions[i].name);
        /* C has no cast from an object pointer to a function pointer; POSIX guarantees equal
         * representation. */
        memcpy((char *)table + functions[i].offset, &address, sizeof address);
        if (address) continue;
        error_set(e, DEVICE, "%s has an unsupported version" FOUND "%s" EXPECTED "a library with %s", what,
                  reason(), functions[i].name);
        library_close(library);
        library = NULL;
    }
    return library;
}

void library_close(void *library) {
    if (library) dlclose(library);
}
