/* Shows images on terminals that can display them: kitty's graphics protocol (kitty, Ghostty) or iTerm2's
 * inline images (iTerm2, WezTerm). The terminal is recognised by environment variables, not by a query,
 * because the answer to a query would arrive on stdin. Inside tmux and screen no image is shown. */
#ifndef SLUICE_CLI_TERMINAL_H
#define SLUICE_CLI_TERMINAL_H

#include "engine/sluice.h"

#include <stdbool.h>

/* Upper bound of the memory for showing an image of any size. */
enum { TERMINAL_BYTES = 3 << 20 };

struct terminal {
    bool shown;     /* an image has been shown */
    unsigned notes; /* message_count() at the previous image, which is replaced if the count is unchanged */
    int rows;       /* height of the image in text rows */
};

/* True if stderr is a terminal that can display images. */
bool terminal_shows_pictures(void);
/* Shows an image above the live progress line, at most 12 text rows high. Replaces the previous image if no
 * message was printed since. Shows nothing if out of memory. */
void terminal_show(struct terminal *terminal, const struct sluice_preview *preview);

#endif
