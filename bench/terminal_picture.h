/* A PNG file shown in the terminal, by whatever the terminal understands. */
#ifndef SLUICE_BENCH_TERMINAL_PICTURE_H
#define SLUICE_BENCH_TERMINAL_PICTURE_H

enum terminal_kind {
    TERMINAL_NONE, /* not a terminal, or a dumb one */
    TERMINAL_KITTY,
    TERMINAL_ITERM,
    TERMINAL_SIXEL,
    TERMINAL_TRUECOLOR, /* half blocks, 24 bit */
    TERMINAL_256,       /* half blocks, 6x6x6 colours */
};

/* What stdout is, from the environment: asking the terminal would need an answer, and some never give one. */
enum terminal_kind terminal_kind(void);

/* Shows it on stdout, at most as wide as the terminal; nothing for TERMINAL_NONE. NULL, or what went wrong.
 */
const char *terminal_picture_show(const char *png_file, enum terminal_kind kind);

#endif
