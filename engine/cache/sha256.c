#include "engine/cache/sha256.h"

char *sha256_end(struct sha256_ctx *sha, char *out) {
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(sha, sizeof digest, digest);
    for (int i = 0; i < SHA256_DIGEST_SIZE; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[2 * SHA256_DIGEST_SIZE] = 0;
    return out;
}

char *sha256_hex(const void *bytes, size_t n, char *out) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, n, bytes);
    return sha256_end(&sha, out);
}
