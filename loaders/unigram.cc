// SentencePiece behind C: see unigram.h.
#include "loaders/unigram.h"

#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include <sentencepiece_processor.h>

struct unigram {
    sentencepiece::SentencePieceProcessor processor;
};

extern "C" enum unigram_result unigram_open(const void *proto, size_t bytes, struct unigram **out, char *why,
                                            size_t why_bytes) try {
    *out = nullptr;
    snprintf(why, why_bytes, "an exception");
    auto made = std::make_unique<unigram>();
    auto status = made->processor.LoadFromSerializedProto({static_cast<const char *>(proto), bytes});
    if (!status.ok()) {
        snprintf(why, why_bytes, "%s", status.error_message());
        return UNIGRAM_REFUSED;
    }
    *out = made.release();
    return UNIGRAM_OK;
} catch (const std::bad_alloc &) {
    return UNIGRAM_NO_MEMORY;
} catch (...) {
    return UNIGRAM_REFUSED;
}

extern "C" void unigram_close(struct unigram *unigram) {
    delete unigram;
}

extern "C" enum unigram_result unigram_encode(const struct unigram *unigram, const char *word, size_t bytes,
                                              int32_t *ids, size_t *n_ids) try {
    std::vector<int> found;
    *n_ids = 0;
    auto status = unigram->processor.Encode({word, bytes}, &found);
    if (!status.ok() || found.size() > bytes) return UNIGRAM_REFUSED;
    for (int id : found) ids[(*n_ids)++] = id;
    return UNIGRAM_OK;
} catch (const std::bad_alloc &) {
    return UNIGRAM_NO_MEMORY;
} catch (...) {
    return UNIGRAM_REFUSED;
}
