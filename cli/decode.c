/* `sluice decode`: a job that starts from a saved latent. */
#include "cli/commands.h"
#include "cli/job.h"

int decode_command(const struct args *args, struct sluice_error *e) {
    return job_run(args, args->operands[0], e);
}
