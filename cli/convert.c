/* `sluice convert`: the name is taken, the work is not done yet. */
#include "cli/commands.h"
#include "cli/fail.h"

int convert_command(const struct args *args, struct sluice_error *e) {
    fail(e, SLUICE_USAGE, "convert is not built yet");
    return fail_where(e, "sluice %s", args->command->name);
}
