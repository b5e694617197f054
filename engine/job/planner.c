#include "engine/job/planner.h"

#include "engine/job/candidates.h"
#include "engine/job/plan_file.h"
#include "engine/machine/device.h"
#include "engine/machine/machine.h"

enum status planner_choose(struct job *job, struct error *e) {
    uint64_t ram = (uint64_t)job->request.max_ram_bytes, vram = (uint64_t)job->request.max_vram_bytes;
    int chosen = plan_choose((const struct run_need *const *)job->candidates.needs, job->candidates.n,
                             ram ? ram : machine_default_budget(),
                             vram ? vram : device_default_budget(job->device), &job->plan);
    return candidates_lay_out(job, job->candidates.choices[chosen].groups,
                              job->candidates.choices[chosen].tiled, e);
}

enum status planner_decide(struct job *job, struct error *e) {
    return job->request.plan ? plan_file_read(job, job->request.plan, e) : planner_choose(job, e);
}
