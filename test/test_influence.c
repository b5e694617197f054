/* That every tensor is read and counts: each is made zero in a copy of the model, and the picture is drawn
 * again. What the reference found (influence.txt, by make.py --check) is the list: those that matter must
 * move the result, those that cannot must not. Fixtures without that list are passed over. */
#include "test/golden_run.h"

#include <fcntl.h>

/* The reference's own limits (test/golden/influence.py). STRIDE: every so many of a list sorted by influence,
 * from the weakest on, is drawn with; INFLUENCE=all in the environment draws with all of them, in minutes. */
#define LEAST   1e-3
#define NOTHING 2e-6
#ifdef __SANITIZE_ADDRESS__
enum { STRIDE = 64 };
#else
enum { STRIDE = 16 };
#endif

enum { STEPS = 2 };

static const struct gate gates[] = {{0}};

struct probe {
    const struct fixture *fixture;
    char model[PATH];
    struct tensor_index *index; /* of the component that is tried */
    bool decoder;
    struct tensor latent, decoded; /* with all tensors as they are */
    int n_tried, n_wrong;
    double least;
};

/* The final latent, or the decoder's output from the reference's latent. Copied to *out. */
static void draw(struct probe *probe, bool decode, struct tensor *out) {
    struct public_run *p = open_run(probe->fixture, probe->model, false);
    const json_t *c = json_array_get(json_object_get(probe->fixture->expect, "cases"), 0);
    struct sluice_request r = request_of(p, c);
    struct sluice_error error;
    struct error e = {0};
    char path[PATH];
    snprintf(path, sizeof path, "%s/latent.safetensors", p->folder);
    if (decode) {
        struct named_tensor saved = {"latent", ring(probe->fixture, "case0.latent")};
        safetensors_write(&rings_state.sys, path, &saved, 1, &e);
        assert_ok(&e);
        assert_public(sluice_decode(p->session, &r, path, &error), &error);
        *out = read_dump(p, "decoded", "decoded");
    } else {
        r.steps = STEPS;
        r.no_decode = true;
        r.save_latent = path;
        r.dump = NULL;
        assert_public(sluice_run(p->session, &r, &error), &error);
        *out = read_dump(p, "latent", "latent");
    }
    close_run(p);
}

static const struct index_entry *find_tensor(const struct tensor_index *index, const char *name) {
    char prefixed[2 * PATH];
    const struct index_entry *entry = index_find(index, name);
    snprintf(prefixed, sizeof prefixed, "model.%s", name);
    if (!entry) entry = index_find(index, prefixed);
    if (!entry) fail_msg("there is no tensor %s", name);
    return entry;
}

static void overwrite(const char *path, const void *bytes, const struct index_entry *entry) {
    int file = open(path, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, entry->bytes, (off_t)entry->offset), (ssize_t)entry->bytes);
    close(file);
}

/* What the result moves by when the tensor is zero. */
static double influence(struct probe *probe, const struct index_entry *entry) {
    struct error e = {0};
    const struct byte_source *source = &probe->index->sources[entry->source];
    char *kept = malloc(entry->bytes), *zeros = calloc(1, entry->bytes), path[2 * PATH];
    struct tensor out, truth = probe->decoder ? probe->decoded : probe->latent;
    source_read(source, kept, entry->bytes, entry->offset, &e);
    assert_ok(&e);
    /* The same file in the copy. */
    const char *tail = source->path + strlen(probe->fixture->path) + strlen("/model");
    snprintf(path, sizeof path, "%s%s", probe->model, tail);
    overwrite(path, zeros, entry);
    draw(probe, probe->decoder, &out);
    overwrite(path, kept, entry);
    free(kept);
    free(zeros);
    return distance(out.data, truth.data, tensor_elements(&truth));
}

/* "text_encoder.layers.0..." */
static void try_tensor(struct probe *probe, const char *name, bool matters) {
    static const struct {
        const char *prefix;
        enum role role;
    } parts[] = {{"text_encoder.", ROLE_TEXT}, {"transformer.", ROLE_DENOISER}, {"vae.", ROLE_DECODER}};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(parts[i].prefix);
        if (strncmp(name, parts[i].prefix, n)) continue;
        probe->index = &probe->fixture->model->component[parts[i].role].index;
        probe->decoder = parts[i].role == ROLE_DECODER;
        void *mark = rings_state.memory;
        double moved = influence(probe, find_tensor(probe->index, name + n));
        test_memory_free_to(mark);
        bool good = matters ? moved > LEAST : moved < NOTHING;
        if (!good) printf("  %s %s: zeroed it moves the result by %.2e\n", probe->fixture->name, name, moved);
        if (matters && moved < probe->least) probe->least = moved;
        probe->n_wrong += !good;
        probe->n_tried++;
        return;
    }
    fail_msg("no part of a model has the tensor %s", name);
}

/* Both lists of influence.txt: a number and a name a line; the first list matters. */
static void try_listed(struct probe *probe, FILE *list) {
    char line[PATH], name[PATH];
    double reference;
    bool matters = true;
    int n = 0, stride = getenv("INFLUENCE") ? 1 : STRIDE;
    while (fgets(line, sizeof line, list) && strncmp(line, "Constants", 9)) {
        if (!strncmp(line, "Tensors that", 12)) matters = false, n = 0;
        if (line[0] != ' ' || sscanf(line, "%lf %1000s", &reference, name) != 2) continue;
        if (n++ % stride == 0) try_tensor(probe, name, matters);
    }
}

static void test_influence(const struct fixture *f) {
    char path[PATH], folder[] = "/tmp/sluice-influence-XXXXXX", command[2 * PATH];
    struct probe probe = {.fixture = f, .least = INFINITY};
    snprintf(path, sizeof path, "%s/influence.txt", f->path);
    FILE *list = fopen(path, "r");
    if (!list) {
        printf("  %s has no influence.txt\n", f->name);
        return;
    }
    assert_non_null(mkdtemp(folder));
    snprintf(probe.model, sizeof probe.model, "%s/model", folder);
    snprintf(command, sizeof command, "cp -r '%s/model' '%s'", f->path, folder);
    assert_int_equal(system(command), 0);
    draw(&probe, false, &probe.latent);
    draw(&probe, true, &probe.decoded);
    try_listed(&probe, list);
    fclose(list);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
    printf("  %-10s %d tensors zeroed, the least that matters moves the result by %.2e (gate %.0e)\n",
           f->name, probe.n_tried, probe.least, LEAST);
    assert_int_equal(probe.n_wrong, 0);
    assert_true(probe.n_tried >= 5);
}

int main(void) {
    static const struct ring_test tests[] = {{"influence", test_influence, PRECISION_F32, false, NULL}};
    return rings_main("influence", tests, 1, gates, gates);
}
