#include "cli/sampler_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

struct name {
    const char *ours;
    const char *webui,
        *comfy; /* ComfyUI's name; NULL: the program lacks the sampler, or its name equals `ours` */
};

static const struct name samplers[] = {
    {"euler", "Euler", NULL},
    {"euler_a", "Euler a", "euler_ancestral"},
    {"heun", "Heun", NULL},
    {"dpm2", "DPM2", "dpm_2"},
    {"dpm2_a", "DPM2 a", "dpm_2_ancestral"},
    {"dpm++2s_a", "DPM++ 2S a", "dpmpp_2s_ancestral"},
    {"dpm++2m", "DPM++ 2M", "dpmpp_2m"},
    {"dpm++3m", NULL, NULL},
    {"dpm++2m_sde", "DPM++ 2M SDE", "dpmpp_2m_sde"},
    {"dpm++_sde", "DPM++ SDE", "dpmpp_sde"},
    {"lms", "LMS", NULL},
    {"ipndm", NULL, NULL},
    {"pndm", "PLMS", NULL},
    {"ddim", "DDIM", NULL},
    {"deis", NULL, NULL},
    {"unipc", "UniPC", "uni_pc"},
    {"lcm", "LCM", NULL},
    {"tcd", NULL, NULL},
};

static const struct name schedules[] = {
    {"leading", NULL, NULL},
    {"trailing", NULL, NULL},
    {"linspace", NULL, NULL},
    {"discrete", "Uniform", "normal"},
    {"karras", "Karras", NULL},
    {"exponential", "Exponential", NULL},
    {"ays", "Align Your Steps", "align_your_steps"},
    {"sgm_uniform", "SGM Uniform", NULL},
    {"simple", "Simple", NULL},
    {"smoothstep", NULL, NULL},
    {"kl_optimal", "KL Optimal", NULL},
    {"lcm", NULL, NULL},
    {"bong_tangent", NULL, NULL},
    {"beta", "Beta", NULL},
};

enum { N_SAMPLERS = sizeof samplers / sizeof *samplers, N_SCHEDULES = sizeof schedules / sizeof *schedules };

/* Copies a name in lower case, with letters, digits and + only. */
static void simplify(const char *name, char out[NAME_MAX_BYTES]) {
    size_t n = 0;
    for (; *name && n + 1 < NAME_MAX_BYTES; name++)
        if (isalnum((unsigned char)*name) || *name == '+') out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
}

/* Number of bytes at the start of text that match spelling 0, 1 or 2 of a name, simplified; 0: no match. */
static size_t prefix_bytes(const struct name *name, const char *text, int spelling) {
    const char *const spellings[] = {name->ours, name->webui, name->comfy};
    char simple[NAME_MAX_BYTES];
    if (!spellings[spelling]) return 0;
    simplify(spellings[spelling], simple);
    return strncmp(text, simple, strlen(simple)) == 0 ? strlen(simple) : 0;
}

static const char *find_schedule(const char *simple) {
    for (int i = 0; i < N_SCHEDULES; i++)
        for (int k = 0; k < 3; k++) {
            size_t bytes = prefix_bytes(&schedules[i], simple, k);
            if (bytes && !simple[bytes]) return schedules[i].ours;
        }
    return NULL;
}

const char *sampler_parse(const char *text, const char **schedule) {
    char simple[NAME_MAX_BYTES];
    simplify(text, simple);
    for (int i = 0; i < N_SAMPLERS; i++)
        for (int k = 0; k < 3; k++) {
            size_t bytes = prefix_bytes(&samplers[i], simple, k);
            if (!bytes) continue;
            *schedule = find_schedule(simple + bytes);
            if (*schedule || !simple[bytes]) return samplers[i].ours;
        }
    return NULL;
}

const char *schedule_parse(const char *text) {
    char simple[NAME_MAX_BYTES];
    simplify(text, simple);
    return find_schedule(simple);
}

static char *list(const struct name *names, int n, char *out, size_t out_bytes) {
    size_t bytes = 0;
    for (int i = 0; i < n && bytes < out_bytes; i++)
        bytes += (size_t)snprintf(out + bytes, out_bytes - bytes, "%s%s", i ? ", " : "", names[i].ours);
    return out;
}

char *sampler_list(char *out, size_t out_bytes) {
    return list(samplers, N_SAMPLERS, out, out_bytes);
}

char *schedule_list(char *out, size_t out_bytes) {
    return list(schedules, N_SCHEDULES, out, out_bytes);
}

static const char *webui_name(const struct name *names, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i].ours, name) == 0) return names[i].webui ? names[i].webui : name;
    return name;
}

const char *sampler_webui_name(const char *name) {
    return webui_name(samplers, N_SAMPLERS, name);
}

const char *schedule_webui_name(const char *name) {
    return webui_name(schedules, N_SCHEDULES, name);
}
