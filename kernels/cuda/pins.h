/* Where pinned host memory begins and ends.
 *
 * The driver refuses a copy out of memory that is pinned in part (CUDA_ERROR_INVALID_VALUE), and somebody may
 * be pinning while others copy. So copies are cut wherever a pin begins or ends, from before it is made until
 * after it is gone; then it does not matter when exactly the driver knows of it. Any thread may call these.
 */
#ifndef SLUICE_CUDA_PINS_H
#define SLUICE_CUDA_PINS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At once. Room for a pool of 128 GiB that is pinned in parts of 64 MiB. */
enum { PINS = 2048 };

struct pin {
    uintptr_t from, to; /* both 0: a free place */
};

struct pins {
    pthread_mutex_t lock; /* guards what follows */
    int n;                /* places behind these are free */
    struct pin pin[PINS];
};

void pins_init(struct pins *pins);
void pins_destroy(struct pins *pins);
/* False if there are too many. */
bool pins_add(struct pins *pins, const void *memory, size_t bytes);
/* That begins there. */
void pins_remove(struct pins *pins, const void *memory);
/* How many of these bytes come before the next beginning or end. */
size_t pins_cut(struct pins *pins, const void *memory, size_t bytes);

#endif
