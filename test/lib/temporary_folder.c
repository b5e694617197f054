#include "test/lib/temporary_folder.h"

#include "test/lib/check.h"

#include <stdio.h>
#include <stdlib.h>

char temporary[64];

static void temporary_remove(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", temporary);
    if (temporary[0] && system(command)) puts("cannot remove the temporary folder");
}

void temporary_make_in(const char *parent) {
    snprintf(temporary, sizeof temporary, "%s/sluice_test_XXXXXX", parent);
    if (!mkdtemp(temporary)) abort();
    atexit(temporary_remove);
}

void temporary_make(void) {
    temporary_make_in("/tmp");
}

const char *copy_model_folder(const char *folder, const char *name) {
    static char to[160];
    char command[512];
    snprintf(to, sizeof to, "%s/%s", temporary, name);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", to, folder, to);
    check(system(command) == 0, "%s", command);
    return to;
}
