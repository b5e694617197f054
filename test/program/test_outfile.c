/* When the program or the library is killed while writing an output file, no partial file remains, an older
 * file is unchanged, and the next writer removes temporary files. Tested with and without O_TMPFILE. */
#include "cli/outfile.h"
#include "loaders/output.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool names_only; /* simulates a file system without O_TMPFILE */

/* Replaces open() of the C library for the program and the library. */
int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (names_only && (flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static const char *path;

static void check_contents(const char *text, const char *what) {
    size_t n;
    char *got = read_file(path, &n);
    check(got && strcmp(got, text) == 0, "%s: the file contains \"%s\", not \"%s\"", what, got, text);
    free(got);
}

/* ---- the two writers ---- */

static bool write_as_program(const char *text, bool is_killed) {
    struct outfile out;
    struct sluice_error e;
    if (outfile_open(&out, path, &e) || fputs(text, out.file) < 0 || fflush(out.file)) return false;
    if (is_killed) raise(SIGKILL);
    return outfile_commit(&out, &e) == SLUICE_OK;
}

static bool write_as_library(const char *text, bool is_killed) {
    struct sys sys;
    struct output output;
    struct error e = {0};
    sys_init_machine(&sys);
    if (output_open(&sys, path, &output, &e) == OK) output_write(&output, text, strlen(text), &e);
    if (is_killed) raise(SIGKILL);
    return output_close(&output, &e) == OK;
}

static const struct writer {
    const char *name;
    bool (*write)(const char *text, bool is_killed);
} writers[] = {{"program", write_as_program}, {"library", write_as_library}};

static void write_and_get_killed(const struct writer *w) {
    pid_t child = fork();
    if (!child) {
        w->write("half", true);
        _exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "%s: the process was not killed",
          w->name);
}

static void test_killed(const struct writer *w) {
    char text[32];
    names_only = false;
    for (int older = 0; older < 2; older++) {
        if (older) write_file(path, "older", 5);
        write_and_get_killed(w);
        check(count_files(temporary) == older, "%s: a killed process left %d files", w->name,
              count_files(temporary) - older);
        if (older) check_contents("older", w->name);
        snprintf(text, sizeof text, "whole %d", older);
        check(w->write(text, false) && count_files(temporary) == 1, "%s: %d files", w->name,
              count_files(temporary));
        check_contents(text, w->name);
        unlink(path);
    }
}

/* Without O_TMPFILE a killed process leaves a temporary file, which the next writer of a file with this name
 * removes. */
static void test_killed_with_named_file(const struct writer *w) {
    char other[128];
    names_only = true;
    write_and_get_killed(w);
    check(count_files(temporary) == 1, "%s: %d files after a killed process", w->name,
          count_files(temporary));
    snprintf(other, sizeof other, "%s.tmp.x1", path); /* another program's file */
    write_file(other, "theirs", 6);
    check(write_as_program("whole", false) && count_files(temporary) == 2, "%s: %d files", w->name,
          count_files(temporary));
    check_contents("whole", w->name);
    unlink(other);
    unlink(path);
}

static void test_running_writer(const struct writer *w) {
    int go[2], ready[2];
    char byte = 0;
    check(!pipe(go) && !pipe(ready), "no pipes");
    pid_t child = fork();
    if (!child) {
        struct sys sys;
        struct output output;
        struct error e = {0};
        sys_init_machine(&sys);
        output_open(&sys, path, &output, &e);
        if (write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 1) _exit(2);
        output_write(&output, "later", 5, &e);
        _exit(output_close(&output, &e) != OK);
    }
    check(read(ready[0], &byte, 1) == 1 && w->write("sooner", false), "%s: not written", w->name);
    check_contents("sooner", w->name);
    int status = -1;
    check(write(go[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0,
          "%s: the temporary file of a running process was removed", w->name);
    check_contents("later", w->name);
    check(count_files(temporary) == 1, "%s: %d files", w->name, count_files(temporary));
    unlink(path);
    for (int i = 0; i < 2; i++) close(go[i]), close(ready[i]);
}

int main(void) {
    temporary_make();
    path = temporary_path("a.safetensors");
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        test_killed(&writers[i]);
        test_killed_with_named_file(&writers[i]);
        for (int k = 0; k < 2; k++) {
            names_only = k;
            test_running_writer(&writers[i]);
        }
    }
    check(count_files(temporary) == 0, "%d files are left", count_files(temporary));
    return finish();
}
