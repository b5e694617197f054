#include "cli/output.h"

#include "cli/fail.h"
#include "cli/inputs.h"
#include "cli/outfile.h"
#include "cli/picture.h"
#include "cli/video.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *output_pattern(const struct args *args, int frames) {
    struct sluice_error ignored;
    if (args->output) return args->output;
    return frames > 1 && !video_check_name("output.mp4", &ignored) ? "output.mp4" : "output.png";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool output_is_video(const char *pattern) {
    return video_has_extension(pattern);
}

bool output_is_frames(const char *pattern, int frames) {
    return frames > 1 && !output_is_video(pattern);
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

/* Parses a placeholder after its %: "%", "d", "s" or such as "03d". Returns its end; NULL: unknown. */
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

static int check_placeholders(const char *pattern, bool has_seed, struct sluice_error *e) {
    char kind;
    int digits;
    for (const char *at = pattern; *at;)
        if (*at++ == '%' && !(at = parse_placeholder(at, &kind, &digits)))
            return fail_value(e, "--output", pattern,
                              "only the placeholders %d, %03d (1 to 9 digits), %s and %%");
    if (count_placeholders(pattern, 'd') > 1) return fail_value(e, "--output", pattern, "%d at most once");
    if (count_placeholders(pattern, 's') > 1) return fail_value(e, "--output", pattern, "%s at most once");
    if (has_seed || !count_placeholders(pattern, 's')) return SLUICE_OK;
    return fail_value(e, "--output", pattern, "no %s: a saved latent has no seed");
}

/* Appends text to out as far as it fits; *n counts all bytes. */
static void put_text(char out[PATH_MAX], size_t *n, const char *text, size_t bytes) {
    if (*n + bytes < PATH_MAX) memcpy(out + *n, text, bytes);
    *n += bytes;
}

static void put_number(char out[PATH_MAX], size_t *n, int digits, unsigned long long number) {
    char text[32];
    int bytes = snprintf(text, sizeof text, "%0*llu", digits, number);
    put_text(out, n, text, (size_t)bytes);
}

/* Appends the image or frame number; for frames of several videos "VIDEO-FRAME", if names contain no seed. */
static void put_numbers(char out[PATH_MAX], size_t *n, int digits, const struct output_item *item,
                        bool seeds) {
    if (item->frame && item->n > 1 && !seeds)
        put_number(out, n, 0, (unsigned)item->number), put_text(out, n, "-", 1);
    put_number(out, n, digits, (unsigned)(item->frame ? item->frame : item->number));
}

/* Returns the frame pattern of a folder, FOLDER/%04d.png; returns any other pattern unchanged. */
static const char *name_in_folder(const char *pattern, char out[PATH_MAX]) {
    if (!is_folder(pattern)) return pattern;
    int bytes = snprintf(out, PATH_MAX, "%s%s%%04d.png", pattern, *base_name(pattern) ? "/" : "");
    return bytes < PATH_MAX ? out : pattern;
}

int output_name(const char *pattern, const struct output_item *item, char out[PATH_MAX],
                struct sluice_error *e) {
    char inside[PATH_MAX];
    if (item->frame) pattern = name_in_folder(pattern, inside);
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

struct output_item output_first(struct output_item item, const char *pattern) {
    item.number = 1;
    item.frame = output_is_frames(pattern, item.frames);
    return item;
}

bool output_next(struct output_item *item) {
    if (item->frame && item->frame < item->frames) return item->frame++, true;
    if (item->frame) item->frame = 1;
    return item->number++ < item->n;
}

/* Makes the path absolute, with links of its folder resolved. Keeps "-" and names in missing folders. */
static void canonical(const char *name, char out[PATH_MAX]) {
    char plain[PATH_MAX], folder[PATH_MAX];
    size_t length = strlen(name);
    while (length > 1 && name[length - 1] == '/') length--;
    snprintf(plain, sizeof plain, "%.*s", (int)length, name);
    name = plain;
    const char *base = base_name(name);
    snprintf(out, PATH_MAX, "%s", name);
    if (strcmp(name, "-") == 0) return;
    if (!inputs_folder_of(name, folder)) return;
    int bytes = snprintf(out, PATH_MAX, "%s/%s", folder, base);
    if (bytes >= PATH_MAX) snprintf(out, PATH_MAX, "%s", name);
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

/* All frames go into one folder, because they are renamed together from a temporary folder beside it. */
static int check_frames_folder(const char *pattern, struct sluice_error *e) {
    const char *base = base_name(pattern);
    bool in_base_name = count_placeholders(pattern, 'd') == count_placeholders(base, 'd');
    if (is_folder(pattern) && count_placeholders(pattern, 'd'))
        return fail_value(e, "--output", pattern,
                          "a folder without %d: its frames are named 0001.png, 0002.png, ...");
    return in_base_name ? SLUICE_OK
                        : fail_value(e, "--output", pattern,
                                     "%d only after the last /: all frames go into one folder");
}

/* An image model writes no video file, unless --frames 1 requests one. */
static int check_video(const struct args *args, const char *pattern, int frames, struct sluice_error *e) {
    if (frames == 1 && !args->frames && args->command->bit == GENERATE)
        return fail_value(e, "--output", pattern,
                          "a file name ending in .png, .jpg, .jpeg or .webp: this model generates images");
    return video_check_name(pattern, e);
}

static int refuse_folder(const char *pattern, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "the output is a folder" WHERE "--output" FOUND "\"%s\"" EXPECTED
                "a file name, such as %s%soutput.png",
                pattern, pattern, *base_name(pattern) ? "/" : "");
}

static int check_pattern(const struct args *args, const char *pattern, struct output_item item,
                         struct sluice_error *e) {
    bool is_stdout = strcmp(pattern, "-") == 0, is_frames = output_is_frames(pattern, item.frames);
    int status = check_placeholders(pattern, args->command->bit == GENERATE, e);
    if (status) return status;
    if (is_stdout && (item.n > 1 || is_frames))
        return fail_value(e, "--output", pattern, "a file name: stdout takes only one image");
    if (output_is_video(pattern)) return check_video(args, pattern, item.frames, e);
    if (is_frames) status = check_frames_folder(pattern, e);
    if (!is_frames && !picture_has_extension(pattern) && is_existing_folder(pattern))
        return refuse_folder(pattern, e);
    return status || (is_frames && is_folder(pattern)) ? status : picture_check_name(pattern, e);
}

/* Checks that an output file can be created. A new folder for frames is checked as if it were a file. */
static int probe_output(const char *name, const char *pattern, bool is_frames, struct sluice_error *e) {
    struct stat info;
    char folder[PATH_MAX];
    bool made = is_frames && is_folder(pattern) && inputs_folder_of(name, folder);
    if (!is_frames || !is_folder(pattern) || made) return outfile_probe(name, e);
    snprintf(folder, sizeof folder, "%.*s", (int)(base_name(name) - name - 1), name);
    return stat(folder, &info) ? outfile_probe(folder, e) : fail_output(e, folder, ENOTDIR);
}

static int check_images(const struct args *args, struct output_item item, struct sluice_error *e) {
    char name[PATH_MAX];
    const char *pattern = output_pattern(args, item.frames);
    /* --output may name a folder for frames; the check runs again when the number of frames is known. */
    if (!item.frames && !output_is_video(pattern) && is_folder(pattern)) return SLUICE_OK;
    int status = check_pattern(args, pattern, item, e);
    if (status || strcmp(pattern, "-") == 0) return status;
    bool is_frames = output_is_frames(pattern, item.frames);
    item = output_first(item, pattern);
    do {
        status = output_name(pattern, &item, name, e);
        if (!status) status = output_check_distinct("--dump", args->dump, "--output", name, e);
        if (!status) status = inputs_check_output(args, "--output", name, e);
        if (!status) status = probe_output(name, pattern, is_frames, e);
    } while (!status && output_next(&item));
    return status;
}

static bool is_dumped(const struct args *args, const char *base) {
    static const char *const names[] = {"decoded*",      "tokens*",  "*cond", "sigmas",
                                        "latent_[0-9]*", "encoded*", "seen*", "pooled*"};
    size_t n = args->command->bit == DECODE ? 1 : sizeof names / sizeof *names;
    char pattern[32];
    for (size_t i = 0; i < n; i++) {
        snprintf(pattern, sizeof pattern, "%s.safetensors", names[i]);
        if (fnmatch(pattern, base, 0) == 0) return true;
    }
    return false;
}

/* Checks that --dump overwrites no input. The number of files is not known yet, so every existing file with
 * the name of a dump file is checked. */
static int check_dumped(const struct args *args, struct sluice_error *e) {
    char name[PATH_MAX];
    int status = SLUICE_OK;
    DIR *dir = opendir(args->dump);
    for (struct dirent *entry; !status && dir && (entry = readdir(dir));) {
        int bytes = snprintf(name, sizeof name, "%s/%s", args->dump, entry->d_name);
        if (bytes < PATH_MAX && is_dumped(args, entry->d_name))
            status = inputs_check_output(args, "--dump", name, e);
    }
    if (dir) closedir(dir);
    return status;
}

/* Creates the folder (not its parents), and checks that a file can be created in it. */
static int check_folder(const char *folder, struct sluice_error *e) {
    char name[PATH_MAX];
    if (mkdir(folder, 0777) && errno != EEXIST) return fail_output(e, folder, errno);
    int bytes = snprintf(name, sizeof name, "%s/.probe", folder);
    if (bytes >= PATH_MAX) return fail_output(e, folder, ENAMETOOLONG);
    return outfile_probe(name, e);
}

static int check_dump(const struct args *args, struct sluice_error *e) {
    return check_dumped(args, e) ? e->code : check_folder(args->dump, e);
}

/* Creates the folder of --prompt-cache. It may be read-only: entries are then only read, with a warning. */
static int check_cache(const char *folder, struct sluice_error *e) {
    struct stat found;
    if (mkdir(folder, 0777) && errno != EEXIST) return fail_output(e, folder, errno);
    if (stat(folder, &found)) return fail_output(e, folder, errno);
    return S_ISDIR(found.st_mode) ? SLUICE_OK : fail_output(e, folder, ENOTDIR);
}

int output_check_report(const struct args *args, struct output_item item, struct sluice_error *e) {
    char name[PATH_MAX];
    bool pictures = args->command->bit != PLAN && !args->no_decode;
    int status = inputs_check_output(args, "--report", args->report, e);
    if (!status)
        status = output_check_distinct("--report", args->report, "--save-latent", args->save_latent, e);
    if (!status) status = output_check_distinct("--dump", args->dump, "--report", args->report, e);
    const char *pattern = output_pattern(args, item.frames);
    if (status || !pictures || !args->report) return status;
    item = output_first(item, pattern);
    do {
        status = output_name(pattern, &item, name, e);
        if (!status) status = output_check_distinct("--report", args->report, "--output", name, e);
    } while (!status && output_next(&item));
    return status;
}

static int check_latent(const struct args *args, struct output_item item, struct sluice_error *e) {
    char name[PATH_MAX];
    int status = SLUICE_OK;
    const char *pattern = output_pattern(args, item.frames);
    item = output_first(item, pattern);
    do {
        if (!args->no_decode) status = output_name(pattern, &item, name, e);
        if (!args->no_decode && !status)
            status = output_check_distinct("--save-latent", args->save_latent, "--output", name, e);
    } while (!status && output_next(&item));
    if (!status) status = output_check_distinct("--dump", args->dump, "--save-latent", args->save_latent, e);
    if (!status) status = inputs_check_output(args, "--save-latent", args->save_latent, e);
    return status ? status : outfile_probe(args->save_latent, e);
}

int output_check(const struct args *args, struct output_item item, struct sluice_error *e) {
    int status = output_check_report(args, item, e);
    if (!status && !args->no_decode) status = check_images(args, item, e);
    if (!status && args->report && strcmp(args->report, "-") != 0) status = outfile_probe(args->report, e);
    if (!status && args->save_latent) status = check_latent(args, item, e);
    if (!status && args->dump) status = check_dump(args, e);
    if (!status && args->prompt_cache) status = check_cache(args->prompt_cache, e);
    return status;
}

void output_check_pipes(const struct args *args, struct output_item item) {
    char name[PATH_MAX];
    struct sluice_error ignored;
    const char *pattern = output_pattern(args, item.frames);
    if (args->report) outfile_check_pipe(args->report);
    if (args->no_decode || strcmp(pattern, "-") == 0) return;
    item = output_first(item, pattern);
    do {
        if (!output_name(pattern, &item, name, &ignored)) outfile_check_pipe(name);
    } while (output_next(&item));
}

int output_check_size(const struct args *args, const struct sluice_request *request, struct sluice_error *e) {
    const char *name = output_pattern(args, request->frames);
    const struct sluice_picture *init = request->init_image;
    int width = request->width || !init ? request->width : init->width;
    int height = request->height || !init ? request->height : init->height, most = picture_max_side(name);
    if (args->no_decode || (width <= most && height <= most)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "the image is too large for its file format" WHERE "%s" FOUND "%dx%d" EXPECTED
                "at most %d pixels per side, or a .png file",
                name, width, height, most);
}

void output_count_memory(const struct args *args, int frames, struct sluice_request *request) {
    const char *pattern = output_pattern(args, frames);
    bool is_video = output_is_video(pattern);
    request->caller_bytes = 0;
    if (args->no_decode) return;
    if (is_video) request->caller_bytes = video_library_bytes(pattern);
    request->image_bytes_a_pixel =
        is_video ? video_bytes_a_pixel(pattern, frames) : picture_write_bytes_a_pixel(pattern);
}
