/* Look-ups in the recipes: implements models.h. */
#include "models/models.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

int recipe_slot(const struct recipe *recipe, enum family_kind kind) {
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++)
        if (recipe->slot[i].family->kind == kind && !recipe->slot[i].extra) return i;
    return SLOTS_MAX;
}

const struct family *recipe_family(const struct recipe *recipe, enum family_kind kind) {
    int slot = recipe_slot(recipe, kind);
    return slot < SLOTS_MAX ? recipe->slot[slot].family : NULL;
}

const struct condition *recipe_condition(const struct recipe *recipe, int slot, enum condition_kind what) {
    for (int i = 0; i < recipe->text.n_conditions; i++)
        if (recipe->text.condition[i].slot == slot && recipe->text.condition[i].what == what)
            return &recipe->text.condition[i];
    return NULL;
}

bool recipe_has_edit_variant(const struct recipe *recipe) {
    const struct family *denoiser = recipe_family(recipe, FAMILY_DENOISER);
    for (const struct recipe *const *r = recipes; *r; r++)
        if ((*r)->selection.edit && recipe_family(*r, FAMILY_DENOISER) == denoiser &&
            (*r)->selection.variant == recipe->selection.variant)
            return true;
    return false;
}

int recipe_count_slots(const struct recipe *recipe, const struct family *family) {
    int n = 0;
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++) n += recipe->slot[i].family == family;
    return n;
}

const struct hf_source *recipe_source(const struct recipe *recipe, int i) {
    for (int list = 0; list < PUBLISHED_SOURCES_MAX; list++)
        for (const struct hf_source *s = recipe->published.sources[list]; s && s->repository; s++)
            if (!i--) return s;
    return NULL;
}

int recipe_redux_slot(const struct recipe *recipe) {
    for (int i = 0; i < recipe->text.n_conditions; i++)
        if (recipe->text.condition[i].of_redux) return recipe->text.condition[i].slot;
    return SLOTS_MAX;
}

int recipe_source_slot(const struct recipe *recipe, int slot) {
    const char *flag = recipe->slot[slot].reads;
    for (int i = 0; i < slot && flag; i++)
        if (recipe->slot[i].flag && !strcmp(recipe->slot[i].flag, flag)) return i;
    return SLOTS_MAX;
}

int recipe_reader_slot(const struct recipe *recipe, int slot) {
    for (int i = slot + 1; i < SLOTS_MAX && recipe->slot[i].family; i++)
        if (recipe_source_slot(recipe, i) == slot) return i;
    return SLOTS_MAX;
}

int slot_dimension(const struct slot *slot, const struct dimension *d) {
    for (int i = 0; i < SLOT_DIMENSIONS_MAX && slot->dimension[i].name; i++)
        if (d->name && !strcmp(slot->dimension[i].name, d->name)) return slot->dimension[i].value;
    return d->published;
}

/* Slots of all recipes in order, listed once, because opening a model loops over the slots thousands of
 * times. */
enum { ALL_SLOTS_MAX = 1024 };
static const struct slot *all_slots[ALL_SLOTS_MAX];
static pthread_once_t all_slots_listed = PTHREAD_ONCE_INIT;

/* Components that belong to no pipeline, with slots as in a recipe: control networks, then upscalers, then
 * the same upscalers for use between two passes, then upscalers of latents. */
enum { CONTROL_SLOTS, UPSCALER_SLOTS, HIRES_SLOTS, LATENT_UPSCALER_SLOTS, N_NETWORK_SLOTS };
static struct recipe network_slots[N_NETWORK_SLOTS];

