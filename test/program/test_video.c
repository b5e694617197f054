/* Video files, checked with ffprobe and ffmpeg: size, rate, length, text and colours; fallback encoders; full
 * disks; a video file is complete or absent. */
#include "cli/video.h"
#include "cli/ffmpeg.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WIDTH = 96, HEIGHT = 80, FRAMES = 19, FPS = 25, FRAME_BYTES = 3 * WIDTH * HEIGHT };

static const char text[] = "a fox, \"red\"; \xC3\xA9\nNegative prompt: snow=1\nSteps: 2";
static uint8_t put[FRAMES][FRAME_BYTES], got[FRAMES + 2][FRAME_BYTES];
static char printed[4096];

/* Draws smooth frames with saturated colours: lossy coding changes them little, a wrong colour matrix or
 * range changes them much. */
static void draw(void) {
    for (int f = 0; f < FRAMES; f++)
        for (int y = 0; y < HEIGHT; y++)
            for (int x = 0; x < WIDTH; x++) {
                uint8_t *rgb = put[f] + 3 * (y * WIDTH + x);
                rgb[0] = (uint8_t)(127.5 + 127.5 * sin(x / 20.0 + f / 5.0));
                rgb[1] = (uint8_t)(127.5 + 127.5 * sin(y / 25.0 + 1));
                rgb[2] = (uint8_t)(127.5 + 127.5 * cos((x + y) / 30.0 - f / 7.0));
            }
}

/* Writes a video. Returns 0 or the code of the first failure. */
static int write_video(const char *name, int frames, const struct video_settings *settings,
                       struct sluice_error *e) {
    struct video *video;
    const char *path = temporary_path(name);
    int status = video_check_name(path, e);
    if (!status) status = video_check_settings(path, settings, e);
    if (!status) status = video_open(path, settings, &video, e);
    for (int i = 0; i < frames && !status; i++) {
        status = video_put(video, put[i], e);
        if (status) video_abandon(video);
    }
    return status ? status : video_close(video, e);
}

static struct video_settings default_settings(void) {
    return (struct video_settings){
        .width = WIDTH, .height = HEIGHT, .fps = FPS, .quality = 90, .parameters = text};
}

/* Runs a command, with the file name in place of %s. Reads at most `most` bytes of its output. */
static void run(const char *command, const char *name, void *to, size_t most, size_t *n) {
    const char *path = temporary_path(name);
    const char *line = format_text(command, path);
    FILE *from = popen(line, "r");
    *n = from ? fread(to, 1, most, from) : 0;
    check(from && pclose(from) == 0, "%s", line);
}

static const char *probe(const char *name, const char *entries) {
    size_t n;
    const char *command =
        format_text("ffprobe -v error -count_frames -show_entries %s -of default=nw=1 %%s", entries);
    run(command, name, printed, sizeof printed - 1, &n);
    printed[n] = 0;
    return printed;
}

static void check_contains(const char *name, const char *found, const char *wanted) {
    check(strstr(found, wanted), "%s: %s is missing in\n%s", name, wanted, found);
}

/* Mean absolute difference per channel between the decoded video and the frames written. */
static double mean_error(const char *name) {
    size_t n;
    double sum = 0;
    run("ffmpeg -v error -i %s -f rawvideo -pix_fmt rgb24 -vsync passthrough -", name, got, sizeof got, &n);
    check(n == (size_t)FRAMES * FRAME_BYTES, "%s: %zu bytes", name, n);
    for (int f = 0; f < FRAMES; f++)
        for (int i = 0; i < FRAME_BYTES; i++) sum += abs(got[f][i] - put[f][i]);
    return sum / FRAMES / FRAME_BYTES;
}

