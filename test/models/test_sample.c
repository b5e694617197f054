/* Predictions, initial latents, guidance and the Euler step against their published formulas, in f64. */
#include "engine/sample/guidance.h"
#include "engine/sample/sampler.h"
#include "test/lib/seeded.h"

#include <math.h>
#include <string.h>

enum { N = 33 };

static uint64_t random_state = 7;
static float sample[N], output[N], picture[N];

static void draw_all(void) {
    for (int i = 0; i < N; i++) {
        sample[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
        output[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
        picture[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
    }
}

/* Builds the noisy sample at sigma and converts a perfect model's output: the result must be the image or the
 * derivative. */
static void expect_truth(const struct prediction *p, enum grid_form grid, float sigma,
                         const double *model_output) {
    struct grid_point point = grid_point_of_sigma(grid, sigma, 0);
    double a = 1 / sqrt((double)sigma * sigma + 1), worst = 0;
    double signal = grid == GRID_FLOW ? 1 - (double)sigma : grid == GRID_VARIANCE_EXPLODING ? 1 : a;
    for (int form = PREDICTION_DERIVATIVE; form <= PREDICTION_DENOISED; form++) {
        float at[N], out[N];
        for (int i = 0; i < N; i++) {
            double noise = output[i];
            double part = grid == GRID_VARIANCE_PRESERVING ? a * (double)sigma : (double)sigma;
            at[i] = (float)(part * noise + signal * (double)picture[i]);
            out[i] = (float)model_output[i];
        }
        p->convert(out, at, N, &point, (enum prediction_form)form);
        for (int i = 0; i < N; i++) {
            double noise = output[i], derivative = p->is_flow ? noise - picture[i] : noise;
            double truth = form == PREDICTION_DENOISED ? picture[i] : derivative;
            double size = form == PREDICTION_DENOISED
                              ? sigma + 1
                              : 1 / (double)sigma +
                                    1; /* derivative: difference of sample and image, divided by sigma */
            worst = fmax(worst, fabs(out[i] - truth) / size);
        }
    }
    double read = grid == GRID_VARIANCE_EXPLODING ? a : 1;
    assert_true(fabs((double)point.input_scale - read) < 1e-7);
    assert_true(worst < 6e-7); /* measured: 2e-7 */
}

TEST(prediction_conversion) {
    static const float sigmas[] = {0.03f, 0.4f, 0.9f, 3.5f, 14.6f};
    for (size_t k = 0; k < sizeof sigmas / sizeof *sigmas; k++) {
        double flow[N], eps[N], v[N], s = sigmas[k], a = 1 / sqrt(s * s + 1);
        draw_all();
        for (int i = 0; i < N; i++) {
            flow[i] = (double)output[i] - (double)picture[i];
            eps[i] = output[i];
            v[i] = a * (double)output[i] - a * s * (double)picture[i];
        }
        if (s < 1) expect_truth(&prediction_flow, GRID_FLOW, sigmas[k], flow);
        for (int form = GRID_VARIANCE_EXPLODING; form <= GRID_VARIANCE_PRESERVING; form++) {
            expect_truth(&prediction_eps, (enum grid_form)form, sigmas[k], eps);
            expect_truth(&prediction_v, (enum grid_form)form, sigmas[k], v);
        }
    }
    assert_true(prediction_flow.timestep_input(250) == 0.25f &&
                prediction_flow_inverted.timestep_input(250) == 0.75f);
    assert_true(prediction_eps.timestep_input(250) == 250 && prediction_v.timestep_input(250) == 250);
}

/* Initial latents with an input image: image and noise mixed at the first grid point. Without an image: noise
 * times the initial standard deviation. */
TEST(initial_latents) {
    draw_all();
    for (int form = GRID_FLOW; form <= GRID_VARIANCE_PRESERVING; form++)
        for (int of_picture = 0; of_picture < 2; of_picture++) {
            struct grid_step step = {.at = grid_point_of_sigma((enum grid_form)form, 0.75f, 0)};
            struct grid grid = {
                .form = (enum grid_form)form, .n = 1, .step = &step, .init_noise_sigma = 1.5f};
            float noise[N];
            double signal = form == GRID_FLOW ? 0.25 : form == GRID_VARIANCE_EXPLODING ? 1 : 0.8;
            double part = form == GRID_VARIANCE_PRESERVING ? 0.6 : 0.75;
            memcpy(noise, sample, sizeof noise);
            grid_initial_sample(&grid, noise, of_picture ? picture : NULL, N);
            for (int i = 0; i < N; i++) {
                double truth = of_picture ? part * (double)sample[i] + signal * (double)picture[i]
                                          : 1.5 * (double)sample[i];
                assert_true(fabs((double)noise[i] - truth) < 5e-7);
            }
        }
}

TEST(cfg_and_euler_step) {
    struct grid_step step = {.at = grid_point_of_sigma(GRID_FLOW, 0.7f, 0),
                             .to = grid_point_of_sigma(GRID_FLOW, 0, 0)};
    struct grid grid = {.form = GRID_FLOW, .n = 1, .step = &step};
    float guided[N], moved[N];
    draw_all();
    memcpy(guided, output, sizeof guided);
    int32_t row[] = {1, 1, 1, N};
    guidance_cfg(tensor_make(guided, DTYPE_F32, 4, row), tensor_make(picture, DTYPE_F32, 4, row), 1, 3.5);
    memcpy(moved, sample, sizeof moved);
    sampler_euler.update(
        &(struct sampler_update){.grid = &grid, .step = 0, .sample = moved, .output = guided, .n = N});
    for (int i = 0; i < N; i++) {
        double truth = (double)picture[i] + 3.5 * ((double)output[i] - (double)picture[i]);
        assert_true(fabs(guided[i] - truth) < 4e-6);
        assert_true(fabs(moved[i] - ((double)sample[i] - 0.7 * (double)guided[i])) < 2e-6);
    }
}

enum { KEPT_C = 3, KEPT_F = 2, KEPT_Y = 4, KEPT_X = 6, KEPT = KEPT_C * KEPT_F * KEPT_Y * KEPT_X };

/* Index in the latent of value k of token t, a patch of KEPT_C channels of 2 x 2 pixels. */
static int place_in_token(int t, int k) {
    int c = k / 4, y = 2 * (t / (KEPT_X / 2)) + k / 2 % 2, x = 2 * (t % (KEPT_X / 2)) + k % 2;
    return (c * KEPT_F * KEPT_Y + y) * KEPT_X + x;
}

/* Tests guidance that keeps the norm of a token, or limits it. In token 1 the positive and the negative
 * prediction are equal; token 2 is all zeros; guidance shortens token 3. */
static void check_norms(guidance_rule *guide, bool limits) {
    float cond[KEPT], uncond[KEPT], guided[KEPT];
    int32_t dim[] = {KEPT_C, KEPT_F, KEPT_Y, KEPT_X}, in_token = 4 * KEPT_C;
    for (int i = 0; i < KEPT; i++) {
        cond[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
        uncond[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
    }
    for (int k = 0; k < in_token; k++) {
        uncond[place_in_token(1, k)] = cond[place_in_token(1, k)];
        uncond[place_in_token(2, k)] = cond[place_in_token(2, k)] = 0;
        uncond[place_in_token(3, k)] = 1.2F * cond[place_in_token(3, k)];
    }
    memcpy(guided, cond, sizeof cond);
    guide(tensor_make(guided, DTYPE_F32, 4, dim), tensor_make(uncond, DTYPE_F32, 4, dim), 2, 4);
    for (int t = 0; t < KEPT / in_token; t++) {
        double cond_length = 0, length = 0, truth[4 * KEPT_C];
        for (int k = 0; k < in_token; k++) {
            double p = cond[place_in_token(t, k)], n = uncond[place_in_token(t, k)];
            truth[k] = n + 4 * (p - n);
            cond_length += p * p;
            length += truth[k] * truth[k];
        }
        for (int k = 0; k < in_token; k++) {
            if (limits)
                truth[k] *= fmin(sqrt(cond_length) / (sqrt(length) + 1e-8), 1);
            else if (length > 0)
                truth[k] *= sqrt(cond_length / length);
            assert_true(fabs((double)guided[place_in_token(t, k)] - truth[k]) < 2e-6);
        }
        if (t == 3) assert_true(length < 0.5 * cond_length);
    }
}

TEST(norm_keeping_guidance) {
    check_norms(guidance_cfg_keep_norm, false);
}

TEST(norm_limiting_guidance) {
    check_norms(guidance_cfg_limit_norm, true);
}

/* --cfg-norm: a prediction longer than the limit gets the limit as its norm, over all channels, frames and
 * pixels together; a shorter one keeps its bits. */
TEST(norm_of_a_whole_prediction) {
    float values[KEPT], before[KEPT];
    int32_t dim[] = {KEPT_C, KEPT_F, KEPT_Y, KEPT_X};
    struct tensor prediction = tensor_make(values, DTYPE_F32, 4, dim);
    double squares = 0;
    for (int i = 0; i < KEPT; i++) {
        values[i] = before[i] = (float)random_below(&random_state, 4001) / 1000 - 2;
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(guidance_norm(prediction) - sqrt(squares)) < 1e-12);
    guidance_limit_norm(prediction, sqrt(squares) * 1.0001);
    assert_memory_equal(values, before, sizeof values);
    guidance_limit_norm(prediction, sqrt(squares) * 0.6);
    for (int i = 0; i < KEPT; i++) assert_true(fabs((double)values[i] - 0.6 * (double)before[i]) < 2e-7);
    memset(values, 0, sizeof values);
    guidance_limit_norm(prediction, 0);
    assert_true(guidance_norm(prediction) == 0);
}

int main(void) {
    return run_all_tests(NULL, NULL);
}
