/* Fuzzing targets: parsers on arbitrary bytes. test/fuzz/fuzz.c runs them under libFuzzer, test_corpus.c
 * replays the corpora.
 *
 * Files are buffers behind struct sys: nothing is written, and a sanitizer detects reads beyond their end.
 * After each input all memory must be released. Peak memory is at most 64 MiB beyond the input, and every
 * error must have a text. */
#ifndef SLUICE_TEST_FUZZ_TARGETS_H
#define SLUICE_TEST_FUZZ_TARGETS_H

#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_file {
    const char *ending; /* file name extension */
    const uint8_t *data;
    size_t bytes;
};

enum { FAKE_FILES_MAX = 8, FIRST_FAKE = 1000000 };

struct fake_disk {
    struct sys sys; /* first member, because code casts struct sys * to struct fake_disk * */
    struct fake_file files[FAKE_FILES_MAX];
    int n_files;
};

static inline int fake_open(struct sys *sys, const char *path) {
    struct fake_disk *disk = (struct fake_disk *)sys;
    size_t n = strlen(path);
    for (int i = 0; i < disk->n_files; i++) {
        size_t m = strlen(disk->files[i].ending);
        if (n >= m && !strcmp(path + n - m, disk->files[i].ending)) return FIRST_FAKE + i;
    }
    return -ENOENT;
}

static inline int fake_identify(struct sys *sys, int file, struct file_identity *identity) {
    struct fake_disk *disk = (struct fake_disk *)sys;
    *identity = (struct file_identity){.inode = (uint64_t)file, .regular = true};
    identity->bytes = (int64_t)disk->files[file - FIRST_FAKE].bytes;
    return 0;
}

static inline int64_t fake_read_at(struct sys *sys, int file, void *to, size_t bytes, int64_t offset) {
    const struct fake_file *f = &((struct fake_disk *)sys)->files[file - FIRST_FAKE];
    if (offset < 0) return -EINVAL;
    if ((uint64_t)offset >= f->bytes) return 0;
    size_t left = f->bytes - (size_t)offset, n = bytes < left ? bytes : left;
    memcpy(to, f->data + offset, n);
    return (int64_t)n;
}

static inline void fake_close(struct sys *sys, int file) {
    (void)sys, (void)file;
}

/* Replaces the reservation of address space by an allocation of exactly the requested size. */
static inline void *fake_reserve(struct sys *sys, size_t bytes) {
    return sys->alloc(sys, LINE_HOST, bytes);
}

static inline void fake_unreserve(struct sys *sys, void *memory, size_t bytes) {
    (void)bytes;
    sys->release(sys, memory);
}

static inline int fake_commit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)sys, (void)line, (void)memory, (void)bytes;
    return 0;
}

static inline void fake_decommit(struct sys *sys, enum memory_line line, void *memory, size_t bytes) {
    (void)sys, (void)line, (void)memory, (void)bytes;
}

static inline void fake_trim(struct sys *sys) {
    (void)sys;
}

static inline void fake_begin(struct fake_disk *disk) {
    *disk = (struct fake_disk){.n_files = 0};
    sys_init_machine(&disk->sys);
    disk->sys.open = fake_open, disk->sys.close = fake_close;
    disk->sys.identify = fake_identify, disk->sys.read_at = fake_read_at;
    disk->sys.reserve = fake_reserve, disk->sys.unreserve = fake_unreserve;
    disk->sys.commit = fake_commit, disk->sys.decommit = fake_decommit;
    disk->sys.trim = fake_trim;
}

static inline void fake_put(struct fake_disk *disk, const char *ending, const void *data, size_t bytes) {
    disk->files[disk->n_files++] = (struct fake_file){ending, data, bytes};
}

/* Aborts if memory is not released, peak memory is too high, or an error is INTERNAL or has no text. */
static inline void fake_end(struct fake_disk *disk, const struct error *e) {
    uint64_t bytes = 0;
    for (int i = 0; i < disk->n_files; i++) bytes += disk->files[i].bytes;
    struct memory_use use = sys_memory_use(&disk->sys);
    const char *wrong = use.live_bytes[LINE_HOST] ? "memory is lost"
                        : (uint64_t)use.peak_bytes[LINE_HOST] > bytes + ((uint64_t)64 << 20)
                            ? "too much memory"
                        : e->code != OK && !(e->what[0] && e->exit) ? "an error without words"
                        : e->code == INTERNAL                       ? "an internal error"
                                                                    : NULL;
    if (!wrong) return;
    fprintf(stderr, "%s: %s\n", wrong, e->what);
    abort();
}

