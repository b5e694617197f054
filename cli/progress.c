#include "cli/progress.h"

#include "cli/messages.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

char *progress_duration(double seconds, char *out) {
    if (seconds < 9.95) {
        snprintf(out, 32, "%.1f s", seconds);
    } else if (seconds < 59.5) {
        snprintf(out, 32, "%.0f s", seconds);
    } else if (seconds < 3599.5) {
        int rounded = (int)(seconds + 0.5);
        snprintf(out, 32, "%d min %d s", rounded / 60, rounded % 60);
    } else {
        int64_t minutes = (int64_t)(seconds / 60 + 0.5);
        snprintf(out, 32, "%.0f h %d min", (double)(minutes / 60), (int)(minutes % 60));
    }
    return out;
}

char *progress_bytes(double bytes, char *out) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    /* three significant digits; 99.95 would round to 100.0 */
    int decimals = !unit || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f %s", decimals, bytes, units[unit]);
    return out;
}

/* Progress text for a stage; an unknown stage keeps its name. */
static void name_stage(const struct progress *progress, const char *stage, char *out, size_t out_bytes) {
    static const struct {
        const char *stage, *one, *several;
    } names[] = {
        {"text", "encoding the prompt", "encoding the prompt"},
        {"vision", "encoding the input image (vision)", "encoding the input images (vision)"},
        {"encode", "encoding the input image (VAE)", "encoding the input images (VAE)"},
        {"hoist", "preparing", "preparing"},
        {"denoise", "sampling", "sampling %d %ss"},
        {"decode", "decoding (VAE)", "decoding (VAE)"},
    };
    snprintf(out, out_bytes, "%s", stage);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i].stage);
        if (strncmp(stage, names[i].stage, length) || (stage[length] && stage[length] != '_')) continue;
        snprintf(out, out_bytes, progress->n_pictures > 1 ? names[i].several : names[i].one,
                 progress->n_pictures, progress->are_videos ? "video" : "image");
    }
}

/* Writes ", step 3 of 8", or "" for a stage without steps. */
static void describe_step(const struct progress *progress, const struct sluice_progress *now, char out[48]) {
    const char *noun = strncmp(now->stage, "denoise", 7) == 0 ? "step"
                       : progress->n_pictures == now->of      ? (progress->are_videos ? "video" : "image")
                                                              : "part";
    out[0] = 0;
    if (now->step > 0 && now->of > 1) snprintf(out, 48, ", %s %d of %d", noun, now->step, now->of);
}

static void update_waiting(struct progress *progress, const struct sluice_progress *now) {
    double seconds = now->seconds - progress->checked_seconds;
    if (seconds < 1) return;
    progress->is_waiting = now->stall_seconds - progress->checked_stall > 0.25 * seconds;
    progress->checked_seconds = now->seconds;
    progress->checked_stall = now->stall_seconds;
}

/* Draws the bar into the columns that the text leaves free; "" if there are too few. */
static void draw_bar(double fraction, int columns, char *out, size_t out_bytes) {
    enum { LEAST = 4, MOST = 20 };
    int cells = columns < MOST ? columns : MOST, full = (int)(fraction * cells + 0.5);
    out[0] = 0;
    if (cells < LEAST || out_bytes < MOST + 4) return;
    memcpy(out, " [", 2);
    for (int i = 0; i < cells; i++) out[2 + i] = i < full ? '#' : '-';
    memcpy(out + 2 + cells, "]", 2);
}

/* Writes ", step 3 of 8, 2 min 5 s left, waiting for the disk"; in a log also the percentage, instead of the
 * bar. */
static void describe_status(const struct progress *progress, const struct sluice_progress *now, char *out,
                            size_t out_bytes) {
    char step[48], far[16] = "", left[48] = "", time[32];
    describe_step(progress, now, step);
    if (!progress->live) snprintf(far, sizeof far, ", %.0f %%", 100 * now->fraction);
    if (now->eta >= 0 && now->fraction < 1)
        snprintf(left, sizeof left, ", %s left", progress_duration(now->eta, time));
    snprintf(out, out_bytes, "%s%s%s%s%s", step, far, left, progress->is_waiting ? ", waiting for the " : "",
             progress->is_waiting ? now->source : "");
}

static void describe_line(const struct progress *progress, const struct sluice_progress *now, char *out,
                          size_t out_bytes) {
    char what[64], bar[40] = "", words[160];
    name_stage(progress, now->stage, what, sizeof what);
    describe_status(progress, now, words, sizeof words);
    if (progress->live)
        draw_bar(now->fraction, message_columns() - (int)(strlen(what) + strlen(words)) - 3, bar, sizeof bar);
    snprintf(out, out_bytes, "%s%s%s", what, bar, words);
}

/* The live line is redrawn ten times a second; a log gets a line for each stage, for a step if 3 s have
 * passed, and every 15 s. */
static bool is_due(const struct progress *progress, const struct sluice_progress *now) {
    double since = now->seconds - progress->shown_seconds;
    bool stage = strncmp(progress->stage, now->stage, sizeof progress->stage - 1) != 0;
    bool step = progress->step != now->step;
    if (progress->live) return stage || step || since >= 0.1 || now->fraction >= 1;
    return stage || (step && since >= 3) || since >= 15;
}

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, bool silent, int n_pictures) {
    memset(progress, 0, sizeof *progress);
    progress->n_pictures = n_pictures;
    progress->silent = silent;
    progress->live = message_on_terminal();
}

void progress_finish(struct progress *progress) {
    progress->silent = true;
    if (progress->live) message_live_clear();
}

void progress_show(struct progress *progress, const struct sluice_progress *now) {
    char line[320];
    update_waiting(progress, now);
    if (progress->silent || !is_due(progress, now)) return;
    describe_line(progress, now, line, sizeof line);
    snprintf(progress->stage, sizeof progress->stage, "%s", now->stage);
    progress->step = now->step;
    progress->shown_seconds = now->seconds;
    if (progress->live) {
        message_live(line);
    } else {
        message_note("%s", line);
    }
}
