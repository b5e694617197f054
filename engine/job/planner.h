/* Decides the plan of a job: from a plan file (--plan), or the fastest plan under the budgets. */
#ifndef SLUICE_JOB_PLANNER_H
#define SLUICE_JOB_PLANNER_H

#include "engine/job/job.h"

/* Sets job->plan and lays the job out for it: the request's plan file if it has one, else a new plan for the
 * budgets. plan_check then checks whether the plan fits. Fails with META or JSON if the plan file is not a
 * plan, with BUDGET if it was made for another request, model or device. */
enum status planner_decide(struct job *job, struct error *e);
/* Sets job->plan to the fastest plan under the request's budgets, and lays the job out for it. */
enum status planner_choose(struct job *job, struct error *e);

#endif