static void check_written(const char *name, const char *codec, double most) {
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    check(write_video(name, FRAMES, &settings, &e) == SLUICE_OK, "%s: %s %s", name, e.what, e.found);
    const char *found = probe(name, "stream=codec_name,width,height,r_frame_rate,nb_read_frames");
    const char *wanted = format_text("codec_name=%s", codec);
    check_contains(name, found, wanted);
    check_contains(name, found, "width=96");
    check_contains(name, found, "height=80");
    check_contains(name, found, "r_frame_rate=25/1");
    check_contains(name, found, "nb_read_frames=19");
    if (strcmp(codec, "gif")) {
        check_contains(name, probe(name, "stream=color_space,color_range,color_primaries,color_transfer"),
                       "color_space=bt709");
        check_contains(name, printed, "color_range=tv");
        check_contains(name, printed, "color_primaries=bt709");
        check_contains(name, printed, "color_transfer=bt709");
    }
    double error = mean_error(name);
    check(error <= most, "%s: off by %.2f, at most %.2f", name, error, most);
}

static void check_text(const char *name) {
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    check(write_video(name, 2, &settings, &e) == SLUICE_OK, "%s: %s", name, e.what);
    const char *found = probe(name, "format_tags");
    check(strstr(found, "a fox, \"red\"; \xC3\xA9") && strstr(found, "Negative prompt: snow=1") &&
              strstr(found, "Steps: 2"),
          "%s: %s", name, found);
    settings.parameters = NULL;
    check(write_video(name, 2, &settings, &e) == SLUICE_OK, "%s: %s", name, e.what);
    check(!strstr(probe(name, "format_tags"), "fox"), "%s: %s", name, printed);
    const char *path = temporary_path(name);
    unlink(path);
}

static off_t bytes_of(const char *name) {
    struct stat info = {0};
    const char *path = temporary_path(name);
    return stat(path, &info) ? 0 : info.st_size;
}

static void check_quality(const char *name) {
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    off_t bytes[3];
    for (int i = 0; i < 3; i++) {
        settings.quality = i * 49 + 1;
        check(write_video(name, FRAMES, &settings, &e) == SLUICE_OK, "%s: %s", name, e.what);
        bytes[i] = bytes_of(name);
    }
    check(bytes[0] < bytes[1] && bytes[1] < bytes[2], "%s: %ld, %ld, %ld bytes", name, (long)bytes[0],
          (long)bytes[1], (long)bytes[2]);
}

/* ---- sound ---- */

/* A tone of 1 kHz in the left channel, from FIRST to LAST of 0.76 s, the length of the frames; the right
 * channel is silent. */
enum { RATE = 48000, SAMPLES = RATE * FRAMES / FPS, FIRST = RATE * 3 / 10, LAST = RATE / 2, CHANNELS = 2 };
static float tone[SAMPLES * CHANNELS], decoded_sound[(SAMPLES + RATE) * CHANNELS];

/* Loudness (root mean square) of one channel of `decoded_sound`, over samples from `first` to `last`. */
static double loudness(int channel, int first, int last) {
    double sum = 0;
    for (int i = first; i < last; i++) {
        double value = (double)decoded_sound[i * CHANNELS + channel];
        sum += value * value;
    }
    return sqrt(sum / (last - first));
}

/* Decodes the sound of a file and checks length, place and channel of the tone. A player starts both streams
 * at 0, so the encoder's delay must be declared in the file. `most`: largest number of added samples. */
static void check_tone(const char *name, int most) {
    enum { EDGE = RATE / 200 }; /* 5 ms: encoders smear the ends of the tone */
    size_t n;
    run("ffmpeg -v error -i %s -map 0:a -f f32le -ac 2 -ar 48000 -", name, decoded_sound,
        sizeof decoded_sound, &n);
    int samples = (int)(n / sizeof *decoded_sound / CHANNELS);
    check(samples >= SAMPLES - 1 && samples <= SAMPLES + most, "%s: %d samples, not %d", name, samples,
          SAMPLES);
    double inside = loudness(0, FIRST + EDGE, LAST - EDGE);
    check(fabs(inside - 0.5 * sqrt(0.5)) < 0.02, "%s: the tone has loudness %g", name, inside);
    check(loudness(0, 0, FIRST - EDGE) < 0.01 && loudness(0, LAST + EDGE, SAMPLES) < 0.01,
          "%s: the tone is outside of its place: %g before, %g after", name, loudness(0, 0, FIRST - EDGE),
          loudness(0, LAST + EDGE, SAMPLES));
    check(loudness(0, FIRST, FIRST + EDGE) > 0.2 && loudness(0, LAST - EDGE, LAST) > 0.2,
          "%s: the tone begins late or ends early", name);
    check(loudness(1, 0, SAMPLES) < 0.01, "%s: the right channel has loudness %g", name,
          loudness(1, 0, SAMPLES));
}

