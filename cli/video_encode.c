/* Video encoder with FFmpeg. Encoders always use two threads, because their memory depends on
 * the number of threads and plans count it. Equal frames may give different files: x264 0.164 reads
 * uninitialised memory (mbtree, frames of 96x80). */
#include "cli/video.h"

#include "cli/fail.h"
#include "cli/ffmpeg.h"
#include "cli/outfile.h"
#include "cli/palette.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- FFmpeg's libraries ---- */

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

/* The last error that FFmpeg logged on this thread, else the text of the error code `problem`. Thread-local
 * buffer. */
static const char *ffmpeg_reason(const struct ffmpeg *ffmpeg, int problem) {
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

int ffmpeg_load(const struct ffmpeg **ffmpeg, struct sluice_error *e) {
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

/* ---- encoding ---- */

enum { THREADS = 2, KEY_SECONDS = 2, WRITTEN_TOGETHER = 64 << 10 };

struct video {
    const struct ffmpeg *f;
    const struct video_format *format;
    const struct video_codec *codec;
    struct outfile out;
    AVCodecContext *encoder;
    AVFormatContext *muxer;
    bool header_written; /* true: the file header is written, so av_write_trailer has to be called */
    AVIOContext *io;
    AVPacket *packet;
    AVFrame *frame;
    struct SwsContext *scaler;     /* converts RGB to YUV 4:2:0; NULL for GIF */
    struct palette *palette;       /* palette of a GIF; else NULL */
    char *comment;                 /* comment of a GIF, which FFmpeg does not write; else NULL */
    AVCodecContext *sound_encoder; /* encoder of the sound, stream 1 of the file; NULL: no sound */
};

static const struct video_codec *find_codec(const struct ffmpeg *f, const struct video_format *format) {
    for (int i = 0; i < VIDEO_CODECS_MAX && format->codecs[i].name; i++)
        if (f->avcodec_find_encoder_by_name(format->codecs[i].name)) return &format->codecs[i];
    return NULL;
}

int video_check_name(const char *name, struct sluice_error *e) {
    const struct video_format *format = video_format_find(name);
    const struct ffmpeg *f;
    if (ffmpeg_load(&f, e)) return e->code;
    if (find_codec(f, format)) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "the installed FFmpeg has no encoder for this video format" WHERE "--output" FOUND
                "\"%s\"" EXPECTED "an FFmpeg with %s, or a .png file name for one image per frame",
                name, format->codecs[0].name);
}

const char *video_encoder(const char *name, bool *is_fallback) {
    const struct video_format *format = video_format_find(name);
    const struct ffmpeg *f;
    struct sluice_error ignored;
    const struct video_codec *codec = ffmpeg_load(&f, &ignored) ? NULL : find_codec(f, format);
    *is_fallback = codec && codec != &format->codecs[0];
    return codec ? codec->name : "none";
}

static int scale_quality(const struct video_codec *codec, int quality) {
    return codec->worst - (codec->worst - codec->best) * quality / 100;
}

static void set_parameters(AVCodecContext *encoder, const struct video_codec *codec,
                           const struct video_settings *settings) {
    encoder->width = settings->width;
    encoder->height = settings->height;
    encoder->sample_aspect_ratio = (AVRational){1, 1};
    encoder->time_base = (AVRational){1, settings->fps};
    encoder->framerate = (AVRational){settings->fps, 1};
    encoder->gop_size = KEY_SECONDS * settings->fps;
    encoder->thread_count = THREADS;
    encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    encoder->pix_fmt = codec->palette ? AV_PIX_FMT_PAL8 : AV_PIX_FMT_YUV420P;
    if (codec->quantiser) encoder->flags |= AV_CODEC_FLAG_QSCALE;
    if (codec->quantiser) encoder->global_quality = FF_QP2LAMBDA * scale_quality(codec, settings->quality);
    if (codec->palette) return;
    encoder->color_range = AVCOL_RANGE_MPEG;
    encoder->colorspace = AVCOL_SPC_BT709;
    encoder->color_primaries = AVCOL_PRI_BT709;
    encoder->color_trc = AVCOL_TRC_BT709;
}

/* Opens an FFmpeg encoder. On failure returns NULL and FFmpeg's error code in *status. */
static AVCodecContext *open_encoder(const struct ffmpeg *f, const struct video_codec *codec,
                                    const struct video_settings *settings, int *status) {
    const AVCodec *kind = f->avcodec_find_encoder_by_name(codec->name);
    AVCodecContext *encoder = f->avcodec_alloc_context3(kind);
    AVDictionary *options = NULL;
    char crf[16];
    snprintf(crf, sizeof crf, "%d", scale_quality(codec, settings->quality));
    *status = encoder ? f->av_dict_parse_string(&options, codec->options, "=", " ", 0) : AVERROR(ENOMEM);
    if (*status >= 0 && !codec->quantiser && !codec->palette)
        *status = f->av_dict_set(&options, "crf", crf, 0);
    if (encoder && *status >= 0) {
        set_parameters(encoder, codec, settings);
        *status = f->avcodec_open2(encoder, kind, &options);
    }
    f->av_dict_free(&options);
    if (*status < 0) f->avcodec_free_context(&encoder);
    return encoder;
}

int video_check_settings(const char *name, const struct video_settings *settings, struct sluice_error *e) {
    const struct video_format *format = video_format_find(name);
    const struct ffmpeg *f;
    int problem = 0;
    if (ffmpeg_load(&f, e)) return e->code;
    if (settings->fps > format->fps_most) {
        return fail(e, SLUICE_USAGE,
                    "the frame rate is too high for the video format" WHERE "%s" FOUND "--fps %d" EXPECTED
                    "at most %d",
                    name, settings->fps, format->fps_most);
    }
    if (settings->has_sound && format->sound.codec && !f->avcodec_find_encoder_by_name(format->sound.codec))
        return fail(e, SLUICE_USAGE,
                    "the installed FFmpeg cannot encode the video's sound" WHERE "%s" FOUND
                    "no encoder %s" EXPECTED "an FFmpeg with %s, --no-audio, or a .png file name",
                    name, format->sound.codec, format->sound.codec);
    AVCodecContext *encoder = open_encoder(f, find_codec(f, format), settings, &problem);
    f->avcodec_free_context(&encoder);
    if (problem >= 0) return SLUICE_OK;
    return fail(e, SLUICE_USAGE,
                "the video encoder refuses these settings: %s" WHERE "%s" FOUND "%dx%d, %d fps" EXPECTED
                "another size, or a .png file name for one image per frame",
                ffmpeg_reason(f, problem), name, settings->width, settings->height, settings->fps);
}

#if LIBAVFORMAT_VERSION_MAJOR < 61
typedef uint8_t written;
#else
typedef const uint8_t written;
#endif

static int write_bytes(void *opaque, written *bytes, int n) {
    struct video *video = opaque;
    errno = 0;
    if (fwrite(bytes, 1, (size_t)n, video->out.file) == (size_t)n) return n;
    return AVERROR(errno ? errno : EIO);
}

static int64_t seek(void *opaque, int64_t offset, int whence) {
    struct video *video = opaque;
    if (whence & AVSEEK_SIZE) return AVERROR(ENOSYS);
    if (fseeko(video->out.file, offset, whence & ~AVSEEK_FORCE)) return AVERROR(errno);
    return ftello(video->out.file);
}

static int fail_encoding(struct video *video, int problem, struct sluice_error *e) {
    const char *name = video->out.name;
    if (problem == AVERROR(ENOMEM)) return fail(e, SLUICE_MEMORY, "no memory for writing the video");
    if (video->io && video->io->error < 0) return fail_output(e, name, AVUNERROR(video->io->error));
    return fail(e, SLUICE_OUTPUT, "cannot encode the video: %s" WHERE "%s", ffmpeg_reason(video->f, problem),
                name);
}

/* ---- sound ---- */

/* Opens the encoder of the sound. Returns 0 or FFmpeg's negative error code, as the functions below. */
static int open_sound(struct video *video, const struct sound *sound) {
    const struct ffmpeg *f = video->f;
    const AVCodec *kind = f->avcodec_find_encoder_by_name(video->format->sound.codec);
    AVCodecContext *encoder = video->sound_encoder = f->avcodec_alloc_context3(kind);
    if (!encoder) return AVERROR(ENOMEM);
    encoder->sample_rate = sound->sample_rate;
    encoder->time_base = (AVRational){1, sound->sample_rate};
    encoder->bit_rate = video->format->sound.bits;
    encoder->sample_fmt = video->format->sound.planar ? AV_SAMPLE_FMT_FLTP : AV_SAMPLE_FMT_FLT;
    encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER | AV_CODEC_FLAG_BITEXACT;
    f->av_channel_layout_default(&encoder->ch_layout, sound->channels);
    return f->avcodec_open2(encoder, kind, NULL);
}

/* Passes finished packets of the sound to the muxer, which keeps them until it writes the frames of that
 * time. */
static int write_sound_packets(struct video *video) {
    const struct ffmpeg *f = video->f;
    AVStream *stream = video->muxer->streams[1];
    int status;
    while ((status = f->avcodec_receive_packet(video->sound_encoder, video->packet)) >= 0) {
        video->packet->stream_index = 1;
        f->av_packet_rescale_ts(video->packet, video->sound_encoder->time_base, stream->time_base);
        status = f->av_interleaved_write_frame(video->muxer, video->packet);
        if (status < 0) return status;
    }
    return status == AVERROR(EAGAIN) || status == AVERROR_EOF ? 0 : status;
}

/* Encodes samples `first` .. first + n - 1 of the sound. */
static int encode_samples(struct video *video, const struct sound *sound, int64_t first, int n) {
    const struct ffmpeg *f = video->f;
    AVFrame *frame = f->av_frame_alloc();
    int status = frame ? 0 : AVERROR(ENOMEM), channels = sound->channels;
    if (frame) {
        frame->nb_samples = n;
        frame->format = video->sound_encoder->sample_fmt;
        frame->sample_rate = sound->sample_rate;
        frame->pts = first;
        f->av_channel_layout_default(&frame->ch_layout, channels);
        status = f->av_frame_get_buffer(frame, 0);
    }
    bool planar = video->format->sound.planar;
    for (int i = 0; status >= 0 && i < n * channels; i++) {
        int plane = planar ? i % channels : 0, at = planar ? i / channels : i;
        ((float *)(void *)frame->data[plane])[at] = sound->pcm[first * channels + i];
    }
    if (status >= 0) status = f->avcodec_send_frame(video->sound_encoder, frame);
    f->av_frame_free(&frame);
    return status < 0 ? status : write_sound_packets(video);
}

/* Encodes the whole sound before the first frame: its packets are small, 0.2 MB for 10 seconds. */
static int encode_sound(struct video *video, const struct sound *sound) {
    int each = video->sound_encoder->frame_size, status = each > 0 ? 0 : AVERROR(EINVAL);
    for (int64_t at = 0; at < sound->samples && status >= 0; at += each) {
        int64_t left = sound->samples - at;
        status = encode_samples(video, sound, at, left < each ? (int)left : each);
    }
    if (status >= 0) status = video->f->avcodec_send_frame(video->sound_encoder, NULL);
    return status < 0 ? status : write_sound_packets(video);
}

/* ---- the file ---- */

/* MP4 to a pipe or device is fragmented, because the muxer cannot seek back to write sizes. */
static int open_muxer(struct video *video, const struct video_settings *settings) {
    const struct ffmpeg *f = video->f;
    AVDictionary *options = NULL;
    bool seekable = video->out.renames;
    int status =
        f->avformat_alloc_output_context2(&video->muxer, NULL, video->format->muxer, video->out.name);
    void *buffer = f->av_malloc(WRITTEN_TOGETHER);
    if (buffer)
        video->io = f->avio_alloc_context(buffer, WRITTEN_TOGETHER, 1, video, NULL, write_bytes,
                                          seekable ? seek : NULL);
    if (status < 0) return status;
    AVStream *stream = video->io ? f->avformat_new_stream(video->muxer, NULL) : NULL;
    if (!stream) return AVERROR(ENOMEM);
    video->muxer->pb = video->io;
    video->muxer->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_BITEXACT;
    stream->time_base = video->encoder->time_base;
    stream->avg_frame_rate = video->encoder->framerate;
    status = f->avcodec_parameters_from_context(stream->codecpar, video->encoder);
    if (status >= 0 && video->sound_encoder) {
        AVStream *sound = f->avformat_new_stream(video->muxer, NULL);
        if (!sound) return AVERROR(ENOMEM);
        sound->time_base = video->sound_encoder->time_base;
        status = f->avcodec_parameters_from_context(sound->codecpar, video->sound_encoder);
        video->muxer->max_interleave_delta = 0; /* keep packets until both streams have one, however long */
    }
    if (status >= 0 && settings->parameters)
        status = f->av_dict_set(&video->muxer->metadata, "comment", settings->parameters, 0);
    if (status >= 0) status = f->av_dict_parse_string(&options, video->format->options, "=", " ", 0);
    if (status >= 0 && !seekable)
        status = f->av_dict_set(&options, "movflags", "frag_keyframe+empty_moov", 0);
    if (status >= 0) status = f->avformat_write_header(video->muxer, &options);
    video->header_written = status >= 0;
    f->av_dict_free(&options);
    return status;
}

/* Writes the packets that the encoder has finished to the file. */
static int write_packets(struct video *video) {
    const struct ffmpeg *f = video->f;
    AVStream *stream = video->muxer->streams[0];
    int status;
    while ((status = f->avcodec_receive_packet(video->encoder, video->packet)) >= 0) {
        video->packet->duration = 1;
        video->packet->stream_index = 0;
        f->av_packet_rescale_ts(video->packet, video->encoder->time_base, stream->time_base);
        status = video->sound_encoder ? f->av_interleaved_write_frame(video->muxer, video->packet)
                                      : f->av_write_frame(video->muxer, video->packet);
        f->av_packet_unref(video->packet);
        if (status < 0) return status;
    }
    return status == AVERROR(EAGAIN) || status == AVERROR_EOF ? 0 : status;
}

static int open_frame(struct video *video) {
    const struct ffmpeg *f = video->f;
    video->packet = f->av_packet_alloc();
    video->frame = f->av_frame_alloc();
    if (!video->packet || !video->frame) return AVERROR(ENOMEM);
    if (video->codec->palette) video->palette = palette_new(video->encoder->width);
    if (!video->codec->palette) {
        int flags = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP | SWS_BITEXACT;
        int width = video->encoder->width, height = video->encoder->height;
        const int *bt709 = f->sws_getCoefficients(SWS_CS_ITU709);
        video->scaler = f->sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height,
                                          video->encoder->pix_fmt, flags, NULL, NULL, NULL);
        if (video->scaler)
            f->sws_setColorspaceDetails(video->scaler, bt709, 1, bt709, 0, 0, 1 << 16, 1 << 16);
    }
    if (!video->palette && !video->scaler) return AVERROR(ENOMEM);
    video->frame->pts = 0;
    video->frame->format = video->encoder->pix_fmt;
    video->frame->width = video->encoder->width;
    video->frame->height = video->encoder->height;
    video->frame->color_range = video->encoder->color_range;
    return f->av_frame_get_buffer(video->frame, 0);
}

