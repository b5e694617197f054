#include "engine/sample/grid.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

struct grid_point grid_point_of_sigma(enum grid_form form, float sigma, float timestep) {
    struct grid_point p = {timestep, sigma, 1, sigma, 1};
    if (form == GRID_FLOW) p.signal = 1 - sigma;
    if (form == GRID_VARIANCE_EXPLODING) p.input_scale = 1 / sqrtf(sigma * sigma + 1);
    if (form == GRID_VARIANCE_PRESERVING) {
        p.signal = 1 / sqrtf(sigma * sigma + 1);
        p.noise = sigma * p.signal;
    }
    return p;
}

struct grid_point grid_point_of_alpha(float alpha, float timestep) {
    return (struct grid_point){timestep, sigma_of_alpha(alpha), sqrtf(alpha), sqrtf(1 - alpha), 1};
}

float grid_continuous_timestep(float sigma) {
    return 0.25f * (float)log((double)sigma);
}

static float timestep_between(const struct grid *grid, const struct grid_step *s, float sigma) {
    if (grid->continuous_timesteps) return grid_continuous_timestep(sigma);
    if (grid->table) return noise_table_timestep_f32(grid->table, sigma);
    return s->at.timestep +
           (s->to.timestep - s->at.timestep) * ((sigma - s->at.sigma) / (s->to.sigma - s->at.sigma));
}

struct grid_point grid_between(const struct grid *grid, int step, float sigma) {
    const struct grid_step *s = &grid->step[step];
    return grid_point_of_sigma(grid->form, sigma, timestep_between(grid, s, sigma));
}

void grid_skip(struct grid *grid, int first) {
    grid->n -= first;
    memmove(grid->step, grid->step + first, (size_t)grid->n * sizeof *grid->step);
}

void grid_initial_sample(const struct grid *grid, float *noise, const float *picture, int64_t n) {
    if (picture) grid_add_noise(&grid->step->at, picture, noise, noise, n);
    for (int64_t i = 0; i < n && !picture; i++) noise[i] *= grid->init_noise_sigma;
}

void grid_add_noise(const struct grid_point *at, const float *picture, const float *noise, float *out,
                    int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = at->noise * noise[i] + at->signal * picture[i];
}
