/* Shows a PNG file in the terminal with the best protocol that the terminal supports. */
#ifndef SLUICE_BENCH_TERMINAL_PICTURE_H
#define SLUICE_BENCH_TERMINAL_PICTURE_H

enum terminal_kind {
    TERMINAL_NONE, /* stdout is not a terminal, or TERM=dumb */
    TERMINAL_KITTY,
    TERMINAL_ITERM,
    TERMINAL_SIXEL,
    TERMINAL_TRUECOLOR, /* images as half-block characters in 24-bit colour */
    TERMINAL_256,       /* images as half-block characters in 6x6x6 colours */
};

/* Returns the kind of terminal on stdout, from environment variables; a terminal may never answer a
 * query. */
enum terminal_kind terminal_kind(void);

/* Prints the image to stdout, no wider than the terminal. Prints nothing for TERMINAL_NONE. Returns NULL or
 * an error message. */
const char *terminal_picture_show(const char *png_file, enum terminal_kind kind);

#endif
