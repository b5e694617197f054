/* The whole engine against diffusers: tokens, schedule, noise, hidden states, latents and images, through the
 * public header where possible. Single blocks: test_blocks.c; influence of every tensor:
 * test_every_tensor_matters.c. */
#include "test/lib/golden_run.h"

#include "engine/open/prompt.h"
#include "engine/sample/schedule.h"
#include "engine/sample/noise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tolerances[] = {
    {"hidden", 5.27e-6, 1e-5},
    {"pooled", 3.26e-7, 1e-6},
    {"encoded", 3.18e-6, 1e-5},
    {"seen", 8.48e-7, 2.6e-6},
    {"noise.randn", 1.31e-6, 2e-6},
    {"latent_000", 1.31e-6, 2e-6},
    {"latent_000 with an input image", 1.19e-6, 4e-6},
    {"latent after a step", 6.18e-6, 1.8e-5},
    {"latent after a step, high guidance", 8.8e-6, 2e-5},
    {"latent", 1.07e-5, 2e-5},
    {"sound", 2.13e-6, 6.4e-6},
    {"sound after a step", 1.89e-6, 5.7e-6},
    {"mel", 5.73e-7, 1.8e-6},
    {"wave", 2.06e-6, 6.2e-6},
    {"latent, high guidance", 1.28e-5, 2e-5},
    {"decoded", 2.25e-6, 7e-6},
    {"decoded, free-running", 6.12e-6, 2e-5},
    {"decoded, free-running, high guidance", 2.14e-5, 6e-5},
    {"picture, worst", 1, 1},
    {"picture, share", 0.000326, 0.001},
    {"free image, worst", 1, 1},
    {"free image, share", 0.000868, 0.003},
    {0},
};

/* bf16 tolerances of tensors without a known PyTorch error, measured under emulation. The decoder has smaller
 * tolerances, because TF32 is finer than bf16. */
static const struct tolerance gpu_tolerances[] = {
    {"encoded", 2.76e-3, 8e-3},
    {"latent_000 with an input image", 2.75e-4, 8e-4},
    {"noise.randn", 1.31e-6, 2e-6},
    {"latent_000", 1.31e-6, 2e-6},
    {"latent after a step", 1.14e-2, 3e-2},
    {"sound after a step", 1.1e-2, 3e-2},
    {"mel", 1.36e-3, 4e-3},
    {"wave", 2.57e-3, 8e-3},
    {"decoded", 4.22e-3, 1e-2},
    {"decoded, free-running", 1.33e-2, 3e-2},
    {"picture, worst", 2, 4},
    {"picture, share", 0.185, 0.35},
    {"free image, worst", 11, 24},
    {"free image, share", 0.555, 0.8},
    {0},
};

static void expect_equal_bits(struct tensor truth, const float *ours) {
    for (int64_t i = 0; i < tensor_elements(&truth); i++)
        if (((float *)truth.data)[i] != ours[i])
            fail_msg("value %d is %.9g, in the reference %.9g", (int)i, (double)ours[i],
                     (double)((float *)truth.data)[i]);
}

/* Compares a prompt's token ids. encoder: index among the text encoders; slot: slot of the text encoder. */
static void expect_ids(const struct golden *g, const json_t *c, const char *text, int encoder, int slot,
                       const char *lane) {
    static const char *const names[] = {"ids", "ids_2", "ids_3"}, *const cuts[] = {"cut", "cut_2", "cut_3"};
    char tail[TAIL], name[NAME];
    struct error e = {0};
    struct prompt_tokens tokens = {0};
    const struct sluice_model *m = g->model;
    if (!text) text = "";
    snprintf(tail, sizeof tail, "%s.%s", names[encoder], lane);
    if (!has_golden(g, case_tensor(c, tail, name))) return;
    prompt_encode(&golden_state.sys, &m->recipe->slot[slot].text, m->tokenizer[slot], text, strlen(text),
                  true, &tokens, &e);
    assert_ok(&e);
    struct tensor ids = golden(g, name);
    assert_int_equal(ids.dtype, DTYPE_I32);
    assert_int_equal(tokens.n_ids, ids.dim[0]);
    for (int i = 0; i < tokens.n_ids; i++)
        if (tokens.ids[i] != ((int32_t *)ids.data)[i])
            fail_msg("%s: token %d is %d, in the reference %d", name, i, tokens.ids[i],
                     ((int32_t *)ids.data)[i]);
    if (!strcmp(lane, "cond")) assert_int_equal(tokens.cut, json_is_true(json_object_get(c, cuts[encoder])));
    prompt_destroy(&golden_state.sys, &tokens);
}

