/* Shared memory of a block, and asynchronous copies into shared memory. New shared memory is filled with
 * 0xFF.
 *
 * Under ASan every array of every block is a separate allocation of its exact size. Under TSan blocks
 * alternate among many memories, because reuse would look like a race. */
#include "blocks.h"

#include <stdlib.h>

static void *shared_take(worker *w, const void *site, size_t bytes, const char *name) {
    if (w->n_arrays == ARRAYS) refuse("kernel %s: more than %d shared arrays", w->now->name, ARRAYS);
    size_t used = (w->shared_used + 15) / 16 * 16;
    size_t limit = shared_limit(w->now->function) > SHARED_USUAL ? SHARED_MOST : SHARED_USUAL;
    if (used + bytes > limit)
        refuse("kernel %s: with array %s %zu bytes of shared memory, limit %zu", w->now->name, name,
               used + bytes, limit);
    shared_array *a = &w->arrays[w->n_arrays++];
    a->site = site;
    a->bytes = bytes;
    w->shared_used = used + bytes;
    if (WITH_ASAN) {
        /* Allocates the exact size, so that ASan guards the end of the array. */
        if (posix_memalign(&a->memory, 16, bytes ? bytes : 1)) refuse("no memory for shared arrays");
    } else
        a->memory = w->shared + w->n_blocks % SHARED_SLOTS * SHARED_SLOT + used;
    quiet_fill(a->memory, 0xFF, bytes);
    return a->memory;
}

void *emu_shared_array(const void *site, size_t bytes, const char *name) {
    worker *w = own;
    w->meets = true;
    for (int i = 0; i < w->n_arrays; i++)
        if (w->arrays[i].site == site) return w->arrays[i].memory;
    return shared_take(w, site, bytes, name);
}

void *emu_shared_dynamic(void) {
    static char site;
    return emu_shared_array(&site, own->now->shared_bytes, "SMEM_DYN");
}

void shared_forget(worker *w) {
    if (WITH_ASAN)
        for (int i = 0; i < w->n_arrays; i++) free(w->arrays[i].memory);
    w->n_arrays = 0;
    w->shared_used = 0;
}

void emu_async_copy(void *to, uint4 value, const char *file, int line) {
    thread *t = own->running;
    if (t->n_copies == ASYNC)
        refuse("kernel %s: more than %d pending copies of a thread", own->now->name, ASYNC);
    async_copy *c = &own->block->copies[t->self.number][(t->first_copy + t->n_copies++) % ASYNC];
    c->to = to;
    c->value = value;
    c->group = t->group;
    t->file = file, t->line = line;
}

void emu_async_commit(void) {
    own->running->group++;
}

bool emu_async_arrived(int n, void **to, uint4 *value) {
    thread *t = own->running;
    async_copy *c = &own->block->copies[t->self.number][t->first_copy];
    if (!t->n_copies || c->group >= t->group - n) return false;
    *to = c->to;
    *value = c->value;
    t->first_copy = (t->first_copy + 1) % ASYNC;
    t->n_copies--;
    return true;
}
