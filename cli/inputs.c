/* Protects input files from being overwritten: see inputs.h. Opens no file. */
#include "cli/inputs.h"

#include "cli/fail.h"
#include "cli/picture.h"
#include "cli/video.h"
#include "cli/prompt.h"

#include <fnmatch.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool is_read(const struct flag *flag) {
    static const char *const names[] = {"--model",       "--tokenizer", "--prompt",  "--negative-prompt",
                                        "--init-latent", "--init-img",  "--end-img", "--ref-image",
                                        "--mask",        "--control",   "--plan",    "--rates",
                                        "--lora",        "--lora-dir"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(flag->name, names[i])) return true;
    return flag->kind == FLAG_PART;
}

/* True for flags that name a model or tokenizer: a folder, or a file with companions. */
static bool is_part(const struct flag *flag) {
    return flag->kind == FLAG_PART || !strcmp(flag->name, "--model") || !strcmp(flag->name, "--tokenizer");
}

/* Companions: name patterns of files that are read together with a model file in the same folder. */
static const char *const companions[] = {
    "config.json", "*-[0-9]*-of-[0-9]*.safetensors", "tokenizer*.json",  "vocab.json",
    "merges.txt",  "special_tokens_map.json",        "added_tokens.json"};

static int inputs_refuse(struct sluice_error *e, const char *flag, const char *name, const char *what,
                         const char *reader) {
    return fail(e, SLUICE_USAGE, "%s would overwrite %s %s" WHERE "%s" FOUND "\"%s\"" EXPECTED "another name",
                flag, what, reader, flag, name);
}

static bool same_file(const struct stat *output, const char *input) {
    struct stat info;
    return stat(input, &info) == 0 && info.st_dev == output->st_dev && info.st_ino == output->st_ino;
}

/* Compares folders by inode, since one folder can be mounted in several places. */
static bool same_folder(const char *one, const char *other) {
    struct stat info;
    return stat(one, &info) == 0 && same_file(&info, other);
}

bool inputs_folder_of(const char *name, char out[PATH_MAX]) {
    char folder[PATH_MAX];
    const char *slash = strrchr(name, '/');
    int bytes =
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - name + 1) : 1, slash ? name : ".");
    return bytes < PATH_MAX && realpath(folder, out);
}

/* Removes the last component of a path; false if there is none. */
static bool go_up(char *path) {
    char *slash = strrchr(path, '/');
    if (!slash || !slash[1]) return false;
    slash[slash == path] = 0;
    return true;
}

/* State of search_one: nftw has no argument for its callback. */
static struct {
    struct stat folder;
    int n;
    bool found;
} search;

/* Bounds the search if a flag names a whole disk. A model has some dozens of files. */
enum { ENTRIES_MOST = 10000 };

static int search_one(const char *path, const struct stat *info, int kind, struct FTW *place) {
    struct stat target;
    (void)place;
    if (kind == FTW_SL && stat(path, &target) == 0) info = &target;
    bool same = info->st_dev == search.folder.st_dev && info->st_ino == search.folder.st_ino;
    search.found = same && S_ISDIR(info->st_mode);
    return search.found || ++search.n > ENTRIES_MOST;
}

/* True if folder is root or lies below it, also through mounts. Both paths have their links resolved. */
static bool is_at_or_below(char *folder, const char *root) {
    search.n = 0;
    search.found = false;
    if (stat(folder, &search.folder)) return false;
    nftw(root, search_one, 16, FTW_PHYS);
    if (search.found) return true;
    do {
        if (same_folder(folder, root)) return true;
    } while (go_up(folder));
    return false;
}

/* True if output or its link target lies in folder. Images and videos are exempt: models read none. */
static bool lies_in(const char *output, const char *folder) {
    char root[PATH_MAX], path[PATH_MAX];
    if (picture_has_extension(output) || video_has_extension(output) || !realpath(folder, root)) return false;
    if (inputs_folder_of(output, path) && is_at_or_below(path, root)) return true;
    return realpath(output, path) && go_up(path) && is_at_or_below(path, root);
}

