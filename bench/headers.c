/* Measures how long it takes to open the headers of files of realistic size: 12 GB of weights in safetensors
 * and in GGUF, and a GGUF header with a tokenizer of Qwen's size. The files are sparse; their weights are
 * never written or read.
 *
 * Argument: a folder for the files (default /tmp). Prints the median time from the page cache and after
 * dropping the file's cached pages. */
#include "loaders/gguf/gguf.h"
#include "loaders/loaders.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCKS = 57, PER_BLOCK = 14, N = BLOCKS * PER_BLOCK, ROUNDS = 9, TOKENS = 151936, HOLE_BYTES = 4096 };

static char names[N][64];
static struct named_tensor tensors[N];

/* Gives 798 matrices of one shape names as in Flux. */
static void name_tensors(enum dtype dtype) {
    static const int32_t dim[2] = {3072, 2560};
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "double_blocks.%d.img_attn.part_%d.weight", i / PER_BLOCK,
                 i % PER_BLOCK);
        tensors[i] = (struct named_tensor){names[i], tensor_make(NULL, dtype, 2, dim)};
    }
}

static enum status make_zeros(void *user, int i, void *to, uint64_t bytes, struct error *e) {
    (void)user, (void)i, (void)to, (void)bytes;
    return e->code;
}

static int64_t (*write_bytes)(struct sys *sys, int file, const void *from, size_t bytes);

/* Writes the test file's blocks of zeros as holes, without data on the disk. */
static int64_t write_sparsely(struct sys *sys, int file, const void *from, size_t bytes) {
    const char *at = from;
    if (bytes < HOLE_BYTES || at[0] || memcmp(at, at + 1, HOLE_BYTES - 1))
        return write_bytes(sys, file, from, bytes);
    off_t end = lseek(file, (off_t)bytes, SEEK_CUR);
    return end < 0 || ftruncate(file, end) ? -1 : (int64_t)bytes;
}

typedef enum status opener(struct sys *sys, const char *path, struct tensor_index *index, struct error *e);

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void drop_pages(const char *path) {
    int file = open(path, O_RDONLY);
    if (file < 0) return;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

static double median_of(struct sys *sys, opener *open_index, const char *path, bool cold, struct error *e) {
    double seconds[ROUNDS] = {0};
    for (int i = 0; i < ROUNDS && e->code == OK; i++) {
        struct tensor_index index;
        if (cold) drop_pages(path);
        double began = sys->clock(sys);
        if (open_index(sys, path, &index, e) == OK) index_destroy(&index);
        seconds[i] = sys->clock(sys) - began;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    return seconds[ROUNDS / 2];
}

static void report(struct sys *sys, opener *open_index, const char *what, const char *path, struct error *e) {
    struct stat s = {0};
    if (e->code != OK) return;
    double warm = median_of(sys, open_index, path, false, e),
           cold = median_of(sys, open_index, path, true, e);
    stat(path, &s);
    printf("%-34s %8.2f GB  cached %7.2f ms  uncached %7.2f ms\n", what, (double)s.st_size / 1e9, 1e3 * warm,
           1e3 * cold);
    remove(path);
}

static void put_number(FILE *file, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++) fputc((int)(number >> 8 * i & 255), file);
}

static void put_text(FILE *file, const char *text) {
    put_number(file, strlen(text), 8);
    fputs(text, file);
}

static void put_texts(FILE *file, const char *key, const char *format) {
    char text[32];
    put_text(file, key);
    put_number(file, GGUF_ARRAY, 4);
    put_number(file, GGUF_STRING, 4);
    put_number(file, TOKENS, 8);
    for (int i = 0; i < TOKENS; i++) {
        snprintf(text, sizeof text, format, i);
        put_text(file, text);
    }
}

static void write_tokenizer(const char *path, struct error *e) {
    FILE *file = fopen(path, "wb");
    if (!file) {
        error_set(e, OUTPUT, "cannot write %s", path);
        return;
    }
    fputs("GGUF", file);
    put_number(file, 3, 4);
    put_number(file, 0, 8);
    put_number(file, 2, 8);
    put_texts(file, "tokenizer.ggml.tokens", "t%06d");
    put_texts(file, "tokenizer.ggml.merges", "t%06d x");
    fclose(file);
}

int main(int n_arguments, char **arguments) {
    const char *folder = n_arguments > 1 ? arguments[1] : "/tmp";
    char path[4096], line[1024];
    struct error e = {0};
    struct sys sys;
    sys_init_machine(&sys);
    write_bytes = sys.write;
    sys.write = write_sparsely;
    const struct tensor_maker zeros = {NULL, make_zeros};
    const struct gguf_metadata metadata = {
        .key = "general.architecture", .kind = GGUF_STRING, .text = "flux"};
    name_tensors(DTYPE_BF16);
    snprintf(path, sizeof path, "%s/sluice_headers_%ld", folder, (long)getpid());
    safetensors_write_content(&sys, path, &(struct safetensors_content){.tensors = tensors, .n_tensors = N},
                              &zeros, &e);
    report(&sys, safetensors_open, "safetensors, 798 bf16 tensors", path, &e);
    if (e.code == OK) gguf_write_made(&sys, path, &metadata, 1, tensors, N, &zeros, &e);
    report(&sys, gguf_open, "GGUF, 798 bf16 tensors", path, &e);
    if (e.code == OK) write_tokenizer(path, &e);
    report(&sys, gguf_open, "GGUF, tokenizer of 151,936 tokens", path, &e);
    if (e.code != OK) fprintf(stderr, "%s\n", error_line(&e, line, sizeof line));
    return e.code != OK;
}
