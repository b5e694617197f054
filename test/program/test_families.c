/* `families` lists exactly the flags that each model accepts. For each published model, planned without
 * files, and each flag: a request with the flag (and the inputs that the model requires) is accepted if and
 * only if the flag is listed. Control networks and upscalers are listed too. */
#include "test/lib/rig.h"
#include "test/lib/tables.h"

enum { SIDE = 256, N_CONTROL = 9 };

static const uint8_t grey[3 * SIDE * SIDE];
static const struct sluice_picture picture = {
    .struct_size = sizeof picture, .width = SIDE, .height = SIDE, .rgb = grey};
static const struct sluice_picture *const control_frames[N_CONTROL] = {
    &picture, &picture, &picture, &picture, &picture, &picture, &picture, &picture, &picture};
static const int layers[] = {1};

/* One function per flag adds its input to a request. */
static void with_negative(struct sluice_request *r) {
    r->negative_prompt = "fog";
}
static void with_guidance(struct sluice_request *r) {
    r->guidance = 3;
}
static void with_input_image(struct sluice_request *r) {
    r->init_image = &picture;
}
static void with_mask(struct sluice_request *r) {
    r->mask = &picture;
}
static void with_last_frame(struct sluice_request *r) {
    r->end_image = &picture;
}
static void with_control(struct sluice_request *r) {
    r->control = control_frames;
    r->n_control = N_CONTROL;
}
static void with_control_image(struct sluice_request *r) {
    static const struct sluice_control own = {
        .struct_size = sizeof own, .network = -1, .image = &picture, .strength = 1, .mode = -1};
    r->controls = &own;
    r->n_controls = 1;
}
static void with_reference(struct sluice_request *r) {
    r->references = control_frames;
    r->n_references = 1;
}
static void with_skip_layers(struct sluice_request *r) {
    r->slg_layers = layers;
    r->n_slg_layers = 1;
}

static const struct flag {
    const char *name;
    void (*with)(struct sluice_request *r);
    bool needs_guidance;  /* the flag is accepted without guidance, but then has no effect */
    const char *needs[2]; /* the flag requires one of these other flags */
} flags[] = {{.name = "--negative-prompt", .with = with_negative, .needs_guidance = true},
             {.name = "--guidance", .with = with_guidance},
             {.name = "--init-img", .with = with_input_image},
             {.name = "--mask", .with = with_mask, .needs = {"--init-img", "--control"}},
             {.name = "--end-img", .with = with_last_frame, .needs = {"--init-img"}},
             {.name = "--control", .with = with_control},
             {.name = "--control-image", .with = with_control_image},
             {.name = "--ref-image", .with = with_reference},
             {.name = "--slg-layers", .with = with_skip_layers, .needs_guidance = true}};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static const struct flag *find_flag(const char *name) {
    for (int i = 0; i < N_FLAGS; i++)
        if (!strcmp(flags[i].name, name)) return &flags[i];
    check(false, "this test lacks the flag %s", name);
    return &flags[0];
}

static json_t *find_take(json_t *family, const char *flag) {
    json_t *take, *takes = json_object_get(family, "takes");
    for (size_t i = 0; (take = json_array_get(takes, i)); i++)
        if (!strcmp(word(take, "flag"), flag)) return take;
    return NULL;
}

/* Adds to a request: the inputs that the model requires, the tested flag, and a flag that the tested flag
 * requires. */
static void fill(struct sluice_request *r, json_t *family, const struct flag *flag) {
    json_t *take, *takes = json_object_get(family, "takes");
    for (size_t i = 0; (take = json_array_get(takes, i)); i++)
        if (json_is_true(json_object_get(take, "needed"))) find_flag(word(take, "flag"))->with(r);
    const char *needs = flag->needs[0];
    if (needs && flag->needs[1] && !find_take(family, needs)) needs = flag->needs[1];
    if (needs) find_flag(needs)->with(r);
    flag->with(r);
}

