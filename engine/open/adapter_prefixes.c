#include "engine/open/adapter_prefixes.h"

#include "engine/base/text.h"
#include "engine/open/paths.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

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

/* Prefixes for text encoders. kohya numbers the encoders (te1, te2) like Hugging Face's folders; some
 * trainers give Flux's T5 the number 3. */
static const struct {
    const struct family *family; /* NULL: any family */
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

const char *adapter_after_prefix(const char *name, const char *prefix) {
    static const char peft[] = "base_model.model.";
    if (!begins(name, prefix)) return NULL;
    name += strlen(prefix);
    return begins(name, peft) ? name + sizeof peft - 1 : name;
}

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

#define NOISE "noise"

/* True for a word that may follow "high" in the name of a file for one transformer: "noise", "lora", "model",
 * and words with digits (version, rank, bits). */
static bool is_neutral_word(const char *word, int bytes) {
    static const char *const plain[] = {NOISE, "lora", "model"};
    for (int i = 0; i < bytes; i++)
        if (isdigit((unsigned char)word[i])) return true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if ((size_t)bytes == strlen(plain[i]) && !strncasecmp(word, plain[i], (size_t)bytes)) return true;
    return false;
}

/* True if the word "high" or "low" that ends at `at` in a file name means one of WAN's two transformers. Then
 * "noise" follows, or nothing but neutral words. Otherwise the word belongs to a style ("low-poly"). */
static bool ends_name(const char *at, const char *end) {
    if (at < end && !strncasecmp(at + 1, NOISE, strlen(NOISE)) &&
        !isalnum((unsigned char)at[1 + strlen(NOISE)]))
        return true;
    while (at < end) {
        int bytes = 0;
        while (at + bytes < end && isalnum((unsigned char)at[bytes])) bytes++;
        if (bytes && !is_neutral_word(at, bytes)) return false;
        at += bytes + 1;
    }
    return true;
}

static bool name_selects(const char *name, const char *end, const char *word) {
    size_t n = strlen(word);
    bool whole = ends_with(word, NOISE);
    for (const char *at = name; at + n <= end; at++) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && !strncasecmp(at, word, n) && !isalnum((unsigned char)at[n]) &&
            (whole || ends_name(at + n, end)))
            return true;
    }
    return false;
}

static bool name_selects_any(const char *name, const char *end, const struct slot *slot) {
    for (const char *const *word = slot->name_words; *word; word++)
        if (name_selects(name, end, *word)) return true;
    return false;
}

static int named_slot(const char *name, const char *end, const struct recipe *recipe, int first, int second) {
    bool of_first = name_selects_any(name, end, &recipe->slot[first]);
    bool of_second = name_selects_any(name, end, &recipe->slot[second]);
    return of_first == of_second ? -1 : of_first ? first : second;
}

/* Returns the slot of the denoiser that the adapter's file name selects, or else the name of the file's
 * folder. -1: neither name selects a denoiser. */
static int find_named(const struct adapter *a, const struct recipe *recipe, int first, int second) {
    const char *path = a->index.sources[0].path, *file = path_last_part(path), *end = strrchr(file, '.');
    int slot = named_slot(file, end ? end : file + strlen(file), recipe, first, second);
    end = file;
    while (end > path && end[-1] == '/') end--;
    const char *folder = end;
    while (folder > path && folder[-1] != '/') folder--;
    return slot < 0 ? named_slot(folder, end, recipe, first, second) : slot;
}

static bool names_second_denoiser(const struct adapter *a) {
    for (int i = 0; i < a->n_modules; i++)
        if (begins(a->modules[i].name, second_denoiser)) return true;
    return false;
}

static void choose_denoiser(const struct adapter *a, const struct recipe *recipe, int first, int second,
                            struct adapter_prefixes *prefixes) {
    int named = find_named(a, recipe, first, second);
    if (names_second_denoiser(a)) {
        prefixes->of[second][0] = second_denoiser;
        prefixes->of[second][1] = NULL;
    } else if (named >= 0) {
        prefixes->of[named == first ? second : first][0] = NULL;
        prefixes->named = &recipe->slot[named];
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