/* True for prompts with image tokens, which test_vision_inputs.c covers. */
static bool has_image_tokens(const struct golden *g, const json_t *c) {
    return model_component(g->model, FAMILY_VISION) && json_array_size(json_object_get(c, "references"));
}

static void test_token_ids(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    const struct slot *slots = g->model->recipe->slot;
    size_t i;
    json_array_foreach(cases, i, c) {
        for (int slot = 0, encoder = 0; slots[slot].family && !has_image_tokens(g, c); slot++) {
            if (slots[slot].family->kind != FAMILY_TEXT) continue;
            expect_ids(g, c, text_of(c, "prompt"), encoder, slot, "cond");
            expect_ids(g, c, text_of(c, "negative_prompt"), encoder++, slot, "uncond");
        }
    }
}

static void expect_schedule(const struct golden *g, const char *prefix, struct schedule_options options) {
    char name[NAME];
    int steps = options.n;
    float *sigmas = test_memory(sizeof(float) * (size_t)(steps + 1));
    float *timesteps = test_memory(sizeof(float) * (size_t)steps);
    struct grid grid = {.step = test_memory(sizeof *grid.step * (size_t)steps)};
    schedule_flow.fill(&schedule_flow, &options, &grid);
    for (int i = 0; i < steps; i++) {
        sigmas[i] = grid.step[i].at.sigma;
        timesteps[i] = grid.step[i].at.timestep;
        assert_true(grid.step[i].to.sigma == (i + 1 < steps ? grid.step[i + 1].at.sigma : 0));
    }
    sigmas[steps] = grid.step[steps - 1].to.sigma;
    snprintf(name, sizeof name, "%s.sigmas", prefix);
    struct tensor truth_sigmas = golden(g, name);
    assert_int_equal(truth_sigmas.dim[0], steps + 1);
    expect_equal_bits(truth_sigmas, sigmas);
    snprintf(name, sizeof name, "%s.timesteps", prefix);
    expect_equal_bits(golden(g, name), timesteps);
}

/* Parses the schedule from a golden tensor's name, such as "schedule.7.3" or "schedule_tokens.7.1024". Other
 * names give 0 steps. */
static struct schedule_options schedule_named(const struct golden *g, const char *name) {
    const struct flow_shift_line *line = &g->model->shift_line;
    struct schedule_options options = {.grid_f64 = g->model->sampling.grid.grid_f64};
    int steps, tokens;
    if (sscanf(name, "schedule.%d.%lf", &steps, &options.shift) == 2) {
        options.n = steps;
    } else if (sscanf(name, "schedule_beta.%d.%lf", &steps, &options.shift) == 2) {
        options.n = steps;
        options.sigma_spacing = SIGMAS_BETA;
    } else if (sscanf(name, "schedule_tokens.%d.%d", &steps, &tokens) == 2) {
        options.n = steps;
        options.exponential_shift = true;
        options.terminal = g->model->shift_terminal;
        options.shift = g->model->shift_rule == FLOW_SHIFT_FLUX2
                            ? schedule_shift_flux2(tokens, steps)
                            : schedule_shift_of_tokens(tokens, line->base_tokens, line->base_shift,
                                                       line->max_tokens, line->max_shift);
    }
    return options;
}

static void test_schedule(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t k;
    int n = 0;
    for (int i = 0; i < g->tensors.n_entries; i++) {
        const char *name = g->tensors.entries[i].name, *end = strstr(name, ".sigmas");
        char prefix[NAME];
        struct schedule_options options = schedule_named(g, name);
        if (!end || !options.n) continue;
        snprintf(prefix, sizeof prefix, "%.*s", (int)(end - name), name);
        expect_schedule(g, prefix, options);
        n++;
    }
    assert_true(n >= 14);
    json_array_foreach(cases, k, c) {
        char prefix[NAME];
        const json_t *shift = json_object_get(c, "shift");
        snprintf(prefix, sizeof prefix, "case%d", (int)k);
        if (is_image(c) && shift)
            expect_schedule(
                g, prefix,
                (struct schedule_options){.n = number_of(c, "steps"), .shift = json_number_value(shift)});
    }
}

