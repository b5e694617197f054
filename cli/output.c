/* Output names and their checks before the run: see output.h. Inputs are compared by path and inode. */
#include "cli/output.h"

#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/picture.h"
#include "cli/video.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- inputs that no output may overwrite ---- */

/* Companions: name patterns of files that are read together with a model file in the same folder. */
static const char *const companions[] = {
    "config.json", "*-[0-9]*-of-[0-9]*.safetensors", "tokenizer*.json",  "vocab.json",
    "merges.txt",  "special_tokens_map.json",        "added_tokens.json"};

static int refuse_input(struct sluice_error *e, const char *flag, const char *name, const char *what,
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

static bool folder_of(const char *name, char out[PATH_MAX]) {
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

/* State of compare_entry, since nftw has no argument for its callback. */
static struct {
    struct stat folder;
    int n;
    bool found;
} search;

static int compare_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    enum { ENTRIES_MOST = 10000 }; /* limit for searching a large folder; a model has some dozens of files */
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
    nftw(root, compare_entry, 16, FTW_PHYS);
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
    if (folder_of(output, path) && is_at_or_below(path, root)) return true;
    return realpath(output, path) && go_up(path) && is_at_or_below(path, root);
}

/* Checks the output file `name` against a model or part at `path`: a folder, or a file with companions. */
static int check_part(const char *flag, const char *name, const char *reader, const char *path,
                      struct sluice_error *e) {
    struct stat info;
    char folder[PATH_MAX], root[PATH_MAX], real[PATH_MAX], output_folder[PATH_MAX];
    if (stat(path, &info)) return SLUICE_OK;
    bool is_folder = S_ISDIR(info.st_mode), has_folder = is_folder || folder_of(path, folder);
    /* An input is also any file in a folder tokenizer* next to a text encoder's folder. */
    if (has_folder && realpath(is_folder ? path : folder, root) && realpath(name, real) && go_up(root) &&
        go_up(real)) {
        const char *base = strrchr(real, '/');
        if (base && !fnmatch("/tokenizer*", base, 0) && go_up(real) && same_folder(real, root))
            return refuse_input(e, flag, name, "a file that is read with", reader);
    }
    if (is_folder)
        return lies_in(name, path) ? refuse_input(e, flag, name, "a file in the folder of", reader)
                                   : SLUICE_OK;
    if (!has_folder || !realpath(name, real) || !folder_of(real, output_folder)) return SLUICE_OK;
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++)
        if (same_folder(output_folder, folder) && fnmatch(companions[i], strrchr(real, '/') + 1, 0) == 0)
            return refuse_input(e, flag, name, "a file that is read with the file of", reader);
    return SLUICE_OK;
}

/* Checks the output file `name`, with stat `output`, against one value of an input flag. */
static int check_value(const struct flag *reader, const char *path, const char *flag, const char *name,
                       const struct stat *output, struct sluice_error *e) {
    char folder[PATH_MAX];
    if (reader->kind == FLAG_PROMPT) path = prompt_file(path);
    if (!path) return SLUICE_OK;
    if (same_file(output, path)) return refuse_input(e, flag, name, "the file of", reader->name);
    if (!strcmp(reader->name, "--control") && folder_of(name, folder) && same_folder(folder, path))
        return refuse_input(e, flag, name, "a file in the folder of", reader->name);
    if (!strcmp(reader->name, "--lora-dir")) { /* prompts may name any LoRA in the folder */
        size_t n = strlen(name), tail = strlen(".safetensors");
        bool adapter = n > tail && !strcmp(name + n - tail, ".safetensors");
        return adapter && lies_in(name, path)
                   ? refuse_input(e, flag, name, "an adapter in the folder of", reader->name)
                   : SLUICE_OK;
    }
    bool is_part = reader->kind == FLAG_PART || reader->kind == FLAG_CONTROL_NET ||
                   !strcmp(reader->name, "--model") || !strcmp(reader->name, "--tokenizer");
    return is_part ? check_part(flag, name, reader->name, path, e) : SLUICE_OK;
}

int output_check_inputs(const struct args *args, const char *flag, const char *name, struct sluice_error *e) {
    struct stat info;
    if (!name || strcmp(name, "-") == 0 || stat(name, &info) || !S_ISREG(info.st_mode)) return SLUICE_OK;
    int status = SLUICE_OK;
    for (int i = 0; i < n_flags && !status; i++) {
        const char *path;
        if (!flag_reads(&flags[i])) continue;
        for (int n = 0; !status && (path = args_value(args, &flags[i], n)); n++)
            status = check_value(&flags[i], path, flag, name, &info, e);
    }
    for (int i = 0; i < args->n_operands && !status; i++)
        if (same_file(&info, args->operands[i]))
            status = refuse_input(e, flag, name, "the input file", args->operands[i]);
    return status;
}

