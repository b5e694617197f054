/* `sluice decode`: a run that starts from a saved latent. */
#include "cli/commands.h"
#include "cli/drawing.h"

int decode_command(const struct args *args, struct sluice_error *e) {
    return drawing_run(args, args->operands[0], e);
}