static void check_sound(const char *name, const char *codec, int most) {
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    struct sound sound = {RATE, CHANNELS, SAMPLES, tone};
    settings.sound = &sound;
    settings.has_sound = true;
    check(write_video(name, FRAMES, &settings, &e) == SLUICE_OK, "%s: %s %s", name, e.what, e.found);
    const char *wanted = format_text("codec_name=%s", codec);
    check_contains(name, probe(name, "stream=codec_name,sample_rate,channels,nb_read_frames"), wanted);
    check_contains(name, printed, "sample_rate=48000");
    check_contains(name, printed, "channels=2");
    check_contains(name, printed, "nb_read_frames=19");
    check_tone(name, most);
}

/* Sounds of other rates and channels: 24 kHz of LTX-2.0's vocoder, and mono. */
static void check_sound_forms(const char *name, int rate, int channels) {
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    struct sound sound = {rate, channels, rate / 2 + 7, tone};
    settings.sound = &sound;
    check(write_video(name, FRAMES, &settings, &e) == SLUICE_OK, "%s: %s %s", name, e.what, e.found);
    const char *wanted = format_text("channels=%d", channels);
    check_contains(name, probe(name, "stream=channels,nb_read_frames"), wanted);
    check_contains(name, printed, "nb_read_frames=19");
}

static void check_sounds(void) {
    for (int i = FIRST; i < LAST; i++)
        tone[i * CHANNELS] = 0.5F * sinf(2 * 3.14159265F * 1000 * (float)i / RATE);
    check_sound("s.mp4", "aac", 1024);
    check_sound("s.webm", "opus", 0);
    check_sound_forms("s24.mp4", 24000, 2);
    check_sound_forms("s24.webm", 24000, 2);
    check_sound_forms("mono.mp4", 48000, 1);
    check(video_takes_sound("a.mp4") && video_takes_sound("a.webm") && !video_takes_sound("a.gif") &&
              !video_takes_sound("a-%d.png"),
          "the formats with sound are MP4 and WebM");
    struct sluice_error e = {0};
    struct sound sound = {RATE, CHANNELS, SAMPLES, tone};
    const char *path = temporary_path("s.wav");
    check(sound_write_wav(&sound, path, &e) == SLUICE_OK, "%s", e.what);
    check_contains("s.wav", probe("s.wav", "stream=codec_name,sample_rate,channels,duration_ts"),
                   "pcm_s16le");
    check_contains("s.wav", printed, "duration_ts=36480");
    check_tone("s.wav", 0);
}

/* ---- refused settings ---- */

static void check_refused(const char *name, const struct video_settings *settings, const char *word) {
    struct sluice_error e = {0};
    char line[1024];
    int files = count_files(temporary), status = write_video(name, 0, settings, &e);
    sluice_error_line(&e, line, sizeof line);
    check(status == SLUICE_USAGE && e.exit_code == 2 && strstr(line, word), "%s: %d, %s", name, status, line);
    check(count_files(temporary) == files, "%s: a file is left", name);
}

static void check_refusals(void) {
    struct video_settings odd = default_settings(), fast = default_settings();
    odd.width--;
    fast.fps = 51;
    check_refused("odd.mp4", &odd, "95x80");
    check_refused("fast.gif", &fast, "at most 50");
    check(video_has_extension("a/b.MP4") && video_has_extension("x.webm") && video_has_extension("x.gif"),
          "a video extension is not recognised");
    check(!video_has_extension(".mp4") && !video_has_extension("a/.gif") && !video_has_extension("x.mp4/y") &&
              !video_has_extension("-") && !video_has_extension("x.png"),
          "a name without video extension is accepted");
}

