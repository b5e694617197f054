#include "engine/sample/beta_quantile.h"
#include "engine/sample/linspace.h"
#include "engine/sample/schedule.h"

#include <math.h>
#include <stddef.h>

#define T TRAINED_TIMESTEPS

/* Timestep i of n, descending. For `trailing` numpy.arange yields one value too many for some n (61, 103);
 * this function drops the extra value. */
static double spaced_timestep(const struct schedule_options *o, int i, int n) {
    if (o->spacing == SPACING_LINSPACE) return linspace_numpy(0, T - 1, n - 1 - i, n);
    if (o->spacing == SPACING_LEADING) return (n - 1 - i) * (T / n) + o->steps_offset;
    return rint(T + i * ((T - (double)T / n) - T)) - 1;
}

static int clamped_timestep(double timestep) {
    return timestep > T - 1 ? T - 1 : (int)timestep;
}

struct ends {
    double from, to;
};

static double spaced_sigma(const struct schedule_options *o, struct ends ends, int i) {
    double from = o->sigma_max > 0 ? o->sigma_max : ends.from, to = o->sigma_min > 0 ? o->sigma_min : ends.to;
    double part = linspace_numpy(0, 1, i, o->n);
    if (o->sigma_spacing == SIGMAS_KARRAS) {
        double root_from = pow(from, 1 / 7.0), root_to = pow(to, 1 / 7.0);
        return pow(root_from + part * (root_to - root_from), 7);
    }
    if (o->sigma_spacing == SIGMAS_BETA) return to + beta_quantile(1 - part, 0.6) * (from - to);
    return exp(linspace_numpy(log(from), log(to), i, o->n));
}

static struct grid *begin(const struct schedule_options *o, enum grid_form form, struct grid *grid) {
    *grid = (struct grid){.form = form,
                          .step = grid->step,
                          .init_noise_sigma = 1,
                          .continuous_timesteps = o->continuous_timesteps};
    grid->table = o->table;
    grid->n = grid->n_total = o->n;
    return grid;
}

/* Joins the grid's steps: each step ends where the next begins, and the last step ends at `end`. */
static void join(struct grid *grid, struct grid_point end) {
    for (int i = 0; i + 1 < grid->n; i++) grid->step[i].to = grid->step[i + 1].at;
    grid->step[grid->n - 1].to = end;
}

static void schedule_fill_euler(const struct schedule_options *o, struct grid *grid) {
    begin(o, GRID_VARIANCE_EXPLODING, grid);
    float largest = 0;
    struct ends ends = {noise_table_sigma(o->table, (double)(float)spaced_timestep(o, 0, o->n)),
                        noise_table_sigma(o->table, (double)(float)spaced_timestep(o, o->n - 1, o->n))};
    for (int i = 0; i < o->n; i++) {
        float timestep = (float)spaced_timestep(o, i, o->n);
        double sigma = noise_table_sigma(o->table, (double)timestep);
        if (o->sigma_spacing != SIGMAS_OF_TIMESTEPS) {
            sigma = spaced_sigma(o, ends, i);
            timestep = schedule_timestep(o, sigma);
        } else if (o->continuous_timesteps) {
            timestep = schedule_timestep(o, sigma);
        }
        if (o->sigma_spacing == SIGMAS_KARRAS && o->round_timesteps) timestep = rintf(timestep);
        grid->step[i].at = grid_point_of_sigma(grid->form, (float)sigma, timestep);
        if (grid->step[i].at.sigma > largest) largest = grid->step[i].at.sigma;
    }
    join(grid, grid_point_of_sigma(grid->form, o->final_sigma_min ? o->table->sigma[0] : 0, 0));
    grid->init_noise_sigma = o->spacing == SPACING_LEADING ? sqrtf(largest * largest + 1) : largest;
}

/* Timestep i, rounded to a whole number, of n + 1 evenly spaced timesteps, of which the last is not used; for
 * `trailing` of n timesteps. */
static double whole_timestep(const struct schedule_options *o, int i) {
    return o->spacing == SPACING_TRAILING ? spaced_timestep(o, i, o->n)
                                          : rint(spaced_timestep(o, i, o->n + 1));
}

static void schedule_fill_solver(const struct schedule_options *o, struct grid *grid) {
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    struct ends ends = {(double)o->table->sigma[T - 1], (double)o->table->sigma[0]};
    for (int i = 0; i < o->n; i++) {
        double timestep = whole_timestep(o, i), sigma = noise_table_sigma(o->table, timestep);
        if (o->sigma_spacing != SIGMAS_OF_TIMESTEPS) {
            sigma = spaced_sigma(o, ends, i);
            timestep = noise_table_timestep(o->table, sigma);
            if (o->sigma_spacing == SIGMAS_KARRAS) timestep = rint(timestep);
        }
        grid->step[i].at = grid_point_of_sigma(grid->form, (float)sigma, (float)trunc(timestep));
    }
    float least = o->final_sigma_of_spacing && o->sigma_spacing != SIGMAS_OF_TIMESTEPS
                      ? grid->step[o->n - 1].at.sigma
                      : o->table->sigma[0];
    join(grid, grid_point_of_sigma(grid->form, o->final_sigma_min ? least : 0, 0));
}

static struct grid_point trained(const struct schedule_options *o, double timestep) {
    int t = clamped_timestep(timestep);
    return grid_point_of_alpha(o->table->alpha[t], (float)t);
}

static void schedule_fill_ddpm(const struct schedule_options *o, struct grid *grid) {
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    for (int i = 0; i < o->n; i++) grid->step[i].at = trained(o, rint(spaced_timestep(o, i, o->n)));
    join(grid, grid_point_of_alpha(1, 0));
}

static void schedule_fill_ddim(const struct schedule_options *o, struct grid *grid) {
    schedule_fill_ddpm(o, grid);
    grid->timestep_stride = T / o->n;
    struct grid_point end = grid_point_of_alpha(o->set_alpha_to_one ? 1 : o->table->alpha[0], 0);
    for (int i = 0; i < o->n; i++) {
        int to = (int)grid->step[i].at.timestep - grid->timestep_stride;
        grid->step[i].to = to < 0 ? end : trained(o, to);
    }
}

static void schedule_fill_original_steps(const struct schedule_options *o, struct grid *grid) {
    begin(o, GRID_VARIANCE_PRESERVING, grid);
    for (int i = 0; i < o->n; i++) {
        int place = (int)floor(i * ((double)o->original_steps / o->n));
        grid->step[i].at = trained(o, (o->original_steps - place) * (T / o->original_steps) - 1);
    }
    join(grid, grid_point_of_alpha(1, 0));
}

const struct schedule schedule_diffusers_euler = {
    .name = "spaced", .steps_max = T, .fill = schedule_fill_euler};
const struct schedule schedule_diffusers_solver = {
    .name = "solver", .steps_max = T - 1, .fill = schedule_fill_solver};
const struct schedule schedule_diffusers_ddpm = {.name = "whole", .steps_max = T, .fill = schedule_fill_ddpm};
const struct schedule schedule_diffusers_ddim = {
    .name = "leaping", .steps_max = T, .fill = schedule_fill_ddim};
const struct schedule schedule_diffusers_lcm = {
    .name = "distilled", .steps_max = T, .fill = schedule_fill_original_steps};
