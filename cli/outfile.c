/* A file that appears whole or not at all: see outfile.h. */
#include "cli/outfile.h"

#include "cli/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The handler's copies of the paths: filled before the flags go up, so that the handler never sees half of
 * one. */
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

void outfile_of_library(const char *name) {
    atomic_store(&library_pending, false);
    if (name && name_temporary(library_path, name)) atomic_store(&library_pending, true);
}

static int set_names(struct outfile *out, const char *name) {
    struct stat info;
    if (!name_temporary(out->temporary, name)) return ENAMETOOLONG;
    strcpy(out->name, name);
    out->renames = true;
    if (stat(name, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return EISDIR;
        out->renames = S_ISREG(info.st_mode);
    }
    return 0;
}

/* A leftover of a killed process with our number (containers count from 1) is removed; only this process may
 * own it. */
static int open_new(const char *path) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int file = open(path, flags, 0666);
    if (file < 0 && errno == EEXIST && unlink(path) == 0) file = open(path, flags, 0666);
    return file;
}

int outfile_open(struct outfile *out, const char *name, struct sluice_error *e) {
    out->file = NULL;
    int problem = set_names(out, name);
    if (problem) return fail_output(e, name, problem);
    if (out->renames) {
        strcpy(pending_path, out->temporary);
        atomic_store(&pending, true);
    }
    int file = out->renames ? open_new(out->temporary) : open(name, O_WRONLY | O_CLOEXEC);
    out->file = file < 0 ? NULL : fdopen(file, "wb");
    if (out->file) return SLUICE_OK;
    fail_output(e, name, errno);
    atomic_store(&pending, false);
    if (file >= 0) close(file);
    return e->code;
}

void outfile_abandon(struct outfile *out) {
    if (out->file) fclose(out->file);
    out->file = NULL;
    if (out->renames) unlink(out->temporary);
    atomic_store(&pending, false);
}

/* Where the name itself was made durable; file systems that cannot are no reason to fail. */
static void sync_folder(const char *name) {
    char folder[PATH_MAX];
    const char *slash = strrchr(name, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - name + 1) : 1, slash ? name : ".");
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) return;
    fsync(file);
    close(file);
}

static int finish_writing(struct outfile *out) {
    int problem = fflush(out->file) ? errno : 0;
    if (!problem && ferror(out->file)) problem = EIO;
    if (!problem && out->renames && fsync(fileno(out->file)) && errno != EINVAL) problem = errno;
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
    /* Opening a pipe would wait for its reader, and closing it would end it. */
    bool in_place = set_names(&out, name) == 0 && !out.renames;
    if (in_place) return access(name, W_OK) ? fail_output(e, name, errno) : SLUICE_OK;
    int status = outfile_open(&out, name, e);
    if (!status) outfile_abandon(&out);
    return status;
}

int outfile_flush_stdout(struct sluice_error *e) {
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout)) return SLUICE_OK;
    return fail_output(e, "stdout", errno ? errno : EIO);
}

int outfile_write_text(const char *name, const char *text, struct sluice_error *e) {
    struct outfile out;
    if (strcmp(name, "-") == 0) {
        puts(text);
        return outfile_flush_stdout(e);
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
