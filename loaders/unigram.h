/* SentencePiece's unigram model behind C: the most probable pieces of a word.
 *
 * Only unigram.cc is C++. No exception leaves it; what it allocates is the C++ library's, not ours. */
#ifndef SLUICE_LOADERS_UNIGRAM_H
#define SLUICE_LOADERS_UNIGRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct unigram;

enum unigram_result { UNIGRAM_OK, UNIGRAM_NO_MEMORY, UNIGRAM_REFUSED };

/* A model from a serialised ModelProto, which is not needed afterwards. REFUSED: why says what SentencePiece
 * said. */
enum unigram_result unigram_open(const void *proto, size_t bytes, struct unigram **unigram, char *why,
                                 size_t why_bytes);
void unigram_close(struct unigram *unigram);

/* The ids of a word, at most one per byte; usable from several threads. */
enum unigram_result unigram_encode(const struct unigram *unigram, const char *word, size_t bytes,
                                   int32_t *ids, size_t *n_ids);

#ifdef __cplusplus
}
#endif

#endif
