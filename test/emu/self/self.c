/* Self-test of the emulator. Each case runs in its own process in three thread orders. Correct cases must
 * pass in all orders; faults must be found in at least one order by the emulator, a wrong result or the
 * sanitizer, as the table lists. */
#include "test/emu/self/cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
enum { BUILD = 1 };
#elif defined __SANITIZE_THREAD__
enum { BUILD = 2 };
#else
enum { BUILD = 0 };
#endif

#define RACE    "data race"
#define ADDRESS "AddressSanitizer"
#define WRONG   "wrong result"

/* Cases with the expected report without sanitizer, with ASan and UBSan, and with TSan; NULL: this build does
 * not find the fault. */
static const struct expectation {
    const char *name, *found[3];
    const char *variable, *value;
} table[] = {
    {"clean reverse", {0}, 0, 0},
    {"clean rotate", {0}, 0, 0},
    {"clean many blocks", {0}, 0, 0},
    {"clean warp rotate", {0}, 0, 0},
    {"clean exchanges", {0}, 0, 0},
    {"clean product", {0}, 0, 0},
    {"clean prefetch", {0}, 0, 0},
    {"clean arrays", {0}, 0, 0},
    {"clean wide loads", {0}, 0, 0},
    {"clean streams", {0}, 0, 0},
    {"clean streams", {0}, "EMU_DELAY", "20000"},
    {"clean streams", {0}, "EMU_DELAY_KERNELS", "20000"},
    {"clean events", {0}, "EMU_DELAY", "20000"},
    {"clean pageable", {0}, "EMU_DELAY", "20000"},
    {"clean large shared", {0}, 0, 0},
    {"clean mapped", {0}, 0, 0},
    {"clean mapped", {0}, "EMU_GRANULE", "65536"},
    {"clean failures", {0}, 0, 0},
    {"no syncthreads", {WRONG, WRONG, RACE}, 0, 0},
    {"no syncthreads before", {WRONG, WRONG, RACE}, 0, 0},
    {"no syncthreads after", {WRONG, WRONG, RACE}, 0, 0},
    {"no syncwarp", {WRONG, WRONG, RACE}, 0, 0},
    {"divergent if", {"divergent barrier", "divergent barrier", "divergent barrier"}, 0, 0},
    {"divergent return", {"divergent barrier", "divergent barrier", "divergent barrier"}, 0, 0},
    {"divergent branches", {"divergent barrier", "divergent barrier", "divergent barrier"}, 0, 0},
    {"absent lanes", {"absent lanes", "absent lanes", "absent lanes"}, 0, 0},
    {"absent threads", {"absent lanes", "absent lanes", "absent lanes"}, 0, 0},
    {"absent source", {"absent lane", "absent lane", "absent lane"}, 0, 0},
    {"async never awaited", {"never waited", "never waited", "never waited"}, 0, 0},
    {"async without barrier", {WRONG, WRONG, RACE}, 0, 0},
    {"async refilled early", {WRONG, WRONG, RACE}, 0, 0},
    {"shared by one", {NULL, "out of bounds", NULL}, 0, 0},
    {"dynamic by one", {NULL, ADDRESS, NULL}, 0, 0},
    {"global by one", {NULL, ADDRESS, NULL}, 0, 0},
    {"global far", {"not mapped", ADDRESS, NULL}, 0, 0},
    {"global before", {"not mapped", ADDRESS, NULL}, 0, 0},
    {"local by one", {NULL, "out of bounds", NULL}, 0, 0},
    {"misaligned", {"misaligned", "misaligned", "misaligned"}, 0, 0},
    {"two blocks one word", {NULL, NULL, RACE}, 0, 0},
    {"two threads one word", {NULL, NULL, RACE}, 0, 0},
    {"no wait copy compute", {NULL, NULL, RACE}, 0, 0},
    {"no wait copy compute", {WRONG, WRONG, RACE}, "EMU_DELAY", "300000"},
    {"no wait compute copy", {NULL, NULL, RACE}, 0, 0},
    {"no wait compute copy", {WRONG, WRONG, RACE}, "EMU_DELAY_KERNELS", "300000"},
    {"no last wait", {WRONG, WRONG, RACE}, "EMU_DELAY", "300000"},
    {"source overwritten", {NULL, NULL, RACE}, 0, 0},
    {"default stream", {"default stream", "default stream", "default stream"}, 0, 0},
    {"wrong kind", {"kind 2", "kind 2", "kind 2"}, 0, 0},
    {"long copy", {"pass the end", "pass the end", "pass the end"}, 0, 0},
    {"host argument", {"nor pinned", "nor pinned", "nor pinned"}, 0, 0},
    {"no blocks", {"a grid of (0", "a grid of (0", "a grid of (0"}, 0, 0},
    {"many threads", {"(1025, 1, 1) threads", "(1025, 1, 1) threads", "(1025, 1, 1) threads"}, 0, 0},
    {"large shared", {"shared memory", "shared memory", "shared memory"}, 0, 0},
    {"largest shared", {"shared memory", "shared memory", "shared memory"}, 0, 0},
    {"freed early", {"was freed before", "was freed before", "was freed before"}, 0, 0},
    {"unmapped", {"not mapped", ADDRESS, "ThreadSanitizer: SEGV"}, 0, 0},
};