static double uniform53(struct generator *g) {
    uint64_t high = generator_draw(g), low = generator_draw(g);
    return (double)((high << 32 | low) & ((1ull << 53) - 1)) * 0x1p-53;
}

static void expect_uniforms(const struct golden *g, const char *prefix, uint64_t seed) {
    char name[NAME];
    struct generator random;
    snprintf(name, sizeof name, "%s.rand", prefix);
    struct tensor floats = golden(g, name);
    generator_seed(&random, seed);
    for (int64_t i = 0; i < tensor_elements(&floats); i++)
        assert_true(generator_uniform(&random) == ((float *)floats.data)[i]);
    snprintf(name, sizeof name, "%s.rand64", prefix);
    if (!has_golden(g, name)) return;
    struct tensor doubles = golden(g, name);
    generator_seed(&random, seed);
    for (int64_t i = 0; i < tensor_elements(&doubles); i++)
        assert_true(uniform53(&random) == ((double *)doubles.data)[i]);
}

static void test_noise(const struct golden *g) {
    json_t *list = json_object_get(g->expect, "noise"), *about;
    size_t i;
    double worst = 0;
    json_array_foreach(list, i, about) {
        char name[NAME];
        uint64_t seed = (uint64_t)json_integer_value(json_object_get(about, "seed"));
        snprintf(name, sizeof name, "%s.randn", text_of(about, "name"));
        double error = noise_error(golden(g, name), seed);
        if (error > worst) worst = error;
        expect_uniforms(g, text_of(about, "name"), seed);
    }
    expect_error(g, "noise.randn", "", worst);
}

/* Compares images that the run dumped as `dump` with the reference: input images of the first image of the
 * batch. */
static void expect_image_dumps(struct public_run *p, const json_t *c, const char *dump) {
    static const char *const pictures[] = {"init",           "last",          "masked",    "reference_000",
                                           "reference_001",  "reference_002", "redux_000", "redux_001",
                                           "redux_rows_000", "redux_rows_001"};
    int n = 0;
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
        char tail[TAIL], name[NAME], file[NAME], detail[NAME];
        snprintf(tail, sizeof tail, "%s.%s", dump, pictures[i]);
        if (!has_golden(p->golden, case_tensor(c, tail, name))) continue;
        snprintf(file, sizeof file, n ? "%s_%03d" : "%s", dump, n);
        struct tensor truth = golden(p->golden, name), ours = read_dump(p, file, file);
        if (truth.rank == 4) truth = tensor_slice(truth, 0, 1); /* axis 0 counts the images of a batch */
        assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
        snprintf(detail, sizeof detail, "case %d %s", number_of(c, "index"), pictures[i]);
        expect_values(p->golden, dump, detail, ours.data, truth.data, tensor_elements(&truth));
        n++;
    }
}

static void test_hidden_states(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t i;
    char path[PATH];
    struct public_run *p = open_run(g, model_path(g, path), true);
    json_array_foreach(cases, i, c) {
        struct sluice_error error;
        struct sluice_request r = request_of(p, c);
        if (is_image(c)) continue;
        assert_public(sluice_run(p->session, &r, &error), &error);
        expect_texts(p, c);
    }
    close_run(p);
}

/* Compares images. A few values may differ by one of 255 levels. */
static void expect_pictures(struct public_run *p, const json_t *c, const char *worst_tolerance,
                            const char *share_tolerance) {
    char name[NAME], detail[NAME];
    struct tensor truth = golden(p->golden, case_tensor(c, "picture", name));
    const uint8_t *expected = truth.data;
    int frames = number_of(c, "frames"), n = number_of(c, "batch") * (frames ? frames : 1), worst = 0;
    int64_t differing = 0;
    assert_int_equal(p->album.n, n);
    assert_int_equal((int64_t)p->album.bytes * n, tensor_elements(&truth));
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < p->album.bytes; i++) {
            int d = abs((int)p->album.pixels[k][i] - (int)expected[(size_t)k * p->album.bytes + i]);
            differing += d != 0;
            if (d > worst) worst = d;
        }
    snprintf(detail, sizeof detail, "case %d", number_of(c, "index"));
    expect_error(p->golden, worst_tolerance, detail, worst);
    expect_error(p->golden, share_tolerance, detail, (double)differing / (double)tensor_elements(&truth));
}