int video_put(struct video *video, const uint8_t *rgb, struct sluice_error *e) {
    int status = video->f->av_frame_make_writable(video->frame);
    if (status >= 0) {
        AVFrame *frame = video->frame;
        int row_bytes = 3 * frame->width;
        if (video->palette)
            palette_reduce(video->palette, rgb, frame->height, (uint32_t *)(void *)frame->data[1],
                           frame->data[0], frame->linesize[0]);
        else
            video->f->sws_scale(video->scaler, &rgb, &row_bytes, 0, frame->height, frame->data,
                                frame->linesize);
        status = video->f->avcodec_send_frame(video->encoder, video->frame);
        video->frame->pts++;
    }
    if (status >= 0) status = write_packets(video);
    return status < 0 ? fail_encoding(video, status, e) : SLUICE_OK;
}

static void release(struct video *video) {
    const struct ffmpeg *f = video->f;
    if (video->scaler) f->sws_freeContext(video->scaler);
    free(video->palette);
    free(video->comment);
    f->av_frame_free(&video->frame);
    f->av_packet_free(&video->packet);
    if (video->muxer) f->avformat_free_context(video->muxer);
    if (video->io) f->av_free(video->io->buffer);
    f->avio_context_free(&video->io);
    f->avcodec_free_context(&video->encoder);
    f->avcodec_free_context(&video->sound_encoder);
    free(video);
}