/* Runs a case in its own process; stderr goes to `text`. Returns its exit status or 128 + signal. */
static int run_alone(const char *self, const struct expectation *x, const char *order, char *text,
                     size_t bytes) {
    int pipe_ends[2];
    if (pipe(pipe_ends)) return -1;
    pid_t child = fork();
    if (!child) {
        dup2(pipe_ends[1], 2);
        close(pipe_ends[0]);
        setenv("EMU_ORDER", order, 1);
        if (x->variable) setenv(x->variable, x->value, 1);
        execl(self, self, x->name, (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    size_t n = 0;
    char rest[4096];
    for (ssize_t got; (got = read(pipe_ends[0], rest, sizeof rest)) > 0;) {
        size_t fits = (size_t)got < bytes - 1 - n ? (size_t)got : bytes - 1 - n;
        memcpy(text + n, rest, fits);
        n += fits;
    }
    text[n] = 0;
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool case_holds(const char *self, const struct expectation *x) {
    static const char *const orders[] = {"forward", "reverse", "random"};
    static char text[65536];
    bool clean = !strncmp(x->name, "clean", 5);
    int found = 0;
    for (int i = 0; i < 3 && (clean || !found); i++) {
        int status = run_alone(self, x, orders[i], text, sizeof text);
        const char *expected_text = x->found[BUILD];
        bool known = status != CASE_UNKNOWN && status != 127;
        if (clean ? status == 0 : known && status && expected_text && strstr(text, expected_text))
            found++;
        else if (clean || !known || (status && status != CASE_WRONG))
            printf("%s, %s: status %d\n%s", x->name, orders[i], status, text);
    }
    return clean ? found == 3 : found > 0;
}

int main(int argc, char **argv) {
    if (argc == 2) {
        int result = case_run(argv[1]);
        if (result == CASE_WRONG) fprintf(stderr, WRONG "\n");
        return result;
    }
    int passed = 0, failed = 0, skipped = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct expectation *x = &table[i];
        if (strncmp(x->name, "clean", 5) && !x->found[BUILD]) {
            skipped++;
            continue;
        }
        bool holds = case_holds(argv[0], x);
        holds ? passed++ : failed++;
        if (!holds)
            printf("FAILED: %s%s%s\n", x->name, x->variable ? " with " : "", x->variable ? x->variable : "");
    }
    printf("%d faults are found only by other builds\n%d passed, %d failed\n", skipped, passed, failed);
    return failed != 0;
}