static void list_network_slots(void) {
    static const char *const control_prefixes[] = {"", "control_model.", NULL};
    /* Names of the state in Real-ESRGAN's training checkpoints. */
    static const char *const upscaler_prefixes[] = {"", "params_ema.", "params.", NULL};
    static const char *const no_prefixes[] = {"", NULL};
    static const struct slot slots[N_NETWORK_SLOTS] = {{.flag = "--control-net",
                                                        .extra = true,
                                                        .display_name = "control network",
                                                        .folder = "controlnet",
                                                        .prefixes = control_prefixes},
                                                       {.flag = "--upscale-model",
                                                        .extra = true,
                                                        .display_name = "upscaler",
                                                        .folder = "upscaler",
                                                        .prefixes = upscaler_prefixes},
                                                       {.flag = "--hires-upscaler",
                                                        .extra = true,
                                                        .display_name = "upscaler between the passes",
                                                        .folder = "hires_upscaler",
                                                        .prefixes = upscaler_prefixes},
                                                       {.flag = "--upscaler",
                                                        .extra = true,
                                                        .display_name = "latent upscaler",
                                                        .folder = "latent_upsampler",
                                                        .prefixes = no_prefixes}};
    int n[N_NETWORK_SLOTS] = {0};
    for (const struct family *const *f = families; *f; f++) {
        if (!family_outside_pipelines(*f)) continue;
        int first = (*f)->kind == FAMILY_CONTROL    ? CONTROL_SLOTS
                    : (*f)->kind == FAMILY_UPSCALER ? UPSCALER_SLOTS
                                                    : LATENT_UPSCALER_SLOTS;
        int last = first == UPSCALER_SLOTS ? HIRES_SLOTS : first;
        for (int list = first; list <= last; list++) {
            assert(n[list] < SLOTS_MAX);
            struct slot *slot = &network_slots[list].slot[n[list]++];
            *slot = slots[list];
            slot->family = *f;
        }
    }
}

static void list_all_slots(void) {
    int n = 0;
    list_network_slots();
    for (const struct recipe *const *r = recipes; *r; r++)
        for (int k = 0; k < SLOTS_MAX && (*r)->slot[k].family; k++) {
            assert(n < ALL_SLOTS_MAX - 1);
            all_slots[n++] = &(*r)->slot[k];
        }
    for (int list = 0; list < N_NETWORK_SLOTS; list++)
        for (const struct slot *slot = network_slots[list].slot; slot->family; slot++) all_slots[n++] = slot;
}

const struct slot *models_slot(int i) {
    pthread_once(&all_slots_listed, list_all_slots);
    return all_slots[i];
}

bool slot_is_extra(const struct slot *slot) {
    return slot->extra || slot->family->kind == FAMILY_TINY_DECODER;
}

const struct recipe *models_find_extra(const char *name, int *slot) {
    for (const struct recipe *const *r = recipes; *r; r++)
        for (*slot = 0; (*r)->slot[*slot].family; ++*slot)
            if (slot_is_extra(&(*r)->slot[*slot]) && !strcmp((*r)->slot[*slot].family->name, name)) return *r;
    models_slot(0); /* lists network_slots */
    for (int list = 0; list < N_NETWORK_SLOTS; list++)
        for (*slot = 0; network_slots[list].slot[*slot].family; ++*slot)
            if (!strcmp(network_slots[list].slot[*slot].family->name, name)) return &network_slots[list];
    return NULL;
}

bool slot_takes(const struct slot *slot, const struct family *family, const char *prefix) {
    if (slot->family != family) return false;
    for (const char *const *p = slot->prefixes; p && *p; p++)
        if (!strcmp(*p, prefix ? prefix : "")) return true;
    return false;
}

bool slot_fits_family(const struct slot *slot, const struct family *family) {
    return slot->family == family || (family && slot->family->files.same_tensors == family);
}

static bool find_slot(const struct recipe *recipe, const struct family *family, const char *prefix,
                      int *slot) {
    for (*slot = 0; recipe->slot[*slot].family; ++*slot)
        if (slot_takes(&recipe->slot[*slot], family, prefix)) return true;
    return false;
}

const struct recipe *models_find_slot(const struct family *family, const char *prefix,
                                      const struct family *denoiser, int *slot) {
    for (const struct recipe *const *r = recipes; *r; r++) {
        bool may = !denoiser || recipe_family(*r, FAMILY_DENOISER) == denoiser;
        if (may && find_slot(*r, family, prefix, slot)) return *r;
    }
    models_slot(0); /* lists network_slots */
    for (int list = 0; list < N_NETWORK_SLOTS && !denoiser; list++)
        if (find_slot(&network_slots[list], family, prefix, slot)) return &network_slots[list];
    return NULL;
}

int condition_parts(const struct condition *condition) {
    return condition->states_by_rows ? hidden_states_count(&condition->hidden, 0) : 1;
}
