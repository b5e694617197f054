/* Log lines before a session, plan or run begins: assumptions, options without effect, inputs that are
 * resized or cropped. */
#ifndef SLUICE_API_WARNINGS_H
#define SLUICE_API_WARNINGS_H

#include "engine/job/job.h"

/* `to`: the session's options, whose on_log callback receives the lines. requested_scale: the caller's
 * cfg_scale, which the job may have replaced. */
void warn_session(const struct sluice_session_options *to, const struct sluice_model *model,
                  const struct device *device);
void warn_plan(const struct sluice_session_options *to, const struct job *job);
void warn_run(const struct sluice_session_options *to, const struct job *job, double requested_scale);

#endif