static void test_flag(struct rig *rig, struct sluice_request r, json_t *family, const struct flag *flag) {
    struct sluice_error error;
    char *plan = NULL;
    bool fits, listed = find_take(family, flag->name), guided = real(family, "cfg_scale") != 1;
    if (flag->needs_guidance && !guided) {
        /* Listed, to be used with --cfg-scale, if guidance of this model needs a negative prompt. */
        bool offered =
            flag->with == with_negative && json_is_true(json_object_get(family, "cfg_needs_negative"));
        check(listed == offered, "%s is not guided and %s %s", word(family, "name"),
              listed ? "lists" : "does not list", flag->name);
        return;
    }
    fill(&r, family, flag);
    int status = sluice_plan_query(rig->session, &r, NULL, &plan, &fits, &error);
    sluice_free(plan);
    check(listed ? status == SLUICE_OK : status == SLUICE_USAGE,
          "%s: %s is %slisted, and planned with: %s %s", word(family, "name"), flag->name,
          listed ? "" : "not ", sluice_code_name(status), error.what);
}

static void test_family(json_t *family) {
    struct sluice_request r = {.struct_size = sizeof r};
    struct rig rig;
    if (rig_open_with(&rig, (struct sluice_model_options){.family = word(family, "name")},
                      (struct sluice_session_options){.threads = 1, .plans_only = true}, 1)) {
        sluice_request_defaults(rig.model, &r);
        r.width = r.height = SIDE;
        r.strength = r.steps = 1;
        r.no_decode = true;
        r.max_ram_bytes = (int64_t)64 << 30;
        if (r.frames > 1) r.frames = N_CONTROL;
        for (int i = 0; i < N_FLAGS; i++) test_flag(&rig, r, family, &flags[i]);
    }
    rig_close(&rig);
}

/* A model lists --control-net or --upscaler if and only if such a network lists the model. */
static void test_networks(json_t *root) {
    static const char *const kinds[2][2] = {{"control", "--control-net"}, {"latent upscaler", "--upscaler"}};
    json_t *models = json_object_get(root, "families"), *networks = json_object_get(root, "networks");
    json_t *family, *network, *model;
    size_t i, j, k;
    int n_upscalers = 0;
    for (int kind = 0; kind < 2; kind++) {
        json_array_foreach(models, i, family) {
            int n = 0;
            json_array_foreach(networks, j, network) {
                if (strcmp(word(network, "kind"), kinds[kind][0]) != 0) continue;
                json_array_foreach(json_object_get(network, "of"), k, model) {
                    n += !strcmp(json_string_value(model), word(family, "name"));
                }
            }
            check((n > 0) == (find_take(family, kinds[kind][1]) != NULL), "%s: %d networks for %s",
                  word(family, "name"), n, kinds[kind][1]);
        }
    }
    json_array_foreach(networks, j, network) {
        bool fits_all = !strcmp(word(network, "kind"), "upscaler");
        n_upscalers += strcmp(word(network, "kind"), "control") != 0;
        check(real(network, "bytes") > 0, "%s: no size", word(network, "name"));
        check(fits_all == !json_array_size(json_object_get(network, "of")), "%s: %zu models",
              word(network, "name"), json_array_size(json_object_get(network, "of")));
    }
    check(n_upscalers == 3, "%d upscalers", n_upscalers);
}

/* Families without a title, such as the synthetic one of the test library, are not published models. */
int main(void) {
    struct sluice_error error;
    char *text = NULL;
    size_t i;
    json_t *family;
    tables_use_published_areas();
    if (!check(!sluice_families(&text, &error), "%s", error.what)) return finish();
    json_t *root = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(root, "families"), i, family) {
        if (json_is_string(json_object_get(family, "title"))) test_family(family);
    }
    test_networks(root);
    json_decref(root);
    sluice_free(text);
    return finish();
}
