/* Checks that every tensor is used: sets one tensor at a time to zero in a copy of the model, and computes
 * the result again. influence.txt (by make.py --check) lists the tensors that must change the result, and the
 * tensors that cannot. Fixtures without influence.txt are skipped. */
#include "test/lib/golden_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

/* LEAST: relative change of the result that counts as influence, as in test/golden/influence.py. NOTHING:
 * largest change by rounding alone, amplified by guidance and two steps (measured: 3.3e-6). Every STRIDE-th
 * tensor of the list, sorted from the weakest influence on, is tested; INFLUENCE=all tests all, in minutes.
 */
#define LEAST   1e-3
#define NOTHING 1e-5
enum { STRIDE = 24 };

enum { STEPS = 2 };

static const struct tolerance tolerances[] = {{0}};

/* The output of a run whose change measures a tensor's influence. */
enum result { LATENT, DECODED, ENCODED, SOUND, N_RESULTS };

struct influence_run {
    const struct golden *golden;
    char folder[PATH], model[PATH + 8]; /* copies of model and control networks; the model's copy */
    const struct tensor_index *index;
    enum result result;
    struct tensor
        unchanged[N_RESULTS]; /* outputs of the unchanged model; rank 0: the fixture lacks this output */
    int n_tested, n_wrong;
    double least;
};

/* Returns the fixture's first case, for ENCODED the first case with an encoded input image, for SOUND the
 * first case with samples; NULL if there is none. */
static const json_t *case_for(const struct golden *g, enum result result) {
    json_t *cases = json_object_get(g->expect, "cases"), *c;
    size_t i;
    if (result == LATENT || result == DECODED) return json_array_get(cases, 0);
    json_array_foreach(cases, i, c) {
        char name[NAME];
        if (result == SOUND && has_golden(g, case_tensor(c, "wave", name))) return c;
        if (result == ENCODED &&
            (json_is_true(json_object_get(c, "init")) || json_array_size(json_object_get(c, "references"))))
            return c;
    }
    return NULL;
}

static struct tensor decode(struct public_run *p, const struct sluice_request *r) {
    struct sluice_error error;
    struct error e = {0};
    struct named_tensor saved = {"latent", golden(p->golden, "case0.latent")};
    char path[PATH];
    snprintf(path, sizeof path, "%s/reference.safetensors", p->folder);
    safetensors_write(&golden_state.sys, path, &saved, 1, &e);
    assert_ok(&e);
    assert_public(sluice_decode(p->session, r, path, &error), &error);
    return read_decoded(p, r->frames > 1 ? r->frames : 1);
}

/* Returns the name under which a run dumps an encoded input image: image latent or concat channels. */
static const char *encoded_as(const struct golden *g) {
    return has_golden(g, "case0.concat") ? "concat" : "encoded";
}

/* Returns the latent after the last step; of a model with sound, both latents as one vector. */
static struct tensor last_latents(struct public_run *p) {
    char last[NAME];
    snprintf(last, sizeof last, "latent_%03d", STEPS);
    struct tensor video = read_dump(p, last, last);
    if (!p->golden->model->recipe->sound.channels) return video;
    snprintf(last, sizeof last, "sound_%03d", STEPS);
    struct tensor sound = read_dump(p, last, last);
    int32_t n = (int32_t)tensor_elements(&video), both = n + (int32_t)tensor_elements(&sound);
    struct tensor out = test_tensor(DTYPE_F32, 1, &both);
    memcpy(out.data, video.data, (size_t)tensor_bytes(&video));
    memcpy((float *)out.data + n, sound.data, (size_t)tensor_bytes(&sound));
    return out;
}

/* Runs the model. Returns the last latents, the image decoded from the reference's latent, the latent of an
 * input image, or the sound's samples. */
