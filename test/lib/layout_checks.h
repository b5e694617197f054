/* Checks of file layouts: models opened from files in many layouts give the same images; invalid files are
 * refused with a clear error. */
#ifndef SLUICE_TEST_LAYOUT_CHECKS_H
#define SLUICE_TEST_LAYOUT_CHECKS_H

#include "test/lib/model_paths.h"
#include "test/lib/tensor_set.h"

typedef struct model_paths options;

extern struct result expected_result; /* result of expected_request that every layout must give */
extern struct sluice_request expected_request;

/* Log of the session that the last call of rig_open_paths opened. */
enum { LOG_BYTES = 4096 };
extern char captured_log[LOG_BYTES];

bool rig_open_paths(struct rig *rig, options from, const char *what);

/* Runs expected_request with all weights resident, then with the least budget; expects expected_result. */
void expect_same_result(options from, const char *what);

/* Expects that opening fails with the given codes and an error line that contains all of `words`, and that no
 * memory leaks. */
void expect_refused_as(options from, enum status code, int exit_code, const char *what,
                       const char *const *words);

void expect_refused(options from, enum status code, const char *what, const char *const *words);

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

json_t *inspect(options from);

size_t count(json_t *root, const char *key);

void copy_file(const char *from, const char *to);

/* Fails the n-th allocation while the model is opened, for growing n; expects MEMORY each time, and no
 * leak. */
void expect_allocation_failures(options from);

#endif
