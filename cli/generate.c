/* `sluice generate`: a job without a latent. */
#include "cli/commands.h"
#include "cli/job.h"

int generate_command(const struct args *args, struct sluice_error *e) {
    return job_run(args, NULL, e);
}
