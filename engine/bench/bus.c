/* `sluice bench bus`: measures transfer rates between disk and host memory, within host memory, and between
 * host memory and the first GPU.
 *
 * Invariants: the temporary file is unlinked as soon as it is open, so no crash leaves it behind. A rate that
 * came from the page cache is marked and never saved as the disk's rate. */
#include "engine/base/machine_limits.h"
#include "engine/bench/bench.h"
#include "kernels/cuda/cuda.h"
#include "loaders/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { READERS = 4, LARGEST = 32 << 20, FILE_BYTES = 256 << 20, COPIERS = 4 };
#define BUFFER_BYTES ((uint64_t)READERS * LARGEST)

/* Sizes of disk reads in bytes: from reads that are too small to keep a disk busy, up to a whole block. */
static const int64_t piece_bytes[] = {64 << 10, 1 << 20, 8 << 20, 32 << 20};
enum { N_PIECES = sizeof piece_bytes / sizeof *piece_bytes };
/* Bytes of the smallest reads whose rate is saved; rates of smaller reads are only shown, because blocks are
 * read in larger pieces. */
enum { SAVED_FROM = 8 << 20 };

struct bus {
    struct bench *bench;
    char *buffer; /* read and copy buffer of BUFFER_BYTES */
    int file;
    int64_t file_bytes;
    double done;    /* progress of the benchmark, 0 to 1 */
    json_t *absent; /* reason why the report has no rows for an existing GPU; or NULL */
    json_t *pinned; /* JSON member: how much host memory could be pinned; or NULL */
};

/* One measurement: threads read or copy pieces until all pieces are done or the time is up. */
struct mover {
    struct sys *sys;
    int file; /* file to read; negative: copy the first half of the buffer to the second half */
    char *buffer;
    uint64_t buffer_bytes;
    int64_t piece, pieces;
    double deadline;
    _Atomic int64_t *next, *moved;
    _Atomic int *problem; /* errno of a failed read */
};

/* Thread main: reads pieces of the file, or copies within the buffer. */
static void move(void *argument) {
    struct mover *m = argument;
    uint64_t half = m->buffer_bytes / 2, at = 0, piece = (uint64_t)m->piece;
    while (m->file < 0 && m->sys->clock(m->sys) < m->deadline) {
        memcpy(m->buffer + half + at, m->buffer + at, piece);
        at = at + 2 * piece <= half ? at + piece : 0;
        atomic_fetch_add(m->moved, m->piece);
    }
    int64_t i;
    while (m->file >= 0 && (i = atomic_fetch_add(m->next, 1)) < m->pieces &&
           m->sys->clock(m->sys) < m->deadline) {
        for (int64_t done = 0; done < m->piece;) {
            int64_t n = sys_read_at(m->sys, m->file, m->buffer + done, (size_t)(m->piece - done),
                                    i * m->piece + done);
            if (n <= 0) atomic_store(m->problem, n < 0 ? (int)-n : EIO);
            if (n <= 0) return;
            done += n;
        }
        atomic_fetch_add(m->moved, m->piece);
    }
}

/* Returns the bytes per second that n threads move, each in its own part of the buffer; 0 with *problem set
 * on failure. */
static double measure_movers(struct bus *bus, int n, int file, int64_t piece, double seconds, int *problem) {
    struct sys *sys = &bus->bench->sys;
    struct sys_thread *thread[READERS > COPIERS ? READERS : COPIERS] = {0};
    struct mover mover[READERS > COPIERS ? READERS : COPIERS];
    _Atomic int64_t next = 0, moved = 0;
    _Atomic int failed = 0;
    double began = sys->clock(sys);
    uint64_t part = BUFFER_BYTES / (uint64_t)n;
    for (int i = 0; i < n; i++) {
        mover[i] = (struct mover){sys,
                                  file,
                                  bus->buffer + (uint64_t)i * part,
                                  part,
                                  piece,
                                  bus->file_bytes / piece,
                                  began + seconds,
                                  &next,
                                  &moved,
                                  &failed};
        int status = sys->thread_start(sys, &thread[i], move, &mover[i]);
        if (status < 0) atomic_store(&failed, -status);
    }
    for (int i = 0; i < n; i++) sys->thread_join(sys, thread[i]);
    double spent = sys->clock(sys) - began;
    *problem = failed;
    return failed || spent <= 0 ? 0 : (double)moved / spent;
}

