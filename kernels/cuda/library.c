/* Opening of optional shared libraries (library.h). */
#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Returns the dynamic linker's message on its last failure. */
static const char *reason(void) {
    const char *message = dlerror();
    return message ? message : "no reason given";
}

void *library_open(const char *what, const char *const *names, const struct library_function *functions,
                   int n, void *table, struct error *e) {
    char first[160] = "", tried[200] = "";
    void *library = NULL;
    /* RTLD_NODELETE: a library stays loaded after dlclose, because its code remains registered with the
     * driver, threads, exit handlers and other libraries. */
    for (const char *const *name = names; *name && !library; name++) {
        library = dlopen(*name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!library && !*first) snprintf(first, sizeof first, "%s", reason());
    }
    if (!library) {
        for (size_t used = 0; *names && used < sizeof tried; names++)
            used += (size_t)snprintf(tried + used, sizeof tried - used, "%s%s", used ? ", " : "", *names);
        error_set(e, DEVICE, "%s cannot be loaded" FOUND "%s" EXPECTED "one of %s", what, first, tried);
    }
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
