/* Flags of control images: the rules are in args.h. */
#include "cli/args.h"

#include "cli/fail.h"

#include <string.h>

static int too_many(const struct flag *flag, const char *text, struct sluice_error *e) {
    return fail(e, SLUICE_USAGE,
                "flag given too many times" WHERE "%s" FOUND "\"%s\"" EXPECTED "at most %d times", flag->name,
                text, SLUICE_CONTROLS_MAX);
}

/* Adds a network to the model's parts. The first network gets the controls before it. */
static int store_network(struct args *args, const struct flag *flag, const char *text,
                         struct sluice_error *e) {
    struct controls *controls = &args->controls;
    if (!*text) return fail_value(e, flag->name, text, flag->value);
    if (controls->n_networks == SLUICE_CONTROLS_MAX) return too_many(flag, text, e);
    args->model.parts = args->parts;
    args->parts[args->model.n_parts++] = (struct sluice_part){flag->name, text};
    for (int i = 0; i < controls->n && !controls->n_networks; i++) controls->at[i].network = 0;
    controls->begins = controls->n_networks || !controls->n;
    controls->n_networks++;
    return SLUICE_OK;
}

/* Returns the control that a flag changes: the latest, or a new one after --control-net or for a second
 * image. NULL: there are SLUICE_CONTROLS_MAX already. */
static struct control_args *current(struct controls *controls, bool is_image) {
    struct control_args *last = controls->n ? &controls->at[controls->n - 1] : NULL;
    if (last && !controls->begins && !(is_image && last->image)) return last;
    if (controls->n == SLUICE_CONTROLS_MAX) return NULL;
    last = &controls->at[controls->n++];
    *last = (struct control_args){.network = controls->n_networks - 1, .strength = 1, .end = 1};
    controls->begins = false;
    return last;
}

int controls_store(struct args *args, const struct flag *flag, const char *text, struct sluice_error *e) {
    if (flag->kind == FLAG_CONTROL_NET) return store_network(args, flag, text, e);
    bool is_image = flag->offset == offsetof(struct control_args, image);
    struct control_args *control = current(&args->controls, is_image);
    if (!control) return too_many(flag, text, e);
    long row = flag - flags;
    void *to = (char *)control + flag->offset;
    if (control->typed[row] && strcmp(control->typed[row], text ? text : "") != 0)
        return fail(e, SLUICE_USAGE,
                    "flag given twice for one control image" WHERE "%s" FOUND "\"%s\" and \"%s\"" EXPECTED
                    "one value for each --control-image",
                    flag->name, control->typed[row], text);
    control->typed[row] = text ? text : "";
    if (flag->kind == FLAG_CONTROL_REAL) return value_real(flag, text, to, e);
    if (flag->kind == FLAG_CONTROL_SWITCH) {
        *(bool *)to = true;
        return SLUICE_OK;
    }
    if (!*text) return fail_value(e, flag->name, text, flag->value);
    *(const char **)to = text;
    return SLUICE_OK;
}

const char *controls_value(const struct args *args, const struct flag *flag, int i) {
    for (int k = 0; k < args->model.n_parts && flag->kind == FLAG_CONTROL_NET; k++)
        if (args->parts[k].flag == flag->name && !i--) return args->parts[k].path;
    for (int k = 0; k < args->controls.n && flag->kind != FLAG_CONTROL_NET; k++)
        if (args->controls.at[k].typed[flag - flags] && !i--) return args->controls.at[k].typed[flag - flags];
    return NULL;
}

bool controls_lack(const struct args *args, int network) {
    const struct controls *controls = &args->controls;
    bool assumed = args->command->bit == PLAN && !args->prompt.text && !controls->n;
    for (int i = 0; i < controls->n; i++)
        if (controls->at[i].network == network) return false;
    return !assumed && network < controls->n_networks;
}

int controls_check(const struct args *args, struct sluice_error *e) {
    const struct controls *controls = &args->controls;
    int n = controls->n;
    for (int i = 0; i < controls->n_networks; i++) {
        if (!controls_lack(args, i)) continue;
        if (args->init_image && args->mask && n++ < SLUICE_CONTROLS_MAX) continue;
        const char *path = controls_value(args, flag_find("--control-net"), i);
        return fail(e, SLUICE_USAGE,
                    "a control network has no control image" WHERE "--control-net %s" EXPECTED
                    "--control-image FILE after it (for inpainting networks --control-inpaint FILE "
                    "--control-mask FILE, or -i FILE --mask FILE)",
                    path ? path : "");
    }
    for (int i = 0; i < controls->n; i++) {
        long row = 0;
        if (controls->at[i].network >= 0 || controls->at[i].image) continue;
        while (!controls->at[i].typed[row]) row++;
        return fail(e, SLUICE_USAGE,
                    "there is no control image" WHERE "%s%s%s" EXPECTED "--control-image FILE too",
                    flags[row].name, *controls->at[i].typed[row] ? " " : "", controls->at[i].typed[row]);
    }
    if (args->guess_mode && !controls->n && !controls->n_networks)
        return fail(e, SLUICE_USAGE,
                    "there is no control network" WHERE "--guess-mode" EXPECTED
                    "--control-net PATH and --control-image FILE");
    return SLUICE_OK;
}
