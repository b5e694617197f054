/* Jansson's memory, watched: see json.h.
 *
 * Jansson 2.14 goes on where it has no memory: a parser's text lacks a character, and then a string without
 * its quote is copied beyond its end; a member is not added to an object. Only its allocator knows. So a
 * parser is left at once, and what it had built is lost with it; who builds a document looks afterwards. */
#include "loaders/json.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>

static json_malloc_t inner_alloc;
static _Thread_local unsigned losses;
static _Thread_local jmp_buf *parser; /* where to go when it lacks memory; NULL: none is at work */

static void *watched_alloc(size_t bytes) {
    void *memory = inner_alloc(bytes);
    if (memory) return memory;
    losses++;
    if (parser) longjmp(*parser, 1);
    return NULL;
}

/* Whoever chose an allocator before us keeps it. */
static void install(void) {
    json_free_t release;
    json_get_alloc_funcs(&inner_alloc, &release);
    json_set_alloc_funcs(watched_alloc, release);
}

unsigned json_losses(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    return losses;
}

bool json_load_watched(const char *text, size_t bytes, size_t flags, json_t **root, json_error_t *failure) {
    jmp_buf here;
    json_losses();
    *root = NULL;
    if (setjmp(here)) {
        parser = NULL;
        return false;
    }
    parser = &here;
    json_t *loaded = json_loadb(text, bytes, flags, failure);
    parser = NULL;
    *root = loaded;
    return true;
}

char *json_hand_out(json_t *root, size_t flags, unsigned losses_before) {
    char *text = root ? json_dumps(root, flags) : NULL;
    json_decref(root);
    if (losses == losses_before) return text;
    free(text);
    return NULL;
}
