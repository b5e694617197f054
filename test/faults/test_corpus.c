/* Replays every input of the fuzzing corpora (test/fuzz/TARGET.ar) without a fuzzer: seeds and past findings
 * (bench/LOG.md). */
#include "test/fuzz/targets.h"

#include <ar.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST_SECONDS = 300 };

static int n_passed, n_failed;

static void fail(const char *what, const char *path) {
    printf("FAILED %s: %s\n", what, path);
    n_failed++;
}

/* Runs a fuzz target on one input, in a buffer of exactly the input's size. */
static void replay(const struct target *target, const struct ar_hdr *head, FILE *corpus) {
    size_t bytes = strtoul(head->ar_size, NULL, 10);
    uint8_t *data = bytes ? malloc(bytes) : NULL;
    char name[sizeof head->ar_name + 1];
    sscanf(head->ar_name, "%16[^/ ]", name);
    bool read = fread(data, 1, bytes, corpus) == bytes && (bytes % 2 == 0 || fgetc(corpus) == '\n');
    clock_t began = clock();
    if (read) target->run(data, bytes);
    double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    if (!read || seconds > 2)
        fail(read ? "it takes too long" : "cannot be read", name);
    else
        n_passed++;
    free(data);
}

/* A corpus is an ar(5) archive. */
static void replay_all(const struct target *target) {
    char path[128], magic[SARMAG] = "";
    snprintf(path, sizeof path, "test/fuzz/%s.ar", target->name);
    FILE *corpus = fopen(path, "rb");
    int before = n_passed;
    if (corpus && fread(magic, SARMAG, 1, corpus) == 1 && !memcmp(magic, ARMAG, SARMAG)) {
        struct ar_hdr head;
        while (fread(&head, sizeof head, 1, corpus) == 1) replay(target, &head, corpus);
    }
    if (corpus) fclose(corpus);
    if (n_passed == before) fail("no inputs", path);
}

int main(void) {
    alarm(LONGEST_SECONDS);
    for (int i = 0; i < N_TARGETS; i++) replay_all(&targets[i]);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
