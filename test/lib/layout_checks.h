/* Checks of layouts: models opened from files in many forms give the same pictures; what is wrong is refused
 * in words. */
#ifndef SLUICE_TEST_LAYOUT_CHECKS_H
#define SLUICE_TEST_LAYOUT_CHECKS_H

#include "test/lib/model_paths.h"
#include "test/lib/tensor_set.h"

typedef struct model_paths options;

extern struct result expected_result;                 /* what every layout must give */
extern struct sluice_request expected_request; /* for this */

/* ---- runs ---- */

/* What the last session said. */
enum { LOG_BYTES = 4096 };
extern char captured_log[LOG_BYTES];

bool rig_open_paths(struct rig *rig, options from, const char *what);

/* Everything resident, and the least that the plan names. */
void expect_same_result(options from, const char *what);

/* It is refused with this code and exit class, in a line that holds each of these words, and nothing is left
 * behind. */
void expect_refused_as(options from, enum status code, int exit_code, const char *what, const char *const *words);

void expect_refused(options from, enum status code, const char *what, const char *const *words);

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

json_t *inspect(options from);

size_t count(json_t *root, const char *key);

void copy_file(const char *from, const char *to);

/* The n-th allocation fails while a model opens: an error, and nothing is left. */
void expect_allocation_failures(options from);

#endif
