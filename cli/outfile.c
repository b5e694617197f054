#include "cli/outfile.h"

#include "cli/fail.h"
#include "cli/interrupt.h"
#include "cli/leftovers.h"
#include "cli/messages.h"
#include "cli/sanitize.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Paths that the signal handler removes. A path's flag is set only when the path is completely written. */
static char pending_path[PATH_MAX], library_path[PATH_MAX];
static atomic_bool pending, library_pending;

void outfile_unlink_in_handler(void) {
    if (atomic_load(&pending)) unlink(pending_path);
    if (atomic_load(&library_pending)) unlink(library_path);
}

static bool name_temporary(char temporary[PATH_MAX], const char *name) {
    int bytes = snprintf(temporary, PATH_MAX, "%s.tmp.%ld", name, (long)getpid());
    return bytes >= 0 && bytes < PATH_MAX;
}

void outfile_set_library_path(const char *name) {
    atomic_store(&library_pending, false);
    if (name) leftovers_clear(name);
    if (name && name_temporary(library_path, name)) atomic_store(&library_pending, true);
}

static int set_names(struct outfile *out, const char *name) {
    struct stat info;
    if (!name_temporary(out->temporary, name)) return ENAMETOOLONG;
    strcpy(out->name, name);
    out->renames = true;
    out->unnamed = false;
    if (stat(name, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return EISDIR;
        out->renames = S_ISREG(info.st_mode);
    }
    return 0;
}

/* Opens an unnamed file in the folder of name. Fails with EOPNOTSUPP without /proc, which name_it needs. */
static int open_unnamed(const char *name) {
    char folder[PATH_MAX];
    errno = EOPNOTSUPP;
    if (!leftovers_folder(name, folder) || access("/proc/self/fd", X_OK)) return -1;
    return open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
}

/* Opens an unnamed file, which vanishes if the process is killed. Where O_TMPFILE is unsupported (EISDIR,
 * EINVAL), opens the temporary name instead. */
static int open_new(struct outfile *out) {
    leftovers_clear(out->name);
    int file = open_unnamed(out->name);
    out->unnamed = file >= 0;
    if (file < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -1;
    strcpy(pending_path, out->temporary);
    atomic_store(&pending, true);
    if (file < 0) file = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) flock(file, LOCK_EX | LOCK_NB); /* so that no other process removes the file */
    return file;
}

/* Gives an unnamed file its temporary name. linkat(2) cannot replace an existing file, so the final name is
 * set by rename(2) afterwards. */
static int name_it(struct outfile *out) {
    char unnamed[32];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fileno(out->file));
    if (linkat(AT_FDCWD, unnamed, AT_FDCWD, out->temporary, AT_SYMLINK_FOLLOW)) return errno;
    out->unnamed = false;
    return 0;
}

/* Output pipes that outfile_check_pipe keeps open until outfile_open has opened the pipe for writing. name
 * NULL: unused entry. */
static struct {
    char *name;
    int file;
} open_pipes[8];

enum { N_OPEN_PIPES = sizeof open_pipes / sizeof *open_pipes };

static bool is_pipe(const char *name) {
    struct stat info;
    return stat(name, &info) == 0 && S_ISFIFO(info.st_mode);
}

void outfile_check_pipe(const char *name) {
    int slot = -1;
    if (!is_pipe(name)) return;
    for (int i = N_OPEN_PIPES - 1; i >= 0; i--) {
        if (!open_pipes[i].name) slot = i;
        if (open_pipes[i].name && strcmp(open_pipes[i].name, name) == 0) return;
    }
    if (slot < 0) return;
    int file = open(name, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 && errno == ENXIO)
        message_note("warning: %s is a pipe without a reader; writing waits for one", name);
    if (file < 0) return;
    open_pipes[slot].name = strdup(name);
    open_pipes[slot].file = file;
}

/* Closes the descriptor that outfile_check_pipe kept, after the pipe is open for writing. */
static void release_pipe(const char *name) {
    for (int i = 0; i < N_OPEN_PIPES; i++) {
        if (!open_pipes[i].name || strcmp(open_pipes[i].name, name) != 0) continue;
        close(open_pipes[i].file);
        free(open_pipes[i].name);
        open_pipes[i].name = NULL;
    }
}

