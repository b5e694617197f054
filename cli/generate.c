/* `sluice generate`: a run without a latent. */
#include "cli/commands.h"
#include "cli/drawing.h"

int generate_command(const struct args *args, struct sluice_error *e) {
    return drawing_run(args, NULL, e);
}