void video_abandon(struct video *video) {
    if (!video) return;
    /* Without the trailer the GIF muxer would leak a packet. */
    if (video->header_written) video->f->av_write_trailer(video->muxer);
    outfile_abandon(&video->out);
    release(video);
}

int video_open(const char *name, const struct video_settings *settings, struct video **made,
               struct sluice_error *e) {
    struct video *video = calloc(1, sizeof *video);
    int problem = 0;
    *made = NULL;
    if (!video) return fail(e, SLUICE_MEMORY, "no memory for writing the video");
    video->format = video_format_find(name);
    if (ffmpeg_load(&video->f, e) || outfile_open(&video->out, name, e)) {
        free(video);
        return e->code;
    }
    video->codec = find_codec(video->f, video->format);
    video->encoder = open_encoder(video->f, video->codec, settings, &problem);
    if (problem >= 0) problem = open_frame(video);
    const struct sound *sound = video->format->sound.codec ? settings->sound : NULL;
    if (problem >= 0 && sound) problem = open_sound(video, sound);
    if (problem >= 0) problem = open_muxer(video, settings);
    if (problem >= 0 && sound) problem = encode_sound(video, sound);
    if (video->codec->palette && settings->parameters) video->comment = strdup(settings->parameters);
    if (problem < 0) {
        fail_encoding(video, problem, e);
        video_abandon(video);
        return e->code;
    }
    *made = video;
    return SLUICE_OK;
}