/* ---- incomplete videos ---- */

static void check_abandoned(const char *name) {
    struct sluice_error e = {0};
    struct video *video = NULL;
    struct video_settings settings = default_settings();
    int files = count_files(temporary);
    const char *path = temporary_path(name);
    check(video_open(path, &settings, &video, &e) == SLUICE_OK, "%s: %s", name, e.what);
    for (int i = 0; i < 3; i++) video_put(video, put[i], &e);
    check(count_files(temporary) == files, "%s: the file exists before it is complete", name);
    video_abandon(video);
    check(count_files(temporary) == files, "%s: a file is left", name);
}

/* Simulates a full disk by limits on the file size, from a small one up to the complete file. */
static void check_full(const char *name) {
    struct rlimit before, small;
    struct video_settings settings = default_settings();
    struct sluice_error e = {0};
    check(write_video(name, FRAMES, &settings, &e) == SLUICE_OK, "%s: %s", name, e.what);
    off_t bytes = bytes_of(name);
    const char *path = temporary_path(name);
    unlink(path);
    getrlimit(RLIMIT_FSIZE, &before);
    int files = count_files(temporary);
    for (off_t most = 0; most < bytes; most += bytes / 7 + 1) {
        small = (struct rlimit){(rlim_t)most, before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        int status = write_video(name, FRAMES, &settings, &e);
        setrlimit(RLIMIT_FSIZE, &before);
        check(status == SLUICE_OUTPUT && e.exit_code == 6 && strstr(e.what, "File too large"),
              "%s, %ld of %ld bytes: %d, %s, %s", name, (long)most, (long)bytes, status, e.what, e.found);
        check(count_files(temporary) == files, "%s, %ld bytes: a file is left", name, (long)most);
    }
    if (access("/dev/full", W_OK) || symlink("/dev/full", path)) return;
    check(write_video(name, FRAMES, &settings, &e) == SLUICE_OUTPUT && strstr(e.what, "No space left"),
          "%s on a full disk: %s, %s", name, e.what, e.found);
    unlink(path);
}

/* ---- fallback encoders ---- */

static const char *hidden_encoders[2];
static const AVCodec *(*find)(const char *name);

static const AVCodec *find_others(const char *name) {
    for (int i = 0; i < 2; i++)
        if (hidden_encoders[i] && strcmp(name, hidden_encoders[i]) == 0) return NULL;
    return find(name);
}

static void check_without(const char *name, const char *first, const char *second, const char *codec) {
    const struct ffmpeg *f;
    struct sluice_error e = {0};
    struct video_settings settings = default_settings();
    bool is_fallback = false;
    ffmpeg_load(&f, &e);
    if (!find) find = f->avcodec_find_encoder_by_name;
    ((struct ffmpeg *)(uintptr_t)f)->avcodec_find_encoder_by_name = find_others;
    hidden_encoders[0] = first;
    check(!strcmp(video_encoder(name, &is_fallback), second) && is_fallback, "%s: encoder is not %s", name,
          second);
    check_written(name, codec, 6);
    hidden_encoders[1] = second;
    check_refused(name, &settings, "no encoder");
    hidden_encoders[0] = hidden_encoders[1] = NULL;
    check(!strcmp(video_encoder(name, &is_fallback), first) && !is_fallback, "%s: encoder is not %s", name,
          first);
}

int main(void) {
    temporary_make();
    signal(SIGXFSZ, SIG_IGN);
    draw();
    check_written("a.mp4", "h264", 4);
    check_written("a.webm", "vp9", 4);
    check_written("a.GIF", "gif", 6);
    check_quality("q.mp4");
    check_quality("q.webm");
    for (int i = 0; i < 3; i++) {
        const char *name = (const char *const[]){"b.mp4", "b.webm", "b.gif"}[i];
        check_text(name);
        check_abandoned(name);
        check_full(name);
    }
    check_sounds();
    check_refusals();
    check_without("c.mp4", "libx264", "mpeg4", "mpeg4");
    check_without("c.webm", "libvpx-vp9", "libaom-av1", "av1");
    return finish();
}
