/* Pictures on a terminal that is known to show them, by what it says of itself in the environment: kitty's
 * graphics protocol (kitty, Ghostty) or iTerm2's inline images (iTerm2, WezTerm). Nothing is asked of the
 * terminal: its answer would come in through stdin. Within tmux and screen none is shown. */
#ifndef SLUICE_CLI_TERMINAL_H
#define SLUICE_CLI_TERMINAL_H

#include "engine/sluice.h"

#include <stdbool.h>

/* What showing one takes at most, of any size. */
enum { TERMINAL_BYTES = 3 << 20 };

struct terminal {
    bool there;     /* a picture has been shown */
    unsigned notes; /* said when it was: where none has been since, the next takes its place */
    int rows;       /* that it took */
};

/* Is stderr such a terminal? */
bool terminal_shows_pictures(void);
/* Above the live line, in place of the last one if nothing has been said since; made as small as a few rows
 * of text. Where there is no memory for it nothing is shown. */
void terminal_show(struct terminal *terminal, const struct sluice_preview *preview);

#endif