/* ---- names ---- */

const char *output_pattern(const struct args *args, int frames) {
    struct sluice_error ignored;
    if (args->output) return args->output;
    return frames > 1 && !video_check_name("output.mp4", &ignored) ? "output.mp4" : "output.png";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool output_is_frames(const char *pattern, int frames) {
    return frames > 1 && !video_has_extension(pattern);
}

/* True for an existing folder and for a name with a final slash. */
static bool is_existing_folder(const char *name) {
    struct stat info;
    return !*base_name(name) || (stat(name, &info) == 0 && S_ISDIR(info.st_mode));
}

/* True if --output names a folder for frames: existing, with a final slash, or without extension. */
static bool is_folder(const char *pattern) {
    if (strcmp(pattern, "-") == 0) return false;
    return is_existing_folder(pattern) || !strchr(base_name(pattern), '.');
}

/* Parses a placeholder of a file name after its percent sign: "%", "d", "s" or such as "03d". Returns the end
 * of the placeholder; NULL: unknown. */
static const char *parse_placeholder(const char *at, char *kind, int *digits) {
    *digits = 0;
    if (*at == '0' && at[1] >= '1' && at[1] <= '9') *digits = at[1] - '0', at += 2;
    *kind = *at;
    bool is_placeholder = *at == 'd' || (!*digits && (*at == '%' || *at == 's'));
    return is_placeholder ? at + 1 : NULL;
}

static int count_placeholders(const char *pattern, char wanted) {
    int n = 0, digits;
    char kind;
    for (const char *at = pattern; at && *at;) {
        if (*at++ != '%') continue;
        at = parse_placeholder(at, &kind, &digits);
        n += at && kind == wanted;
    }
    return n;
}

static int check_placeholders(const struct args *args, const char *pattern, struct sluice_error *e) {
    bool has_seed = args->command->bit == GENERATE;
    const char *expected = args->command->bit == DECODE ? "no %s: a saved latent has no seed"
                                                        : "no %s: an image to enlarge has no seed";
    char kind;
    int digits;
    for (const char *at = pattern; *at;)
        if (*at++ == '%' && !(at = parse_placeholder(at, &kind, &digits)))
            return fail_value(e, "--output", pattern,
                              "only the placeholders %d, %03d (1 to 9 digits), %s and %%");
    if (count_placeholders(pattern, 'd') > 1) return fail_value(e, "--output", pattern, "%d at most once");
    if (count_placeholders(pattern, 's') > 1) return fail_value(e, "--output", pattern, "%s at most once");
    if (has_seed || !count_placeholders(pattern, 's')) return SLUICE_OK;
    return fail_value(e, "--output", pattern, expected);
}

/* Appends text to the file name `out` if it fits. *n: length of the name, also of text that did not fit. */
static void put_text(char out[PATH_MAX], size_t *n, const char *text, size_t bytes) {
    if (*n + bytes < PATH_MAX) memcpy(out + *n, text, bytes);
    *n += bytes;
}

static void put_number(char out[PATH_MAX], size_t *n, int digits, unsigned long long number) {
    char text[32];
    int bytes = snprintf(text, sizeof text, "%0*llu", digits, number);
    put_text(out, n, text, (size_t)bytes);
}

/* Appends the image or frame number to a file name. Frames of several videos get "VIDEO-FRAME", unless the
 * pattern of the names has the seed. */
static void put_numbers(char out[PATH_MAX], size_t *n, int digits, const struct output_item *item,
                        bool seeds) {
    if (item->frame && item->n > 1 && !seeds)
        put_number(out, n, 0, (unsigned)item->number), put_text(out, n, "-", 1);
    put_number(out, n, digits, (unsigned)(item->frame ? item->frame : item->number));
}

int output_name(const char *pattern, const struct output_item *item, char out[PATH_MAX],
                struct sluice_error *e) {
    char inside[PATH_MAX];
    if (item->frame && is_folder(pattern)) {
        int bytes = snprintf(inside, PATH_MAX, "%s%s%%04d.png", pattern, *base_name(pattern) ? "/" : "");
        if (bytes < PATH_MAX) pattern = inside;
    }
    const char *dot = strrchr(base_name(pattern), '.');
    bool seeds = count_placeholders(pattern, 's');
    bool numbered = !count_placeholders(pattern, 'd') && (item->frame || (item->n > 1 && !seeds));
    size_t n = 0;
    char kind;
    int digits;
    for (const char *at = pattern; *at;) {
        if (numbered && at == dot) put_text(out, &n, "-", 1), put_numbers(out, &n, 0, item, seeds);
        const char *next = *at == '%' ? parse_placeholder(at + 1, &kind, &digits) : NULL;
        if (!next) put_text(out, &n, at, 1);
        if (next && kind == '%') put_text(out, &n, "%", 1);
        if (next && kind == 'd') put_numbers(out, &n, digits, item, seeds);
        if (next && kind == 's') put_number(out, &n, 0, item->first_seed + (unsigned)item->number - 1);
        at = next ? next : at + 1;
    }
    out[n < PATH_MAX ? n : 0] = 0;
    return n < PATH_MAX ? SLUICE_OK : fail_output(e, pattern, ENAMETOOLONG);
}

/* Returns the first image, video or frame of a run. */
static struct output_item first_item(struct output_item item, const char *pattern) {
    item.number = 1;
    item.frame = output_is_frames(pattern, item.frames);
    return item;
}

bool output_next(struct output_item *item) {
    if (item->frame && item->frame < item->frames) return item->frame++, true;
    if (item->frame) item->frame = 1;
    return item->number++ < item->n;
}

/* ---- checks before the run ---- */

/* Makes the path absolute and resolves the links of its folder. Leaves "-" and names in missing folders. */
static void canonical(const char *name, char out[PATH_MAX]) {
    char plain[PATH_MAX], folder[PATH_MAX];
    size_t length = strlen(name);
    while (length > 1 && name[length - 1] == '/') length--;
    snprintf(plain, sizeof plain, "%.*s", (int)length, name);
    snprintf(out, PATH_MAX, "%s", plain);
    if (strcmp(plain, "-") == 0 || !folder_of(plain, folder)) return;
    int bytes = snprintf(out, PATH_MAX, "%s/%s", folder, base_name(plain));
    if (bytes >= PATH_MAX) snprintf(out, PATH_MAX, "%s", plain);
}

int output_check_distinct(const char *flag, const char *name, const char *other_flag, const char *other,
                          struct sluice_error *e) {
    char one[PATH_MAX], two[PATH_MAX];
    if (!name || !other) return SLUICE_OK;
    canonical(name, one);
    canonical(other, two);
    if (strcmp(one, two) != 0) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "%s and %s name the same file" WHERE "%s" FOUND "\"%s\"" EXPECTED "two different names", flag,
                other_flag, flag, name);
}