static bool is_companion(const char *output, const char *file) {
    char one[PATH_MAX], other[PATH_MAX], real[PATH_MAX];
    if (!realpath(output, real) || !inputs_folder_of(real, one) || !inputs_folder_of(file, other))
        return false;
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++)
        if (same_folder(one, other) && fnmatch(companions[i], strrchr(real, '/') + 1, 0) == 0) return true;
    return false;
}

/* True for a file in a folder tokenizer* next to a text encoder's folder. */
static bool is_sibling_tokenizer(const char *output, const char *folder) {
    char root[PATH_MAX], real[PATH_MAX];
    if (!realpath(folder, root) || !realpath(output, real)) return false;
    if (!go_up(root) || !go_up(real)) return false;
    const char *name = strrchr(real, '/');
    return name && !fnmatch("/tokenizer*", name, 0) && go_up(real) && same_folder(real, root);
}

/* Protects the LoRAs in --lora-dir, which prompts may name. */
static int check_adapters(const char *flag, const char *name, const char *reader, const char *folder,
                          struct sluice_error *e) {
    static const char extension[] = ".safetensors";
    size_t n = strlen(name), tail = sizeof extension - 1;
    bool adapter = n > tail && !strcmp(name + n - tail, extension);
    return adapter && lies_in(name, folder)
               ? inputs_refuse(e, flag, name, "an adapter in the folder of", reader)
               : SLUICE_OK;
}

static int inputs_check_part(const char *flag, const char *name, const char *reader, const char *path,
                             struct sluice_error *e) {
    struct stat info;
    char folder[PATH_MAX];
    if (stat(path, &info)) return SLUICE_OK;
    bool is_folder = S_ISDIR(info.st_mode);
    if ((is_folder || inputs_folder_of(path, folder)) &&
        is_sibling_tokenizer(name, is_folder ? path : folder))
        return inputs_refuse(e, flag, name, "a file that is read with", reader);
    if (is_folder)
        return lies_in(name, path) ? inputs_refuse(e, flag, name, "a file in the folder of", reader)
                                   : SLUICE_OK;
    return is_companion(name, path)
               ? inputs_refuse(e, flag, name, "a file that is read with the file of", reader)
               : SLUICE_OK;
}

/* Checks the output file `name`, with stat `output`, against one value of an input flag. */
static int check_value(const struct flag *reader, const char *path, const char *flag, const char *name,
                       const struct stat *output, struct sluice_error *e) {
    char folder[PATH_MAX];
    if (reader->kind == FLAG_PROMPT) path = prompt_file(path);
    if (!path) return SLUICE_OK;
    if (same_file(output, path)) return inputs_refuse(e, flag, name, "the file of", reader->name);
    if (!strcmp(reader->name, "--control") && inputs_folder_of(name, folder) && same_folder(folder, path))
        return inputs_refuse(e, flag, name, "a file in the folder of", reader->name);
    if (!strcmp(reader->name, "--lora-dir")) return check_adapters(flag, name, reader->name, path, e);
    return is_part(reader) ? inputs_check_part(flag, name, reader->name, path, e) : SLUICE_OK;
}

int inputs_check_output(const struct args *args, const char *flag, const char *name, struct sluice_error *e) {
    struct stat info;
    if (!name || strcmp(name, "-") == 0 || stat(name, &info) || !S_ISREG(info.st_mode)) return SLUICE_OK;
    int status = SLUICE_OK;
    for (int i = 0; i < n_flags && !status; i++) {
        const char *path;
        if (!is_read(&flags[i])) continue;
        for (int n = 0; !status && (path = args_value(args, &flags[i], n)); n++)
            status = check_value(&flags[i], path, flag, name, &info, e);
    }
    for (int i = 0; i < args->n_operands && !status; i++)
        if (same_file(&info, args->operands[i]))
            status = inputs_refuse(e, flag, name, "the input file", args->operands[i]);
    return status;
}
