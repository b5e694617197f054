/* WIDE: compiles a function for several generations of x86-64. */
#ifndef SLUICE_BASE_WIDE_H
#define SLUICE_BASE_WIDE_H

/* Put before a static function. Compiles it for three generations of x86-64; the dynamic loader picks one
 * version at program start. A WIDE function is not inlined, so callers call it once per row, not per element.
 * ThreadSanitizer cannot run the selection. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define WIDE
#endif

#endif