int output_check_no_image(const struct args *args, struct output_item item, const char *flag,
                          const char *name, struct sluice_error *e) {
    char output[PATH_MAX];
    const char *pattern = output_pattern(args, item.frames);
    int status = SLUICE_OK;
    if (!name) return SLUICE_OK;
    item = first_item(item, pattern);
    do {
        status = output_name(pattern, &item, output, e);
        if (!status) status = output_check_distinct(flag, name, "--output", output, e);
    } while (!status && output_next(&item));
    return status;
}

static int check_pattern(const struct args *args, const char *pattern, struct output_item item,
                         struct sluice_error *e) {
    bool is_stdout = strcmp(pattern, "-") == 0, is_frames = output_is_frames(pattern, item.frames);
    int status = check_placeholders(args, pattern, e);
    if (status) return status;
    if (is_stdout && (item.n > 1 || is_frames))
        return fail_value(e, "--output", pattern, "a file name: stdout takes only one image");
    if (video_has_extension(pattern)) {
        /* An image model writes no video file, unless --frames 1 requests one. */
        if (item.frames == 1 && !args->frames && args->command->bit == GENERATE)
            return fail_value(
                e, "--output", pattern,
                "a file name ending in .png, .jpg, .jpeg or .webp: this model generates images");
        if (args->command->bit == UPSCALE)
            return fail_value(e, "--output", pattern,
                              "a file name ending in .png, .jpg, .jpeg or .webp: `upscale` writes images");
        return video_check_name(pattern, e);
    }
    if (!is_frames && !picture_has_extension(pattern) && is_existing_folder(pattern))
        return fail(e, SLUICE_USAGE,
                    "the output is a folder" WHERE "--output" FOUND "\"%s\"" EXPECTED
                    "a file name, such as %s%soutput.png",
                    pattern, pattern, *base_name(pattern) ? "/" : "");
    if (!is_frames) return picture_check_name(pattern, e);
    /* All frames go into one folder, because they are renamed together from a temporary folder beside it. */
    int n_numbers = count_placeholders(pattern, 'd');
    if (is_folder(pattern) && n_numbers)
        return fail_value(e, "--output", pattern,
                          "a folder without %d: its frames are named 0001.png, 0002.png, ...");
    if (n_numbers != count_placeholders(base_name(pattern), 'd'))
        return fail_value(e, "--output", pattern, "%d only after the last /: all frames go into one folder");
    return is_folder(pattern) ? SLUICE_OK : picture_check_name(pattern, e);
}