/* Returns the share of the file's pages in the page cache; 1 if unknown. */
static double cached_share(int file, int64_t bytes) {
    enum { PAGE = 4096, PAGES = 4096 };
    unsigned char in_core[PAGES];
    int64_t pages = bytes / PAGE, n = 0;
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return 1;
    for (int64_t at = 0; at < pages; at += PAGES) {
        int64_t some = pages - at < PAGES ? pages - at : PAGES;
        if (mincore((char *)map + at * PAGE, (size_t)(some * PAGE), in_core)) n += some;
        for (int64_t i = 0; i < some; i++) n += in_core[i] & 1;
    }
    munmap(map, (size_t)bytes);
    return pages ? (double)n / (double)pages : 1;
}

static bool set_direct(int file, bool direct) {
    int flags = fcntl(file, F_GETFL);
    return flags >= 0 && !fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

static void bus_add_row(struct bus *bus, const char *path, int64_t piece, double rate, const char *key,
                        json_t *how, int threads) {
    json_t *row = json_pack("{s:s, s:I, s:f, s:i}", "path", path, "bytes", (json_int_t)piece,
                            "gbytes_per_second", rate / 1e9, "threads", threads);
    if (key) json_put(row, key, how);
    json_push(bus->bench->rows, row);
}

static enum status bus_unreadable(struct error *e, const char *path, int problem) {
    return error_set(e, problem == ENOENT ? MISSING : IO, "cannot read the test file" WHERE "%s" FOUND "%s",
                     path, strerror(problem));
}

/* Measures disk reads of one size, with or without O_DIRECT. Adds no row to the report if O_DIRECT is not
 * supported. */
static enum status measure_reads(struct bus *bus, int64_t piece, bool direct, struct error *e) {
    const char *name = bus->bench->options.file;
    if (direct && !set_direct(bus->file, true)) return OK;
    posix_fadvise(bus->file, 0, 0, POSIX_FADV_DONTNEED);
    bool cached = !direct && cached_share(bus->file, bus->file_bytes) > 0.1;
    int problem;
    double rate = measure_movers(bus, READERS, bus->file, piece, 1, &problem);
    set_direct(bus->file, false);
    if (direct && problem == EINVAL) return OK;
    if (problem) return bus_unreadable(e, name ? name : "the temporary test file", problem);
    bus_add_row(bus, "disk", piece, rate, "page_cache",
                json_string(direct   ? "bypassed"
                            : cached ? "kept"
                                     : "dropped"),
                READERS);
    bool counts = piece >= SAVED_FROM || bus->file_bytes < SAVED_FROM;
    if (!cached && counts && rate > bus->bench->measured.disk) bus->bench->measured.disk = rate;
    return OK;
}

static enum status unwritable(struct error *e, const char *folder, int problem) {
    return error_set(e, OUTPUT, "cannot write the test file" WHERE "%s" FOUND "%s", folder,
                     strerror(-problem));
}

static enum status bus_write_file(struct bus *bus, int out, const char *folder, struct error *e) {
    enum { PART = 4 << 20 };
    struct sys *sys = &bus->bench->sys;
    for (int64_t at = 0; at < FILE_BYTES;) {
        double fraction = 0.1 * (double)at / FILE_BYTES;
        if (bench_go_on(bus->bench, fraction, "writing the test file", e) != OK) return e->code;
        const char *from = bus->buffer + at % (int64_t)BUFFER_BYTES;
        int64_t n = sys_write(sys, out, from, (size_t)(PART - at % PART));
        if (n <= 0) return unwritable(e, folder, n < 0 ? (int)n : -ENOSPC);
        at += n;
    }
    int problem = sys->flush(sys, out);
    return problem ? unwritable(e, folder, problem) : OK;
}

/* Creates a temporary file that is unlinked before a byte is written. */
static enum status make_file(struct bus *bus, struct error *e) {
    struct sys *sys = &bus->bench->sys;
    const char *folder = bus->bench->options.folder ? bus->bench->options.folder : ".";
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/sluice-bench.tmp.%ld", folder, (long)getpid());
    if (length >= (int)sizeof path) return unwritable(e, folder, -ENAMETOOLONG);
    int out = sys->create(sys, path);
    if (out < 0) return unwritable(e, folder, out);
    bus->file = sys->open(sys, path);
    sys->remove(sys, path);
    if (bus->file < 0)
        unwritable(e, folder, bus->file);
    else
        bus_write_file(bus, out, folder, e);
    sys->close(sys, out);
    bus->file_bytes = FILE_BYTES;
    return e->code;
}

static enum status bus_open_file(struct bus *bus, const char *path, struct error *e) {
    struct sys *sys = &bus->bench->sys;
    struct file_identity identity;
    bus->file = sys->open(sys, path);
    int problem = bus->file < 0 ? bus->file : sys->identify(sys, bus->file, &identity);
    if (problem < 0) return bus_unreadable(e, path, -problem);
    if (!identity.regular || identity.bytes < piece_bytes[0]) {
        return error_set(e, LIMIT,
                         "the test file is too small or not a regular file" WHERE "%s" FOUND
                         "%lld bytes%s" EXPECTED "a file of at least %lld bytes",
                         path, (long long)identity.bytes, identity.regular ? "" : ", not regular",
                         (long long)piece_bytes[0]);
    }
    /* Only the start of a large file is read, because reading more would only repeat the measurement. */
    bus->file_bytes = identity.bytes < 4ll * FILE_BYTES ? identity.bytes : 4ll * FILE_BYTES;
    return OK;
}

static enum status measure_copies(struct bus *bus, int threads, struct error *e) {
    struct bench *bench = bus->bench;
    for (int i = 0; i < N_PIECES; i++) {
        if (2 * piece_bytes[i] * threads > (int64_t)BUFFER_BYTES) break;
        if (bench_go_on(bench, bus->done += 0.01, "copies within host memory", e) != OK) return e->code;
        int problem;
        double rate = measure_movers(bus, threads, -1, piece_bytes[i], 0.2, &problem);
        if (problem) return error_set(e, MEMORY, "cannot start a thread");
        bus_add_row(bus, "host_copy", piece_bytes[i], rate, NULL, NULL, threads);
        if (piece_bytes[i] >= SAVED_FROM && rate > bench->measured.host_copy)
            bench->measured.host_copy = rate;
    }
    return e->code;
}

/* Measures a copy path between host and GPU; raises *best to its best rate. */
static enum status measure_path(struct bus *bus, enum cuda_path path, double *best, struct error *e) {
    for (int i = 0; i < N_PIECES; i++) {
        double rate;
        if (bench_go_on(bus->bench, 0.98, "copies between host and GPU", e) != OK ||
            cuda_bus_rate(&bus->bench->sys, 0, path, (uint64_t)piece_bytes[i], &rate, e) != OK)
            return e->code;
        bus_add_row(bus, cuda_path_name(path), piece_bytes[i], rate, NULL, NULL, 1);
        if (rate > *best) *best = rate;
    }
    return OK;
}

/* Measures the GPU, and finds by trial how much of the free memory can be pinned, up to 16 GiB. An unusable
 * GPU is not an error: the report then has the reason instead of the GPU's rows. */
static enum status measure_gpu(struct bus *bus, struct error *e) {
    static const enum cuda_path paths[] = {CUDA_H2D_PINNED, CUDA_H2D_PAGEABLE, CUDA_D2H_PINNED};
    static const uint64_t most_pinned = (uint64_t)16 << 30;
    struct bench *bench = bus->bench;
    char line[1024];
    struct error problem = {0};
    double unused = 0;
    if (cuda_count(line, sizeof line) < 1) return OK;
    if (cuda_bus_rate(&bench->sys, 0, CUDA_H2D_PINNED, (uint64_t)piece_bytes[0], &unused, &problem) != OK) {
        bus->absent =
            json_pack("[{s:s, s:s}]", "name", "cuda:0", "reason", error_line(&problem, line, sizeof line));
        json_count_failure(!bus->absent);
        return OK;
    }
    for (int i = 0; i < 3 && e->code == OK; i++)
        measure_path(bus, paths[i], paths[i] == CUDA_H2D_PINNED ? &bench->measured.h2d : &unused, e);
    if (e->code != OK) return e->code;
    uint64_t tried = free_memory_bytes("") / 2, pinnable;
    if (tried > most_pinned || !tried) tried = most_pinned;
    if (bench_go_on(bench, 0.99, "pinning", e) != OK || cuda_pinnable(0, tried, &pinnable, e) != OK)
        return e->code;
    bus->pinned = json_pack("{s:I, s:I}", "tried_bytes", (json_int_t)tried, "bytes", (json_int_t)pinnable);
    json_count_failure(!bus->pinned);
    return OK;
}

/* A disk or PCIe link. Limits are geometric means of the rates that adjacent links reach in practice, so a 15
 * % deviation does not change the name. */
struct link {
    double below_gbytes; /* upper limit of the rates that the link reaches, in GB/s */
    const char *name;
};

/* Read rates of disks in GB/s: hard disks 0.1 to 0.28, SATA up to 0.55, NVMe drives up to 3.5, 7 and 14 by
 * PCIe generation. Anything faster comes from memory. */
static const struct link disk_links[] = {{0.3, "hard disk"}, {0.7, "SATA SSD"}, {4.2, "NVMe Gen3"},
                                         {8, "NVMe Gen4"},   {16, "NVMe Gen5"}, {1e300, "page cache"}};

/* GB/s reached in practice with pinned memory: Gen3 x4 3.1, x8 6.2, x16 12.4; each generation doubles the
 * rates, so a rate cannot distinguish x16 of one generation from x8 of the next. */
static const struct link pinned_links[] = {{1.1, "PCIe Gen3 x1 or narrower"},
                                           {2.2, "PCIe Gen3 x2"},
                                           {4.4, "PCIe Gen3 x4"},
                                           {9, "PCIe Gen3 x8 or Gen4 x4"},
                                           {17.5, "PCIe Gen3 x16 or Gen4 x8"},
                                           {36, "PCIe Gen4 x16 or Gen5 x8"},
                                           {80, "PCIe Gen5 x16"},
                                           {1e300, "a link wider than PCIe"}};

static const char *link_name(const struct link *link, double bytes_per_second) {
    while (!(bytes_per_second / 1e9 < link->below_gbytes) && link->below_gbytes < 1e300) link++;
    return link->name;
}

const char *link_of_disk(double bytes_per_second) {
    return link_name(disk_links, bytes_per_second);
}

const char *link_of_pinned(double bytes_per_second) {
    return link_name(pinned_links, bytes_per_second);
}

static enum status measure_all(struct bus *bus, struct error *e) {
    struct bench *bench = bus->bench;
    const char *file = bench->options.file;
    bus->buffer = bench->sys.map(&bench->sys, LINE_STORE, BUFFER_BYTES);
    if (!bus->buffer) return error_set(e, MEMORY, "no memory for a buffer of 128 MiB");
    uint64_t *words = (uint64_t *)(void *)bus->buffer, x = 88172645463325252u;
    for (uint64_t i = 0; i < BUFFER_BYTES / sizeof *words; i++) { /* xorshift: incompressible bytes */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
    bus->done = 0.1;
    if ((file ? bus_open_file(bus, file, e) : make_file(bus, e)) != OK) return e->code;
    for (int i = 0; i < N_PIECES && piece_bytes[i] <= bus->file_bytes; i++)
        for (int direct = 1; direct >= 0; direct--) {
            bus->done += 0.1;
            if (bench_go_on(bench, bus->done, "disk", e) == OK) measure_reads(bus, piece_bytes[i], direct, e);
        }
    if (e->code != OK) return e->code;
    int threads = bench->threads < COPIERS ? bench->threads : COPIERS;
    if (measure_copies(bus, 1, e) == OK && threads > 1) measure_copies(bus, threads, e);
    return e->code == OK ? measure_gpu(bus, e) : e->code;
}

int sluice_bench_bus(const struct sluice_bench_options *options, char **json, char **rates,
                     struct sluice_error *error) {
    struct error e = {0};
    struct bench bench;
    struct bus bus = {.bench = &bench, .file = -1};
    json_t *rest = NULL;
    if (bench_start(&bench, options, &e) == OK) measure_all(&bus, &e);
    if (bus.file >= 0) bench.sys.close(&bench.sys, bus.file);
    if (bus.buffer) bench.sys.unmap(&bench.sys, LINE_STORE, bus.buffer, BUFFER_BYTES);
    if (e.code == OK) {
        double disk = bench.measured.disk, pinned = bench.measured.h2d;
        json_t *names = json_pack("{s:s}", "disk", disk > 0 ? link_of_disk(disk) : "page cache");
        if (pinned > 0) json_put(names, "h2d_pinned", json_string(link_of_pinned(pinned)));
        rest = json_pack("{s:o, s:O*, s:O*}", "links", names, "absent", bus.absent, "pinned", bus.pinned);
    }
    json_count_failure(!rest);
    json_decref(bus.absent);
    json_decref(bus.pinned);
    return bench_finish(&bench, rest, 0, json, rates, &e, error);
}
