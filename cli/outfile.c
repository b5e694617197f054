#include "cli/outfile.h"

#include "cli/fail.h"
#include "cli/messages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- signals ---- */

/* Unfinished output files of the program and of the library, which the signal handler removes. The atomic
 * flag of a path is set when the path is completely stored. */
static char pending_path[PATH_MAX], library_path[PATH_MAX];
static atomic_bool pending, library_pending;

/* The handler calls only async-signal-safe functions. It acts on the main thread only, so that the session
 * cannot be closed at the same time. */
static atomic_int n_signals;
static atomic_bool graceful;
static sluice_session *_Atomic watched;

static void on_signal(int number) {
    int saved = errno;
    if (syscall(SYS_gettid) != getpid()) {
        syscall(SYS_tgkill, getpid(), getpid(), number);
        errno = saved;
        return;
    }
    int before = atomic_fetch_add(&n_signals, 1);
    sluice_session *session = atomic_load(&watched);
    if (session) sluice_cancel(session);
    if (before > 0 || !atomic_load(&graceful)) {
        if (atomic_load(&pending)) unlink(pending_path);
        if (atomic_load(&library_pending)) unlink(library_path);
        /* If main has already printed an error line, the handler returns and main exits with that error. */
        if (message_cancelled_in_handler()) _exit(130);
    }
    errno = saved;
}

/* Stack of the signal handler. oneDNN's AVX2 matrix products use the stack pointer register for packed
 * operands: a handler on the normal stack would corrupt the heap (observed: "corrupted size vs. prev_size"
 * after a cancelled `bench ops`). */
static char handler_stack[64 << 10];

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGHUP);
    sigaltstack(&(stack_t){.ss_sp = handler_stack, .ss_size = sizeof handler_stack}, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* without SIGXFSZ, writes beyond the file size limit fail */
    sigaction(SIGTERM, &action, NULL);
    /* A SIGHUP that is ignored at program start (nohup) stays ignored. */
    sigaction(SIGHUP, NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
    /* SIGINT is handled even if it was ignored, as in background jobs of a shell: scripts use kill -INT. */
    sigaction(SIGINT, &action, NULL);
}

void interrupt_gracefully(void) {
    atomic_store(&graceful, true);
}

void interrupt_watch(sluice_session *session) {
    atomic_store(&watched, session);
}

bool interrupt_pending(void) {
    sluice_session *session = atomic_load(&watched);
    if (atomic_load(&n_signals) == 0) return false;
    if (session) sluice_cancel(session);
    return true;
}

int interrupt_error(struct sluice_error *error) {
    return fail(error, SLUICE_CANCELLED, "cancelled");
}

/* ---- temporary files and folders of killed processes ---- */

static const char lock_name[] = ".sluice-unfinished";

enum { LOCK_PATH_BYTES = PATH_MAX + sizeof lock_name };

const char *leftovers_folder(const char *name, char out[PATH_MAX]) {
    const char *slash = strrchr(name, '/');
    int bytes = snprintf(out, PATH_MAX, "%.*s", slash ? (int)(slash - name + 1) : 2, slash ? name : "./");
    return bytes >= PATH_MAX ? NULL : slash ? slash + 1 : name;
}

/* True for a regular file of this user that no process has locked. Locks it. */
static bool is_abandoned(int file) {
    struct stat info;
    bool ours = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    return ours && flock(file, LOCK_EX | LOCK_NB) == 0;
}

static void lock_path(const char *folder, char lock[LOCK_PATH_BYTES]) {
    snprintf(lock, LOCK_PATH_BYTES, "%s/%s", folder, lock_name);
}

void leftovers_clear(const char *name) {
    enum { READING = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC };
    char folder[PATH_MAX], path[PATH_MAX], lock[LOCK_PATH_BYTES];
    const char *base = leftovers_folder(name, folder);
    DIR *entries = base ? opendir(folder) : NULL;
    size_t length = base ? strlen(base) : 0;
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *end = NULL; /* the suffix ".tmp.PID" of the entry's name */
        for (const char *next = entry->d_name; (next = strstr(next, ".tmp.")); next++) end = next;
        if (!end || !end[5] || end[5 + strspn(end + 5, "0123456789")]) continue;
        bool of_name = length && end == entry->d_name + length && !strncmp(entry->d_name, base, length);
        int file = of_name ? openat(dirfd(entries), entry->d_name, READING) : -1;
        if (file >= 0) {
            if (is_abandoned(file)) unlinkat(dirfd(entries), entry->d_name, 0);
            close(file);
        }
        if (snprintf(path, sizeof path, "%s%s", folder, entry->d_name) >= PATH_MAX) continue;
        lock_path(path, lock);
        file = open(lock, READING);
        if (file < 0) continue;
        if (is_abandoned(file)) leftovers_remove_tree(path);
        close(file);
    }
    if (entries) closedir(entries);
}

