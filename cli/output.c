/* Names of outputs and the checks before work: see output.h. */
#include "cli/output.h"

#include "cli/fail.h"
#include "cli/inputs.h"
#include "cli/outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *output_pattern(const struct args *args) {
    return args->output ? args->output : "output.png";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int output_name(const char *pattern, int number, int n, char out[PATH_MAX], struct sluice_error *e) {
    const char *place = strstr(pattern, "%d"), *dot = strrchr(base_name(pattern), '.');
    int bytes;
    if (place) {
        bytes = snprintf(out, PATH_MAX, "%.*s%d%s", (int)(place - pattern), pattern, number, place + 2);
    } else if (n > 1 && dot) {
        bytes = snprintf(out, PATH_MAX, "%.*s-%d%s", (int)(dot - pattern), pattern, number, dot);
    } else {
        bytes = snprintf(out, PATH_MAX, "%s", pattern);
    }
    return bytes >= 0 && bytes < PATH_MAX ? SLUICE_OK : fail_output(e, pattern, ENAMETOOLONG);
}

/* An absolute name in which the folder's links are resolved; "-" and names whose folder is gone stay as they
 * are. */
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

static int check_distinct(const char *flag, const char *name, const char *other_flag, const char *other,
                          struct sluice_error *e) {
    char one[PATH_MAX], two[PATH_MAX];
    if (!name || !other) return SLUICE_OK;
    canonical(name, one);
    canonical(other, two);
    if (strcmp(one, two) != 0) return SLUICE_OK;
    fail(e, SLUICE_USAGE, "%s and %s name the same file", flag, other_flag);
    fail_where(e, "%s", flag);
    fail_found(e, "\"%s\"", name);
    return fail_expected(e, "two names");
}

static int check_extension(const char *pattern, struct sluice_error *e) {
    const char *base = base_name(pattern), *dot = strrchr(base, '.');
    if (dot && dot > base && strcasecmp(dot, ".png") == 0) return SLUICE_OK;
    return fail_value(e, "--output", pattern, "a name that ends in .png: other formats are not built yet");
}

static int check_pattern(const char *pattern, int n, struct sluice_error *e) {
    const char *place = strstr(pattern, "%d");
    if (place && strstr(place + 2, "%d")) return fail_value(e, "--output", pattern, "%d at most once");
    if (strcmp(pattern, "-") != 0) return check_extension(pattern, e);
    if (n == 1) return SLUICE_OK;
    return fail_value(e, "--output", pattern, "a file name: stdout takes one picture only");
}

static int cli_output_check_pictures(const struct args *args, int n, struct sluice_error *e) {
    char name[PATH_MAX];
    const char *pattern = output_pattern(args);
    int status = check_pattern(pattern, n, e);
    if (status || strcmp(pattern, "-") == 0) return status;
    for (int i = 1; i <= n && !status; i++) {
        status = output_name(pattern, i, n, name, e);
        if (!status) status = check_distinct("--dump", args->dump, "--output", name, e);
        if (!status) status = inputs_spared(args, "--output", name, e);
        if (!status) status = outfile_probe(name, e);
    }
    return status;
}

static bool is_dumped(const struct args *args, const char *base) {
    static const char *const names[] = {"decoded*", "tokens*", "*cond", "sigmas", "latent_[0-9]*"};
    size_t n = args->command->bit == DECODE ? 1 : sizeof names / sizeof *names;
    char pattern[32];
    for (size_t i = 0; i < n; i++) {
        snprintf(pattern, sizeof pattern, "%s.safetensors", names[i]);
        if (fnmatch(pattern, base, 0) == 0) return true;
    }
    return false;
}

/* How many files there will be is the model's to say: any that is there under such a name may go. */
static int check_dumped(const struct args *args, struct sluice_error *e) {
    char name[PATH_MAX];
    int status = SLUICE_OK;
    DIR *dir = opendir(args->dump);
    for (struct dirent *entry; !status && dir && (entry = readdir(dir));) {
        int bytes = snprintf(name, sizeof name, "%s/%s", args->dump, entry->d_name);
        if (bytes < PATH_MAX && is_dumped(args, entry->d_name))
            status = inputs_spared(args, "--dump", name, e);
    }
    if (dir) closedir(dir);
    return status;
}

/* Makes the folder, its parent must be there; writable means that a file can be made in it. */
static int check_dump(const struct args *args, struct sluice_error *e) {
    const char *folder = args->dump;
    char name[PATH_MAX];
    if (check_dumped(args, e)) return e->code;
    if (mkdir(folder, 0777) && errno != EEXIST) return fail_output(e, folder, errno);
    int bytes = snprintf(name, sizeof name, "%s/.probe", folder);
    if (bytes >= PATH_MAX) return fail_output(e, folder, ENAMETOOLONG);
    return outfile_probe(name, e);
}

int output_check_report(const struct args *args, int n, struct sluice_error *e) {
    char name[PATH_MAX];
    bool pictures = args->command->bit != PLAN && !args->no_decode;
    int status = inputs_spared(args, "--report", args->report, e);
    if (!status) status = check_distinct("--report", args->report, "--save-latent", args->save_latent, e);
    if (!status) status = check_distinct("--dump", args->dump, "--report", args->report, e);
    for (int i = 1; i <= n && !status && pictures && args->report; i++) {
        status = output_name(output_pattern(args), i, n, name, e);
        if (!status) status = check_distinct("--report", args->report, "--output", name, e);
    }
    return status;
}

static int check_latent(const struct args *args, int n, struct sluice_error *e) {
    char name[PATH_MAX];
    int status = SLUICE_OK;
    for (int i = 1; i <= n && !status && !args->no_decode; i++) {
        status = output_name(output_pattern(args), i, n, name, e);
        if (!status) status = check_distinct("--save-latent", args->save_latent, "--output", name, e);
    }
    if (!status) status = check_distinct("--dump", args->dump, "--save-latent", args->save_latent, e);
    if (!status) status = inputs_spared(args, "--save-latent", args->save_latent, e);
    return status ? status : outfile_probe(args->save_latent, e);
}

int output_check(const struct args *args, int n, struct sluice_error *e) {
    int status = output_check_report(args, n, e);
    if (!status && !args->no_decode) status = cli_output_check_pictures(args, n, e);
    if (!status && args->report && strcmp(args->report, "-") != 0) status = outfile_probe(args->report, e);
    if (!status && args->save_latent) status = check_latent(args, n, e);
    if (!status && args->dump) status = check_dump(args, e);
    return status;
}
