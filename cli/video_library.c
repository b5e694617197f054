/* Loads FFmpeg's libraries. The libraries are never unloaded, because encoders leave thread keys
 * and exit handlers behind. */
#include "cli/video_library.h"

#include "cli/fail.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define SONAME(library, major) "lib" library ".so." AV_STRINGIFY(major)

/* FFmpeg's libraries in the order of their dependencies. */
enum { avutil, avcodec, avformat, swscale, N_LIBRARIES };
static const char *const sonames[N_LIBRARIES] = {
    SONAME("avutil", LIBAVUTIL_VERSION_MAJOR), SONAME("avcodec", LIBAVCODEC_VERSION_MAJOR),
    SONAME("avformat", LIBAVFORMAT_VERSION_MAJOR), SONAME("swscale", LIBSWSCALE_VERSION_MAJOR)};

static const struct {
    int library;
    const char *name;
    size_t offset;
} functions[] = {
#define ROW(library, function) {library, #function, offsetof(struct ffmpeg, function)},
    FFMPEG_FUNCTIONS(ROW)
#undef ROW
};

static _Thread_local char last_error[120];

/* Log callback: keeps the last error of this thread instead of printing it. Errors on encoder threads are
 * lost. */
static void capture_errors(void *from, int level, const char *format, va_list list) {
    (void)from;
    if (level > AV_LOG_ERROR) return;
    vsnprintf(last_error, sizeof last_error, format, list);
    last_error[strcspn(last_error, "\n")] = 0;
}

const char *video_library_reason(const struct ffmpeg *ffmpeg, int problem) {
    static _Thread_local char reason[sizeof last_error];
    memcpy(reason, last_error, sizeof reason);
    if (!*last_error) ffmpeg->av_strerror(problem, reason, sizeof reason);
    *last_error = 0;
    return reason;
}

static int fail_to_load(struct sluice_error *e) {
    const char *reason = dlerror();
    return fail(e, SLUICE_USAGE,
                "cannot load FFmpeg's libraries, which write videos" WHERE "--output" FOUND "%s" EXPECTED
                "the FFmpeg version of this program's build, or a .png file name for one image per frame",
                reason ? reason : "an unknown reason");
}

int video_library_load(const struct ffmpeg **ffmpeg, struct sluice_error *e) {
    static struct ffmpeg loaded;
    static bool done;
    void *library[N_LIBRARIES];
    *ffmpeg = &loaded;
    if (done) return SLUICE_OK;
    for (int i = 0; i < N_LIBRARIES; i++)
        if (!(library[i] = dlopen(sonames[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE)))
            return fail_to_load(e);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(library[functions[i].library], functions[i].name);
        if (!address) return fail_to_load(e);
        /* ISO C cannot convert an object pointer to a function pointer; POSIX guarantees the same
         * representation. */
        memcpy((char *)&loaded + functions[i].offset, &address, sizeof address);
    }
    loaded.av_log_set_callback(capture_errors);
    done = true;
    return SLUICE_OK;
}
