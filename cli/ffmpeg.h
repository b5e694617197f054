/* FFmpeg's functions, which video_encode.c loads with dlopen on first use. Only the library versions of the
 * build are accepted, because the headers describe their structs. The libraries are never unloaded, because
 * encoders leave thread keys and exit handlers behind. */
#ifndef SLUICE_CLI_FFMPEG_H
#define SLUICE_CLI_FFMPEG_H

#include "engine/sluice.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libavutil/channel_layout.h>
#include <libavutil/dict.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <libswscale/swscale.h>

/* X(library, function) for every function that is used. */
#define FFMPEG_FUNCTIONS(X)                                                                                  \
    X(avutil, av_channel_layout_default)                                                                     \
    X(avutil, av_dict_free)                                                                                  \
    X(avutil, av_dict_parse_string)                                                                          \
    X(avutil, av_dict_set)                                                                                   \
    X(avutil, av_frame_alloc)                                                                                \
    X(avutil, av_frame_free)                                                                                 \
    X(avutil, av_frame_get_buffer)                                                                           \
    X(avutil, av_frame_make_writable)                                                                        \
    X(avutil, av_free)                                                                                       \
    X(avutil, av_log_set_callback)                                                                           \
    X(avutil, av_malloc)                                                                                     \
    X(avutil, av_strerror)                                                                                   \
    X(avcodec, av_packet_alloc)                                                                              \
    X(avcodec, av_packet_free)                                                                               \
    X(avcodec, av_packet_rescale_ts)                                                                         \
    X(avcodec, av_packet_unref)                                                                              \
    X(avcodec, avcodec_alloc_context3)                                                                       \
    X(avcodec, avcodec_find_encoder_by_name)                                                                 \
    X(avcodec, avcodec_free_context)                                                                         \
    X(avcodec, avcodec_open2)                                                                                \
    X(avcodec, avcodec_parameters_from_context)                                                              \
    X(avcodec, avcodec_receive_packet)                                                                       \
    X(avcodec, avcodec_send_frame)                                                                           \
    X(avformat, av_interleaved_write_frame)                                                                  \
    X(avformat, av_write_frame)                                                                              \
    X(avformat, av_write_trailer)                                                                            \
    X(avformat, avformat_alloc_output_context2)                                                              \
    X(avformat, avformat_free_context)                                                                       \
    X(avformat, avformat_new_stream)                                                                         \
    X(avformat, avformat_write_header)                                                                       \
    X(avformat, avio_alloc_context)                                                                          \
    X(avformat, avio_context_free)                                                                           \
    X(avformat, avio_flush)                                                                                  \
    X(swscale, sws_freeContext)                                                                              \
    X(swscale, sws_getCoefficients)                                                                          \
    X(swscale, sws_getContext)                                                                               \
    X(swscale, sws_scale)                                                                                    \
    X(swscale, sws_setColorspaceDetails)

struct ffmpeg {
#define MEMBER(library, function) __typeof__(function) *function;
    FFMPEG_FUNCTIONS(MEMBER)
#undef MEMBER
};

/* Loads FFmpeg once per process. USAGE if FFmpeg is not installed. *ffmpeg points at static memory. */
int ffmpeg_load(const struct ffmpeg **ffmpeg, struct sluice_error *e);
#endif
