/* SHA-256 hashes as hexadecimal text. */
#ifndef SLUICE_CACHE_SHA256_H
#define SLUICE_CACHE_SHA256_H

#include <nettle/sha2.h>

enum { SHA256_HEX = 65 };

/* Hexadecimal SHA-256 of n bytes; out has SHA256_HEX bytes. Returns out. */
char *sha256_hex(const void *bytes, size_t n, char *out);
/* Ends a SHA-256 over several pieces; writes it in hexadecimal to out (SHA256_HEX bytes) and returns out. */
char *sha256_end(struct sha256_ctx *sha, char *out);

#endif