static void expect_decoded(struct public_run *p, const json_t *c, const char *tolerance) {
    char name[NAME], detail[NAME];
    if (!has_golden(p->golden, case_tensor(c, "decoded", name))) return;
    struct tensor truth = golden(p->golden, name), dump = read_decoded(p, truth.rank == 4 ? truth.dim[0] : 1);
    int64_t n = tensor_elements(&truth);
    assert_int_equal(tensor_elements(&dump), n);
    snprintf(detail, sizeof detail, "case %d", number_of(c, "index"));
    expect_error(p->golden, tolerance, detail, distance(dump.data, truth.data, n));
}

static double rms_of(struct tensor t) {
    double sum = 0;
    int64_t n = tensor_elements(&t);
    for (int64_t i = 0; i < n; i++) sum += (double)((float *)t.data)[i] * (double)((float *)t.data)[i];
    return sqrt(sum / (double)n);
}

/* Compares the initial latents with the reference: noise, or noise added to an input image's latent. */
static void expect_initial_latents(struct public_run *p, const json_t *c) {
    char name[NAME], detail[NAME];
    const char *tail = has_golden(p->golden, case_tensor(c, "noise", name)) ? "noise" : "latent_000";
    struct tensor truth = golden(p->golden, case_tensor(c, tail, name));
    struct tensor ours = read_dump(p, "latent_000", "latent_000");
    assert_int_equal(tensor_elements(&ours), tensor_elements(&truth));
    snprintf(detail, sizeof detail, "case %d", number_of(c, "index"));
    bool picture = json_is_true(json_object_get(c, "init"));
    /* With an input image sigma can exceed 1, and the noise's error is scaled by sigma. */
    double scale = fmax(1, rms_of(truth));
    expect_error(p->golden, picture ? "latent_000 with an input image" : "latent_000", detail,
                 largest_difference(ours.data, truth.data, tensor_elements(&ours)) / scale);
}

/* Compares the latent after each step, and the sigmas if the diffusers scheduler has sigmas. */
static void expect_steps(struct public_run *p, const json_t *c) {
    char name[NAME], file[TAIL];
    struct tensor sigmas = read_dump(p, "sigmas", "sigmas");
    struct tensor timesteps = golden(p->golden, case_tensor(c, "timesteps", name));
    assert_int_equal(tensor_elements(&sigmas), tensor_elements(&timesteps) + 1);
    if (has_golden(p->golden, case_tensor(c, "sigmas", name)))
        expect_equal_bits(golden(p->golden, name), sigmas.data);
    /* The latents of a second pass (--hires) follow: its start and its steps. */
    int dumps = (int)tensor_elements(&sigmas) + number_of(json_object_get(c, "hires"), "dumps") +
                number_of(c, "upscale_dumps");
    for (int i = 1; i < dumps; i++) {
        snprintf(file, sizeof file, "latent_%03d", i);
        expect_dump(p, c, file,
                    has_high_guidance(c) ? "latent after a step, high guidance" : "latent after a step",
                    file);
        snprintf(file, sizeof file, "sound_%03d", i);
        expect_dump(p, c, file, "sound after a step", file);
    }
    expect_initial_latents(p, c);
}

static void run_case(struct public_run *p, const json_t *c, bool no_decode) {
    char latent[PATH], sound[PATH], name[NAME];
    struct sluice_error error;
    struct sluice_request r = request_of(p, c);
    snprintf(latent, sizeof latent, "%s/final.safetensors", p->folder);
    snprintf(sound, sizeof sound, "%s/final_sound.safetensors", p->folder);
    r.save_latent = latent;
    if (has_golden(p->golden, case_tensor(c, "sound", name))) r.save_audio_latent = sound;
    r.no_decode = no_decode;
    p->album.n = 0;
    assert_public(sluice_run(p->session, &r, &error), &error);
    expect_texts(p, c);
    expect_image_dumps(p, c, "encoded");
    expect_dump(p, c, "concat", "encoded", "concat");
    expect_image_dumps(p, c, "seen");
    expect_latents(p, c);
    expect_sounds(p, c);
}

