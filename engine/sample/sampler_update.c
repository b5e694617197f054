#include "engine/sample/sampler_update.h"

#include <math.h>
#include <string.h>

void update_sum(float *out, int64_t n, const struct term *terms, int n_terms) {
    for (int64_t i = 0; i < n; i++) {
        float sum = (float)terms[0].factor * terms[0].values[i];
        for (int k = 1; k < n_terms; k++) sum += (float)terms[k].factor * terms[k].values[i];
        out[i] = sum;
    }
}

void update_copy(float *to, const float *from, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

void update_push(float *const *past, int n_past, const float *values, int64_t n) {
    for (int k = n_past - 1; k > 0; k--) update_copy(past[k], past[k - 1], n);
    update_copy(past[0], values, n);
}

double update_scale(const struct grid *grid, const struct grid_point *p) {
    return grid->form == GRID_FLOW ? 1 : (double)p->signal;
}

const struct grid_step *update_step(const struct sampler_update *u) {
    return &u->grid->step[u->step];
}

void update_along_derivative(const struct sampler_update *u, const float *from, const struct grid_point *at,
                             const struct grid_point *to, const float *derivative) {
    double keep = update_scale(u->grid, to) / update_scale(u->grid, at);
    struct term terms[] = {{keep, from}, {(double)to->noise - (double)at->noise * keep, derivative}};
    update_sum(u->sample, u->n, terms, 2);
}

struct towards update_towards(const struct grid_point *at, double sigma, double scale) {
    return (struct towards){scale * sigma / (double)at->noise, scale * (1 - sigma / (double)at->sigma)};
}

struct ancestral update_ancestral(const struct grid *grid, double from, double to) {
    double down = to * (to / from);
    if (grid->form != GRID_FLOW) return (struct ancestral){down, 1, to * sqrt(1 - (to / from) * (to / from))};
    double keep = (1 - to) / (1 - down);
    return (struct ancestral){down, keep, sqrt(fmax(to * to - down * down * keep * keep, 0))};
}