static int check_images(const struct args *args, struct output_item item, struct sluice_error *e) {
    char name[PATH_MAX];
    const char *pattern = output_pattern(args, item.frames);
    /* --output may name a folder for frames; the check runs again when the number of frames is known. */
    if (!item.frames && !video_has_extension(pattern) && is_folder(pattern)) return SLUICE_OK;
    int status = check_pattern(args, pattern, item, e);
    if (status || strcmp(pattern, "-") == 0) return status;
    bool is_frames = output_is_frames(pattern, item.frames);
    item = first_item(item, pattern);
    do {
        status = output_name(pattern, &item, name, e);
        if (!status) status = output_check_distinct("--dump", args->dump, "--output", name, e);
        if (!status) status = output_check_inputs(args, "--output", name, e);
        if (status) break;
        /* If the folder for frames is new, creates and removes a file of the folder's name as a test. */
        struct stat info;
        char folder[PATH_MAX];
        if (!is_frames || !is_folder(pattern) || folder_of(name, folder)) {
            status = outfile_probe(name, e);
        } else {
            snprintf(folder, sizeof folder, "%.*s", (int)(base_name(name) - name - 1), name);
            status = stat(folder, &info) ? outfile_probe(folder, e) : fail_output(e, folder, ENOTDIR);
        }
    } while (!status && output_next(&item));
    return status;
}

static bool is_dumped(const struct args *args, const char *base) {
    static const char *const names[] = {"decoded*",      "tokens*",  "*cond", "sigmas",
                                        "latent_[0-9]*", "encoded*", "seen*", "pooled*",
                                        "sound_[0-9]*",  "mel*",     "wave*"};
    size_t n = args->command->bit == DECODE ? 1 : sizeof names / sizeof *names;
    char pattern[32];
    for (size_t i = 0; i < n; i++) {
        snprintf(pattern, sizeof pattern, "%s.safetensors", names[i]);
        if (fnmatch(pattern, base, 0) == 0) return true;
    }
    return false;
}

/* Checks --dump: it overwrites no input, and a file can be created in the folder, which is created (not its
 * parents). The number of files is not known yet, so every existing file with the name of a dump file is
 * checked. */
static int check_dump(const struct args *args, struct sluice_error *e) {
    char name[PATH_MAX];
    int status = SLUICE_OK;
    DIR *dir = opendir(args->dump);
    for (struct dirent *entry; !status && dir && (entry = readdir(dir));) {
        int bytes = snprintf(name, sizeof name, "%s/%s", args->dump, entry->d_name);
        if (bytes < PATH_MAX && is_dumped(args, entry->d_name))
            status = output_check_inputs(args, "--dump", name, e);
    }
    if (dir) closedir(dir);
    if (status) return status;
    if (mkdir(args->dump, 0777) && errno != EEXIST) return fail_output(e, args->dump, errno);
    int bytes = snprintf(name, sizeof name, "%s/.probe", args->dump);
    return bytes < PATH_MAX ? outfile_probe(name, e) : fail_output(e, args->dump, ENAMETOOLONG);
}

int output_check_report(const struct args *args, struct output_item item, struct sluice_error *e) {
    bool pictures = args->command->bit != PLAN && !args->no_decode;
    int status = output_check_inputs(args, "--report", args->report, e);
    if (!status)
        status = output_check_distinct("--report", args->report, "--save-latent", args->save_latent, e);
    if (!status) status = output_check_distinct("--dump", args->dump, "--report", args->report, e);
    if (status || !pictures) return status;
    return output_check_no_image(args, item, "--report", args->report, e);
}

/* Checks that the file of --save-latent or --save-audio-latent can be written and is no other file of the
 * run. */