/* Opens a device or a pipe. Polls for the pipe's reader: a blocking open(2) would continue after a signal. */
static int open_in_place(const char *name) {
    struct timespec while_waiting = {.tv_nsec = 20000000};
    int file, n_polls = 0;
    while ((file = open(name, O_WRONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
        if (errno != ENXIO || !is_pipe(name)) return -1;
        if (!n_polls++) message_note("waiting for a reader of the pipe %s", name);
        if (interrupt_pending()) return errno = EINTR, -1;
        nanosleep(&while_waiting, NULL);
    }
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
    release_pipe(name);
    return file;
}

int outfile_open(struct outfile *out, const char *name, struct sluice_error *e) {
    out->file = NULL;
    int problem = set_names(out, name);
    if (problem) return fail_output(e, name, problem);
    int file = out->renames ? open_new(out) : open_in_place(name);
    out->file = file < 0 ? NULL : fdopen(file, "wb");
    if (out->file) return SLUICE_OK;
    int failed = errno;
    failed == EINTR ? interrupt_error(e) : fail_output(e, name, failed);
    atomic_store(&pending, false);
    if (file >= 0) close(file);
    return e->code;
}

void outfile_abandon(struct outfile *out) {
    if (out->file) fclose(out->file);
    out->file = NULL;
    if (out->renames && !out->unnamed) unlink(out->temporary);
    atomic_store(&pending, false);
}

/* Makes the renamed file durable. Failure is ignored, because some file systems do not support it. */
static void sync_folder(const char *name) {
    char folder[PATH_MAX];
    if (!leftovers_folder(name, folder)) return;
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return;
    fsync(file);
    close(file);
}

static int finish_writing(struct outfile *out) {
    int problem = fflush(out->file) ? errno : 0;
    if (!problem && ferror(out->file)) problem = EIO;
    if (!problem && out->renames && fsync(fileno(out->file)) && errno != EINVAL) problem = errno;
    if (!problem && out->unnamed) problem = name_it(out);
    if (fclose(out->file) && !problem) problem = errno;
    out->file = NULL;
    if (!problem && out->renames && rename(out->temporary, out->name)) problem = errno;
    return problem;
}

int outfile_commit(struct outfile *out, struct sluice_error *e) {
    int problem = finish_writing(out);
    if (problem) {
        outfile_abandon(out);
        return fail_output(e, out->name, problem);
    }
    atomic_store(&pending, false);
    if (out->renames) sync_folder(out->name);
    return SLUICE_OK;
}

int outfile_probe(const char *name, struct sluice_error *e) {
    struct outfile out;
    /* A pipe is not opened: opening would wait for its reader, and closing would end the reader. */
    bool in_place = set_names(&out, name) == 0 && !out.renames;
    if (in_place) return access(name, W_OK) ? fail_output(e, name, errno) : SLUICE_OK;
    if (outfile_open(&out, name, e)) return e->code;
    /* Naming the unnamed file shows whether the file system accepts the name. */
    int problem = out.unnamed ? name_it(&out) : 0;
    outfile_abandon(&out);
    return problem ? fail_output(e, name, problem) : SLUICE_OK;
}

/* Returns 0 or an errno. Call once: a second fflush after a failed one succeeds. */
static int flush_stdout(void) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    return errno ? errno : EIO;
}

int outfile_flush_stdout(struct sluice_error *e) {
    int problem = flush_stdout();
    return problem ? fail_output(e, "stdout", problem) : SLUICE_OK;
}

int outfile_flush_text(struct sluice_error *e) {
    struct pollfd reader = {.fd = STDOUT_FILENO};
    int problem = flush_stdout();
    if (problem && poll(&reader, 1, 0) > 0 && reader.revents & POLLERR) return SLUICE_OK;
    return problem ? fail_output(e, "stdout", problem) : SLUICE_OK;
}

int outfile_write_text(const char *name, const char *text, struct sluice_error *e) {
    struct outfile out;
    if (strcmp(name, "-") == 0) {
        sanitize_print_json(stdout, text);
        return outfile_flush_text(e);
    }
    int status = outfile_open(&out, name, e);
    if (status) return status;
    if (fputs(text, out.file) < 0 || fputc('\n', out.file) < 0) {
        fail_output(e, name, errno);
        outfile_abandon(&out);
        return e->code;
    }
    return outfile_commit(&out, e);
}