static struct tensor draw(struct influence_run *state, enum result result) {
    struct public_run *p =
        open_parts(state->golden, golden_options(state->golden, state->model, state->folder), false);
    struct sluice_request r = request_of(p, case_for(state->golden, result));
    struct sluice_error error;
    struct tensor out;
    if (result == DECODED) {
        out = decode(p, &r);
    } else if (result == SOUND) {
        assert_public(sluice_run(p->session, &r, &error), &error);
        out = read_dump(p, "wave", "wave");
    } else {
        r.steps = STEPS;
        if (r.init_image && result == ENCODED) r.strength = 1;
        r.no_decode = true;
        assert_public(sluice_run(p->session, &r, &error), &error);
        out =
            result == ENCODED ? read_dump(p, encoded_as(p->golden), encoded_as(p->golden)) : last_latents(p);
    }
    close_run(p);
    return out;
}

static const struct index_entry *find_tensor(const struct tensor_index *index, const char *name) {
    static const char *const prefixes[] = {
        "model.", "text_model.",
        "vision_model."}; /* prefixes that the engine's tensor names have and influence.txt omits */
    const struct index_entry *entry = index_find(index, name);
    for (int i = 0; i < COUNT_OF(prefixes) && !entry; i++) {
        char prefixed[2 * PATH];
        snprintf(prefixed, sizeof prefixed, "%s%s", prefixes[i], name);
        entry = index_find(index, prefixed);
    }
    /* influence.txt has prefixes that the engine's tensor names omit ("model.language_model.") */
    for (const char *rest = strchr(name, '.'); rest && !entry; rest = strchr(rest, '.'))
        entry = index_find(index, ++rest);
    if (!entry) fail_msg("the model has no tensor %s", name);
    return entry;
}

static void overwrite(const char *path, const void *bytes, const struct index_entry *entry) {
    int file = open(path, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, entry->bytes, (off_t)entry->offset), (ssize_t)entry->bytes);
    close(file);
}