int leftovers_lock(const char *folder) {
    char lock[LOCK_PATH_BYTES];
    lock_path(folder, lock);
    int file = open(lock, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 || !flock(file, LOCK_EX | LOCK_NB)) return file;
    close(file);
    return -1;
}

int leftovers_unlock(const char *folder) {
    char lock[LOCK_PATH_BYTES];
    lock_path(folder, lock);
    return unlink(lock);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void leftovers_remove_tree(const char *folder) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- output files ---- */

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

/* Opens an unnamed file, which vanishes if the process is killed. Where O_TMPFILE is unsupported (EISDIR,
 * EINVAL), or without /proc, which name_it needs, opens the temporary name instead. */
static int open_new(struct outfile *out) {
    char folder[PATH_MAX];
    int file = -1;
    leftovers_clear(out->name);
    errno = EOPNOTSUPP;
    if (leftovers_folder(out->name, folder) && !access("/proc/self/fd", X_OK))
        file = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    out->unnamed = file >= 0;
    if (file < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -1;
    strcpy(pending_path, out->temporary);
    atomic_store(&pending, true);
    if (file < 0) file = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) flock(file, LOCK_EX | LOCK_NB); /* keeps other processes from deleting the file */
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

/* Opens a device or a named pipe for writing. Polls until the pipe has a reader: a blocking open(2) would
 * continue after a signal. */
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
    /* The pipe is open for writing, so the descriptor that outfile_check_pipe kept is closed. */
    for (int i = 0; i < N_OPEN_PIPES; i++) {
        if (!open_pipes[i].name || strcmp(open_pipes[i].name, name) != 0) continue;
        close(open_pipes[i].file);
        free(open_pipes[i].name);
        open_pipes[i].name = NULL;
    }
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

int outfile_commit(struct outfile *out, struct sluice_error *e) {
    int problem = fflush(out->file) ? errno : 0;
    if (!problem && ferror(out->file)) problem = EIO;
    if (!problem && out->renames && fsync(fileno(out->file)) && errno != EINVAL) problem = errno;
    if (!problem && out->unnamed) problem = name_it(out);
    if (fclose(out->file) && !problem) problem = errno;
    out->file = NULL;
    if (!problem && out->renames && rename(out->temporary, out->name)) problem = errno;
    if (problem) {
        outfile_abandon(out);
        return fail_output(e, out->name, problem);
    }
    atomic_store(&pending, false);
    /* Syncs the folder of the renamed file. Failure is ignored: some file systems do not support it. */
    char folder[PATH_MAX];
    if (!out->renames || !leftovers_folder(out->name, folder)) return SLUICE_OK;
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return SLUICE_OK;
    fsync(file);
    close(file);
    return SLUICE_OK;
}

int outfile_probe(const char *name, struct sluice_error *e) {
    struct outfile out;
    /* A pipe is not opened: opening would wait for its reader, and closing would end the reader. */
    bool in_place = set_names(&out, name) == 0 && !out.renames;
    if (in_place) return access(name, W_OK) ? fail_output(e, name, errno) : SLUICE_OK;
    if (outfile_open(&out, name, e)) return e->code;
    /* Naming the unnamed (O_TMPFILE) file shows whether the file system accepts the name. */
    int problem = out.unnamed ? name_it(&out) : 0;
    outfile_abandon(&out);
    return problem ? fail_output(e, name, problem) : SLUICE_OK;
}

/* Flushes stdout; returns 0 or an errno. Call once: a second fflush after a failed one succeeds. */
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