static int check_latent_file(const struct args *args, struct output_item item, const char *flag,
                             const char *name, struct sluice_error *e) {
    int status = args->no_decode ? SLUICE_OK : output_check_no_image(args, item, flag, name, e);
    if (!status) status = output_check_distinct("--dump", args->dump, flag, name, e);
    if (!status) status = output_check_inputs(args, flag, name, e);
    return status ? status : outfile_probe(name, e);
}

int output_check(const struct args *args, struct output_item item, struct sluice_error *e) {
    int status = output_check_report(args, item, e);
    if (!status && !args->no_decode) status = check_images(args, item, e);
    if (!status && args->report && strcmp(args->report, "-") != 0) status = outfile_probe(args->report, e);
    const char *latent = args->save_latent, *sound = args->save_audio_latent;
    if (!status && latent) status = check_latent_file(args, item, "--save-latent", latent, e);
    if (!status) status = output_check_distinct("--save-audio-latent", sound, "--save-latent", latent, e);
    if (!status) status = output_check_distinct("--save-audio-latent", sound, "--report", args->report, e);
    if (!status && sound) status = check_latent_file(args, item, "--save-audio-latent", sound, e);
    if (!status && args->dump) status = check_dump(args, e);
    if (status || !args->prompt_cache) return status;
    /* Creates the folder of --prompt-cache. A read-only folder is only read, with a warning. */
    const char *cache = args->prompt_cache;
    struct stat info;
    if ((mkdir(cache, 0777) && errno != EEXIST) || stat(cache, &info)) return fail_output(e, cache, errno);
    return S_ISDIR(info.st_mode) ? SLUICE_OK : fail_output(e, cache, ENOTDIR);
}

void output_check_pipes(const struct args *args, struct output_item item) {
    char name[PATH_MAX];
    struct sluice_error ignored;
    const char *pattern = output_pattern(args, item.frames);
    if (args->report) outfile_check_pipe(args->report);
    if (args->no_decode || strcmp(pattern, "-") == 0) return;
    item = first_item(item, pattern);
    do {
        if (!output_name(pattern, &item, name, &ignored)) outfile_check_pipe(name);
    } while (output_next(&item));
}

static int check_sides(const struct args *args, const char *name, int width, int height,
                       struct sluice_error *e) {
    int most = picture_max_side(name);
    if (args->no_decode || (width <= most && height <= most)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "the image is too large for its file format" WHERE "%s" FOUND "%dx%d" EXPECTED
                "at most %d pixels per side, or a .png file",
                name, width, height, most);
}

int output_check_enlarged(const struct args *args, int width, int height, struct sluice_error *e) {
    return check_sides(args, output_pattern(args, 1), width, height, e);
}

int output_check_size(const struct args *args, const struct sluice_request *request, struct sluice_error *e) {
    const struct sluice_picture *init = request->init_image;
    int width = request->width || !init ? request->width : init->width;
    int height = request->height || !init ? request->height : init->height;
    return check_sides(args, output_pattern(args, request->frames), width, height, e);
}

void output_count_memory(const struct args *args, int frames, bool alpha, bool sound,
                         struct sluice_request *request) {
    const char *pattern = output_pattern(args, frames);
    const struct video_format *video = video_format_find(pattern);
    request->caller_bytes = 0;
    if (args->no_decode) return;
    if (sound && request->fps > 0)
        request->caller_bytes = request->batch * sound_bytes((double)frames / request->fps);
    if (!video) {
        request->image_bytes_a_pixel = picture_write_bytes_a_pixel(pattern, alpha);
        return;
    }
    int fewer = frames < video->frames_held ? video->frames_held - frames : 0;
    request->caller_bytes += (int64_t)video->library_mib << 20;
    request->image_bytes_a_pixel = video->bytes_a_pixel - fewer * video->bytes_a_frame;
}

int output_sound_name(const char *pattern, struct output_item item, char out[PATH_MAX],
                      struct sluice_error *e) {
    char wav[PATH_MAX];
    size_t n = strlen(pattern);
    while (n > 1 && pattern[n - 1] == '/') n--;
    const char *dot = is_folder(pattern) ? NULL : strrchr(base_name(pattern), '.');
    if (dot) n = (size_t)(dot - pattern);
    int bytes = snprintf(wav, sizeof wav, "%.*s.wav", (int)n, pattern);
    if (bytes >= PATH_MAX) return fail_output(e, pattern, ENAMETOOLONG);
    item.frame = 0;
    return output_name(wav, &item, out, e);
}