/* Writes the comment of a GIF in blocks of up to 255 bytes, over the final byte of the file, then appends the
 * final byte again. */
static int write_comment(struct video *video) {
    FILE *to = video->out.file;
    if (!video->comment || !video->out.renames) return 0;
    if (fseeko(to, -1, SEEK_END)) return errno;
    fputs("\x21\xFE", to);
    for (size_t n, left = strlen(video->comment), at = 0; left; left -= n, at += n) {
        n = left < 255 ? left : 255;
        fputc((int)n, to);
        fwrite(video->comment + at, 1, n, to);
    }
    fputc(0, to);
    errno = 0;
    return fputc(0x3B, to) == EOF || ferror(to) ? (errno ? errno : EIO) : 0;
}

int video_close(struct video *video, struct sluice_error *e) {
    const struct ffmpeg *f = video->f;
    int problem = f->avcodec_send_frame(video->encoder, NULL);
    if (problem >= 0) problem = write_packets(video);
    if (problem >= 0) {
        video->header_written = false;
        problem = f->av_write_trailer(video->muxer);
    }
    if (problem >= 0) f->avio_flush(video->io);
    if (problem >= 0) problem = video->io->error;
    if (problem < 0) {
        fail_encoding(video, problem, e);
        video_abandon(video);
        return e->code;
    }
    int failed = write_comment(video);
    int status = failed ? fail_output(e, video->out.name, failed) : outfile_commit(&video->out, e);
    if (failed) outfile_abandon(&video->out);
    release(video);
    return status;
}
