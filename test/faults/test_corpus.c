/* Every input of test/fuzz/corpus once more, without a fuzzer: seeds, and what fuzzing found (bench/LOG.md).
 */
#include "test/fuzz/targets.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_SECONDS = 300 };

static int n_passed, n_failed;

static void fail(const char *what, const char *path) {
    printf("FAILED %s: %s\n", what, path);
    n_failed++;
}

/* In memory of exactly the input's size. */
static void replay(const struct target *target, const char *path) {
    FILE *file = fopen(path, "rb");
    long bytes = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    uint8_t *data = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (bytes >= 0) rewind(file);
    bool read = bytes >= 0 && fread(data, 1, (size_t)bytes, file) == (size_t)bytes;
    clock_t began = clock();
    if (read) target->run(data, (size_t)bytes);
    double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    if (!read || seconds > 2)
        fail(read ? "it takes too long" : "cannot be read", path);
    else
        n_passed++;
    free(data);
    if (file) fclose(file);
}

static void replay_all(const struct target *target) {
    char folder[128], path[400];
    snprintf(folder, sizeof folder, "test/fuzz/corpus/%s", target->name);
    DIR *files = opendir(folder);
    int before = n_passed;
    for (struct dirent *file; files && (file = readdir(files));) {
        snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
        if (file->d_name[0] != '.') replay(target, path);
    }
    if (files) closedir(files);
    if (n_passed == before) fail("no inputs", folder);
}

int main(void) {
    alarm(LONGEST_SECONDS); /* a hang is a failure */
    for (int i = 0; i < N_TARGETS; i++) replay_all(&targets[i]);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
