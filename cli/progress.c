/* The progress line: see progress.h. */
#include "cli/progress.h"

#include "cli/say.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

char *progress_duration(double seconds, char *out) {
    if (seconds < 10) {
        snprintf(out, 32, "%.1f s", seconds);
    } else if (seconds < 60) {
        snprintf(out, 32, "%.0f s", seconds);
    } else if (seconds < 3600) {
        snprintf(out, 32, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
    } else {
        snprintf(out, 32, "%.0f h %d min", (double)(int64_t)(seconds / 3600), (int)(seconds / 60) % 60);
    }
    return out;
}

char *progress_bytes(double bytes, char *out) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return out;
}

static void cli_progress_describe(const struct sluice_progress *now, char *out, size_t out_bytes) {
    char spent[32], left[32], read[32], step[40] = "";
    double waiting = now->seconds > 0 ? 100 * now->stall_seconds / now->seconds : 0;
    if (now->step > 0) snprintf(step, sizeof step, " %d/%d", now->step, now->of);
    snprintf(out, out_bytes, "%s%s  %.0f %%  %s%s%s%s, %s read, %.0f %% waiting for weights", now->stage,
             step, 100 * now->fraction, progress_duration(now->seconds, spent), now->eta >= 0 ? ", " : "",
             now->eta >= 0 ? progress_duration(now->eta, left) : "", now->eta >= 0 ? " left" : "",
             progress_bytes((double)now->bytes_read, read), waiting);
}

/* A terminal is redrawn ten times a second; a log gets each stage, each step of a few seconds, and a sign of
 * life. */
static bool is_time(const struct progress *progress, const struct sluice_progress *now) {
    double since = now->seconds - progress->shown_seconds;
    bool stage = strncmp(progress->stage, now->stage, sizeof progress->stage - 1) != 0;
    bool step = progress->step != now->step;
    if (progress->live) return stage || step || since >= 0.1;
    return stage || (step && since >= 3) || since >= 15;
}

double progress_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_start(struct progress *progress, bool silent) {
    memset(progress, 0, sizeof *progress);
    progress->silent = silent;
    progress->live = say_on_terminal();
}

void progress_show(struct progress *progress, const struct sluice_progress *now) {
    char line[320];
    if (progress->silent || !is_time(progress, now)) return;
    cli_progress_describe(now, line, sizeof line);
    snprintf(progress->stage, sizeof progress->stage, "%s", now->stage);
    progress->step = now->step;
    progress->shown_seconds = now->seconds;
    if (progress->live) {
        say_live(line);
    } else {
        say_note("%s", line);
    }
}