/* Returns the relative L2 change of the result when the tensor is zero. */
static double influence(struct influence_run *state, const struct index_entry *entry) {
    struct error e = {0};
    const struct byte_source *source = &state->index->sources[entry->source];
    char *original = malloc(entry->bytes), *zeros = calloc(1, entry->bytes), path[2 * PATH];
    struct tensor out, truth = state->unchanged[state->result];
    source_read(source, original, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    const char *model = golden_model(state->golden);
    size_t length = strlen(model);
    if (!strncmp(source->path, model, length))
        snprintf(path, sizeof path, "%s%s", state->model, source->path + length);
    else
        snprintf(path, sizeof path, "%s%s", state->folder, source->path + strlen(state->golden->path));
    overwrite(path, zeros, entry);
    out = draw(state, state->result);
    overwrite(path, original, entry);
    free(original);
    free(zeros);
    return distance(out.data, truth.data, tensor_elements(&truth));
}

static enum result result_of(const struct influence_run *state, const char *name) {
    if (!strncmp(name, "audio_vae.", 10) || !strncmp(name, "vocoder.", 8)) return SOUND;
    if (strncmp(name, "vae.", 4)) return LATENT;
    bool encoder = !strncmp(name, "vae.encoder.", 12) || !strncmp(name, "vae.quant_conv.", 15);
    return encoder && state->unchanged[ENCODED].rank ? ENCODED : DECODED;
}

/* Returns the length of the slot's folder and shared prefix at the start of a tensor name; 0: the tensor
 * belongs to another slot. */
static size_t slot_name_offset(const struct slot *slot, const char *name) {
    if (!slot->family) return 0;
    size_t folder = strlen(slot->folder) + 1, prefix = slot->prefix ? strlen(slot->prefix) : 0;
    if (strncmp(name, slot->folder, folder - 1) || name[folder - 1] != '.') return 0;
    if (prefix && !strncmp(name + folder, "model.", 6)) folder += 6;
    return prefix && strncmp(name + folder, slot->prefix, prefix) ? 0 : folder + prefix;
}

/* Returns the length of "FOLDER." of control network k at the start of a tensor name; 0: the tensor belongs
 * to another component. */
static size_t network_name_offset(const struct fixture *f, int k, const char *name) {
    const char *folder = k >= 0 && k < SLUICE_CONTROLS_MAX ? f->control_nets[k] : NULL;
    size_t n = folder ? strlen(folder) : 0;
    return n && !strncmp(name, folder, n) && name[n] == '.' ? n + 1 : 0;
}

static void test_zeroed_tensor(struct influence_run *state, const char *name, bool matters) {
    const struct sluice_model *model = state->golden->model;
    for (int slot = 0; slot < MODEL_COMPONENTS; slot++) {
        size_t n = slot < SLOTS_MAX ? slot_name_offset(&model->recipe->slot[slot], name)
                                    : network_name_offset(state->golden->fixture, slot - MODEL_CONTROL, name);
        if (!n) continue;
        state->index = &model->component[slot].index;
        state->result = result_of(state, name);
        void *mark = golden_state.memory;
        double moved = influence(state, find_tensor(state->index, name + n));
        test_memory_free_to(mark);
        bool good = matters ? moved > LEAST : moved < NOTHING;
        if (!good)
            printf("  %s %s: setting it to zero changes the result by %.2e\n", state->golden->name, name,
                   moved);
        if (matters && moved < state->least) state->least = moved;
        state->n_wrong += !good;
        state->n_tested++;
        return;
    }
    fail_msg("no component has the tensor %s", name);
}

/* Reads the two lists of influence.txt, with a number and a name in each line: tensors that change the
 * result, then tensors that cannot. */
static void test_listed_tensors(struct influence_run *state, FILE *list) {
    char line[PATH], name[PATH];
    double reference;
    bool matters = true;
    int n = 0, stride = getenv("INFLUENCE") ? 1 : STRIDE;
    while (fgets(line, sizeof line, list) && strncmp(line, "Constants", 9)) {
        if (!strncmp(line, "Tensors that", 12)) matters = false, n = 0;
        if (line[0] != ' ' || sscanf(line, "%lf %1000s", &reference, name) != 2) continue;
        if (n++ % stride == 0) test_zeroed_tensor(state, name, matters);
    }
}

static void test_unused_tensor(const struct golden *g) {
    char path[PATH], folder[] = "/tmp/sluice-influence-XXXXXX", command[2 * PATH];
    struct influence_run state = {.golden = g, .least = INFINITY};
    const struct fixture *f = g->fixture;
    snprintf(path, sizeof path, "%s/influence.txt", g->path);
    FILE *list = fopen(path, "r");
    if (!list) {
        printf("  %s has no influence.txt\n", g->name);
        return;
    }
    assert_non_null(mkdtemp(folder));
    snprintf(state.folder, sizeof state.folder, "%s", folder);
    snprintf(state.model, sizeof state.model, "%s/model", folder);
    snprintf(command, sizeof command, "cp -rL '%s' '%s'", golden_model(g), folder);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < SLUICE_CONTROLS_MAX && f->control_nets[i]; i++) {
        snprintf(command, sizeof command, "cp -rL '%s/%s' '%s'", g->path, f->control_nets[i], folder);
        assert_int_equal(system(command), 0);
    }
    if (f->redux) {
        snprintf(command, sizeof command, "cp -rL '%s/%s' '%s'", g->path, f->redux, folder);
        assert_int_equal(system(command), 0);
    }
    for (enum result r = 0; r < N_RESULTS; r++)
        if (case_for(g, r)) state.unchanged[r] = draw(&state, r);
    test_listed_tensors(&state, list);
    fclose(list);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    printf("  %-12s %d tensors set to zero, smallest change of a tensor that matters: %.2e (required %.0e)\n",
           g->name, state.n_tested, state.least, LEAST);
    assert_int_equal(state.n_wrong, 0);
    assert_true(state.n_tested >= 4);
}

static const struct golden_test tests[] = {{"influence", test_unused_tensor, PRECISION_F32, false, NULL}};

static const struct suite *const *suites_of(const struct fixture *f) {
    static const struct suite influence_suite = {"every tensor", tests, COUNT_OF(tests), tolerances,
                                                 tolerances},
                              *const suites[] = {&influence_suite, NULL};
    return f->pipeline ? suites : NULL;
}

int main(int argc, char **argv) {
    return golden_main("influence", suites_of, argv + (argc > 0));
}