/* Opens a split GGUF: the input is the first file, the second is valid. */
static inline void target_gguf(const uint8_t *data, size_t bytes) {
    static const char second[144] = "GGUF\3\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
                                    "\10\0\0\0\0\0\0\0split.no\2\0\0\0\1\0"
                                    "\13\0\0\0\0\0\0\0split.count\2\0\0\0\2\0"
                                    "\1\0\0\0\0\0\0\0b\1\0\0\0\4\0\0\0\0\0\0\0";
    struct fake_disk disk;
    struct tensor_index index;
    struct error e = {0};
    struct config config;
    fake_begin(&disk);
    fake_put(&disk, "x-00001-of-00002.gguf", data, bytes);
    fake_put(&disk, "x-00002-of-00002.gguf", second, sizeof second);
    if (gguf_open(&disk.sys, "x-00001-of-00002.gguf", &index, &e) == OK) {
        struct error unread = {0};
        if (index.config && config_parse(&disk.sys, "x.gguf", index.config, NULL, &config, &unread) == OK)
            config_destroy(&config);
        index_destroy(&index);
    }
    fake_end(&disk, &e);
}

static inline void open_component(struct fake_disk *disk, const char *path, struct error *e) {
    struct tensor_index index;
    if (component_open(&disk->sys, path, &index, e) == OK) {
        struct error quantised = {0};
        index_check_quantised(&index, &quantised);
        index_destroy(&index);
    }
    fake_end(disk, e);
}

/* Opens a safetensors file and pairs weights with scales. The path must exist; the file is not read. */
static inline void target_safetensors(const uint8_t *data, size_t bytes) {
    struct fake_disk disk;
    struct error e = {0};
    fake_begin(&disk);
    fake_put(&disk, "Makefile", data, bytes);
    open_component(&disk, "Makefile", &e);
}

/* Opens a shard index whose shards are valid. The path may be that of any JSON file. */
static inline void target_shards(const uint8_t *data, size_t bytes) {
    static const char
        one[] = "\x3c\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}     "
                "0123456789abcdef",
        two[] = "\x3c\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}      "
                "01234567";
    struct fake_disk disk;
    struct error e = {0};
    fake_begin(&disk);
    fake_put(&disk, ".json", data, bytes);
    fake_put(&disk, "one.safetensors", one, sizeof one - 1);
    fake_put(&disk, "two.safetensors", two, sizeof two - 1);
    open_component(&disk, "test/golden/bf16_linear.json", &e);
}

static inline void open_tokenizer(struct fake_disk *disk, const char *path) {
    static const char text[] =
        "A red fox's 12 caf\xc3\xa9s,\n\t<|im_start|> \xe2\x80\x94 e\xcc\x81\xf0\x9f\xa6\x8a</w>";
    struct error e = {0};
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int n;
    if (tokenizer_open(&disk->sys, path, &t, &e) == OK)
        tokenizer_encode(t, text, sizeof text - 1, &ids, &n, &e);
    disk->sys.release(&disk->sys, ids);
    tokenizer_close(t);
    fake_end(disk, &e);
}

/* Opens a tokenizer. The first byte selects the format: tokenizer.json, spiece.model, GGUF, or a folder,
 * whose files are separated by lines of one '%'. */
static inline void target_tokenizer(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"/vocab.json", "/merges.txt", "/tokenizer_config.json",
                                        "/added_tokens.json", "/special_tokens_map.json"};
    static const char *const alone[] = {"t/tokenizer.json", "t/spiece.model", "t/x.gguf"};
    struct fake_disk disk;
    fake_begin(&disk);
    if (!bytes) return;
    int kind = data[0] & 3;
    data++, bytes--;
    if (kind < 3) {
        fake_put(&disk, alone[kind], data, bytes);
        open_tokenizer(&disk, alone[kind]);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const uint8_t *end = i + 1 < sizeof names / sizeof *names ? memmem(data, bytes, "\n%\n", 3) : NULL;
        size_t n = end ? (size_t)(end - data) : bytes;
        fake_put(&disk, names[i], data, n);
        if (!end) break;
        data += n + 3, bytes -= n + 3;
    }
    open_tokenizer(&disk, "t");
}

static const struct target {
    const char *name;
    void (*run)(const uint8_t *data, size_t bytes);
} targets[] = {
    {"gguf", target_gguf},
    {"safetensors", target_safetensors},
    {"shards", target_shards},
    {"tokenizer", target_tokenizer},
};
enum { N_TARGETS = sizeof targets / sizeof *targets };

#endif
