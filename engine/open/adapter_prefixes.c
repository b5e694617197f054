/* Prefixes: see adapter_prefixes.h. */
#include "engine/open/adapter_prefixes.h"

#include "engine/open/paths.h"

#include <stdio.h>
#include <string.h>

static const char *const of_denoisers[] = {
    "",
    "transformer.",
    "unet.",
    "diffusion_model.",
    "model.diffusion_model.",
    "lora_unet_",
    "lora_unet__",
    "lora_transformer_",
    "lycoris_",
    "lycoris_unet_",
};
static const char second_denoiser[] = "transformer_2.";

/* Kohya's names count the encoders of a pipeline, as the folders do. Of Flux's T5 some say that it is the
 * third. */
static const struct {
    const struct family *family; /* NULL: any */
    const char *folder, *prefix;
} of_encoders[] = {
    {NULL, "text_encoder", "text_encoder."}, {NULL, "text_encoder", "lora_te_"},
    {NULL, "text_encoder", "lora_te1_"},     {NULL, "text_encoder_2", "text_encoder_2."},
    {NULL, "text_encoder_2", "lora_te2_"},   {NULL, "text_encoder_3", "text_encoder_3."},
    {NULL, "text_encoder_3", "lora_te3_"},   {&family_t5, "text_encoder_2", "lora_te3_"},
};

enum {
    N_OF_DENOISERS = sizeof of_denoisers / sizeof *of_denoisers,
    N_OF_ENCODERS = sizeof of_encoders / sizeof *of_encoders,
};

static bool begins(const char *name, const char *prefix) {
    return !strncmp(name, prefix, strlen(prefix));
}

const char *adapter_behind_prefix(const char *name, const char *prefix) {
    static const char peft[] = "base_model.model.";
    if (!begins(name, prefix)) return NULL;
    name += strlen(prefix);
    return begins(name, peft) ? name + sizeof peft - 1 : name;
}

/* Beside trainers' prefixes those that its tensors have in files of several components. */
static void list_encoder(const struct slot *slot, const char **to) {
    int n = 0;
    for (int i = 0; i < N_OF_ENCODERS; i++) {
        bool of_family = !of_encoders[i].family || of_encoders[i].family == slot->family;
        if (of_family && !strcmp(of_encoders[i].folder, slot->folder)) to[n++] = of_encoders[i].prefix;
    }
    for (const char *const *own = slot->prefixes; own && *own && n < ADAPTER_PREFIXES_MAX; own++)
        if (**own) to[n++] = *own;
}

static void list_denoiser(const char **to) {
    for (int i = 0; i < N_OF_DENOISERS; i++) to[i] = of_denoisers[i];
}

/* The file's name says it, or that of the folder that it lies in. */
static bool is_called(const struct adapter *a, const struct slot *slot) {
    const char *path = a->index.sources[0].path, *file = path_last_part(path);
    char folder[256];
    int n = (int)(file - path);
    while (n > 0 && path[n - 1] == '/') n--;
    snprintf(folder, sizeof folder, "%.*s", n, path);
    for (const char *const *word = slot->called; *word; word++)
        if (path_has_word(file, *word) || path_has_word(path_last_part(folder), *word)) return true;
    return false;
}

static bool says_second(const struct adapter *a) {
    for (int i = 0; i < a->n_modules; i++)
        if (begins(a->modules[i].name, second_denoiser)) return true;
    return false;
}

static void choose_denoiser(const struct adapter *a, const struct recipe *recipe, int first, int second,
                            struct adapter_prefixes *prefixes) {
    bool of_first = is_called(a, &recipe->slot[first]), of_second = is_called(a, &recipe->slot[second]);
    if (says_second(a)) {
        prefixes->of[second][0] = second_denoiser;
        prefixes->of[second][1] = NULL;
    } else if (of_first != of_second) {
        prefixes->of[of_first ? second : first][0] = NULL;
    } else {
        prefixes->for_all = true;
    }
}

void adapter_find_prefixes(const struct adapter *a, const struct recipe *recipe,
                           struct adapter_prefixes *prefixes) {
    int first = recipe_slot(recipe, FAMILY_DENOISER);
    *prefixes = (struct adapter_prefixes){0};
    for (int i = 0; i < SLOTS_MAX && recipe->slot[i].family; i++) {
        enum family_kind kind = recipe->slot[i].family->kind;
        if (kind == FAMILY_TEXT) list_encoder(&recipe->slot[i], prefixes->of[i]);
        if (kind != FAMILY_DENOISER) continue;
        list_denoiser(prefixes->of[i]);
        if (i != first) choose_denoiser(a, recipe, first, i, prefixes);
    }
}