/* True if the reference has the decoded images of the case. */
static bool is_decoded(const struct public_run *p, const json_t *c) {
    char name[NAME];
    return has_golden(p->golden, case_tensor(c, "picture", name));
}

static void draw_case(struct public_run *p, const json_t *c) {
    bool decoded = is_decoded(p, c);
    run_case(p, c, !decoded);
    expect_steps(p, c);
    if (!decoded) return;
    expect_dump(p, c, "mel", "mel", "mel");
    expect_dump(p, c, "wave", "wave", "wave");
    expect_decoded(p, c,
                   has_high_guidance(c) ? "decoded, free-running, high guidance" : "decoded, free-running");
    expect_pictures(p, c, "free image, worst", "free image, share");
}

static void decode_case(struct public_run *p, const json_t *c) {
    char name[NAME], path[PATH];
    struct error e = {0};
    struct sluice_error error;
    struct tensor latent = golden(p->golden, case_tensor(c, "latent", name));
    struct named_tensor saved = {"latent", latent};
    snprintf(path, sizeof path, "%s/reference.safetensors", p->folder);
    safetensors_write(&golden_state.sys, path, &saved, 1, &e);
    assert_ok(&e);
    struct sluice_request r = request_of(p, c);
    p->album.n = 0;
    assert_public(sluice_decode(p->session, &r, path, &error), &error);
    expect_decoded(p, c, "decoded");
    expect_pictures(p, c, "picture, worst", "picture, share");
}

static void test_images_equal_reference(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t i;
    char path[PATH];
    struct public_run *p = open_run(g, model_path(g, path), true);
    json_array_foreach(cases, i, c) {
        if (!is_image(c)) continue;
        draw_case(p, c);
        if (is_decoded(p, c)) decode_case(p, c);
    }
    close_run(p);
}

static void test_latents_equal_reference(const struct golden *g) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t i;
    char path[PATH];
    struct public_run *p = open_run(g, model_path(g, path), true);
    json_array_foreach(cases, i, c) {
        if (is_image(c)) run_case(p, c, true);
    }
    close_run(p);
}

static const struct golden_test tests[] = {
    {"ids", test_token_ids, PRECISION_F32, false, NULL},
    {"schedule", test_schedule, PRECISION_F32, false, "schedule.1.1.sigmas"},
    {"schedule by tokens", test_schedule, PRECISION_F32, false, "schedule_tokens.2.1.sigmas"},
    {"noise", test_noise, PRECISION_F32, false, "noise.0.randn"},
    {"hidden states", test_hidden_states, PRECISION_F32, false, "text.embedding"},
    {"hidden states, two encoders", test_hidden_states, PRECISION_F32, false, "t5.embedding"},
    {"hidden states, three encoders", test_hidden_states, PRECISION_F32, false, "case0.ids_3.cond"},
    {"images", test_images_equal_reference, PRECISION_F32, true, NULL},
    {"hidden states, bf16", test_hidden_states, PRECISION_BF16, true, "text.embedding"},
    {"hidden states, two encoders, bf16", test_hidden_states, PRECISION_BF16, true, "t5.embedding"},
    {"hidden states, three encoders, bf16", test_hidden_states, PRECISION_BF16, true, "case0.ids_3.cond"},
    {"latents, bf16", test_latents_equal_reference, PRECISION_BF16, true, NULL},
};

static const struct suite pipeline = {"pipeline", tests, COUNT_OF(tests), tolerances, gpu_tolerances};

static const struct suite *const *suites_of(const struct fixture *f) {
    static const struct suite *const suites[] = {&pipeline, NULL};
    return f->pipeline ? suites : NULL;
}

int main(int argc, char **argv) {
    return golden_main("pipeline", suites_of, argv + (argc > 0));
}
