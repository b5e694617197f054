#include "engine/sample/sampler.h"

#include <stdio.h>
#include <string.h>

const struct sampler *const samplers[] = {&sampler_euler,
                                          &sampler_euler_a,
                                          &sampler_heun,
                                          &sampler_dpm2,
                                          &sampler_dpm2_a,
                                          &sampler_dpmpp_2s_a,
                                          &sampler_dpmpp_2m,
                                          &sampler_dpmpp_3m,
                                          &sampler_dpmpp_2m_sde,
                                          &sampler_dpmpp_sde,
                                          &sampler_lms,
                                          &sampler_ipndm,
                                          &sampler_pndm,
                                          &sampler_ddim,
                                          &sampler_deis,
                                          &sampler_unipc,
                                          &sampler_lcm,
                                          &sampler_tcd,
                                          NULL};

enum status sampler_find(const char *name, const struct sampler **sampler, struct error *e) {
    char names[400] = "";
    size_t length = 0;
    for (const struct sampler *const *s = samplers; *s; s++) {
        if (!strcmp((*s)->name, name) || ((*s)->alias && !strcmp((*s)->alias, name))) {
            *sampler = *s;
            return OK;
        }
        if (length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "",
                                       (*s)->name);
    }
    return error_set(e, USAGE, "unknown sampler (--sampler)" FOUND "%s" EXPECTED "%s", name, names);
}
