/* For tests of `convert`: conversions with checked results, and the tensors of files as f32 numbers. */
#ifndef SLUICE_TEST_CONVERSIONS_H
#define SLUICE_TEST_CONVERSIONS_H

#include "engine/sluice_bench.h"
#include "test/lib/rig.h"

bool file_exists(const char *path);

/* Arguments of a conversion; lists end with NULL. */
struct convert_args {
    const char *inputs[4], *output, *type, *part;
    const char *rules[4];
    struct sluice_lora loras[2];
};

/* Arguments of a conversion of one file. */
#define ASK(input, output_, type_, ...)                                                                      \
    (&(struct convert_args){.inputs = {input}, .output = output_, .type = type_, ##__VA_ARGS__})

/* The simulated system of all conversions, which main initialises with fault_sys_init. */
extern struct fault_sys convert_sys;

enum status convert(const struct convert_args *args, struct error *e);

/* Checks that the conversion succeeds; returns the result of that check. */
bool expect_converted(const struct convert_args *args);

/* Expects that the conversion fails with the given code and with the given word in the message, and leaves no
 * files. */
void expect_not_converted(const struct convert_args *args, enum status code, const char *word);

/* Checks that convert_sys has no memory allocated and that no temporary file remains. */
void check_no_leak(const char *what);

struct opened {
    struct tensor_index index;
    struct sys machine;
};

/* Opens a file or folder, closed with index_destroy. Checks that it opens. */
bool open_weights(struct opened *o, const char *path);

int64_t entry_elements(const struct index_entry *entry);

/* Reads a tensor's values as f32; freed by the caller. */
float *numbers_of(const struct opened *o, const struct index_entry *entry);

#endif
