/* Input pictures as tensors: pixel values, masks, sizes of references, and sampling from an autoencoder's
 * output. Pure functions over host memory; no jobs, devices or files.
 *
 * Source of the arithmetic: diffusers 0.42, image_processor.py (VaeImageProcessor), pipelines/wan
 * (pipeline_wan_vace.py), pipelines/flux (pipeline_flux_fill.py, pipeline_flux_kontext.py), pipelines/flux2
 * (image_processor.py, pipeline_flux2_klein_inpaint.py), pipelines/qwenimage (pipeline_qwenimage_edit.py),
 * pipelines/longcat_image (pipeline_longcat_image_edit.py), models/autoencoders/vae.py; transformers 5.23,
 * image_processing_backends.py (TorchvisionBackend). */
#ifndef SLUICE_PICTURES_PICTURES_H
#define SLUICE_PICTURES_PICTURES_H

#include "engine/pictures/resample.h"
#include "engine/base/error.h"
#include "engine/base/tensor.h"
#include "engine/sluice.h"
#include "kernels/ops.h"

enum { PICTURE_SIDE_MAX = SLUICE_SIDE_MAX };

/* Checks a picture, a struct of the public header completed by copy_sized. Fails with USAGE if pixels and
 * read function are both missing, with LIMIT if a side is not 1 to PICTURE_SIDE_MAX. what: names the picture
 * in messages, such as "the mask". */
enum status picture_check(const struct sluice_picture *picture, const char *what, struct error *e);
/* Writes a picture to out, [Y, X, 3] or with alpha [Y, X, 4] f32, packed, at the picture's size, with values
 * 2 (v / 255) - 1. A picture without alpha is opaque. mask: NULL, or of the picture's size. repainted false:
 * out is 0 at repainted pixels, as in the training of inpainting models; true: 0 at all other pixels. */
void picture_to_tensor(const struct sluice_picture *picture, const struct sluice_picture *mask,
                       bool repainted, struct tensor out);
/* Writes a control image to out [Y, X, 3] f32, packed, at the picture's size, with values factor * (v / 255)
 * + offset for a byte v. mask: NULL, or of the picture's size: repainted pixels get the value `hole`. */
void picture_to_control(const struct sluice_picture *picture, const struct sluice_picture *mask, float factor,
                        float offset, float hole, struct tensor out);
/* Grey of a mask pixel, 0 to 1; the image is repainted at pixels of 0.5 and above. */
float mask_level(const struct sluice_picture *mask, int y, int x);

/* The largest size with the picture's aspect ratio that fits into out_size. A side of the result may be 0. */
struct picture_size picture_letterbox_size(struct picture_size from, struct picture_size out_size);
/* Writes the picture, scaled to fit and centred on white, to out [Y, X, 3] f32, packed, of any size; bilinear
 * as PyTorch's interpolate in f32 without antialiasing. */
void picture_letterbox(const struct sluice_picture *picture, struct tensor out);

/* Writes a vision encoder's input: (v / 255 - mean) / deviation per colour, rounded as in transformers 5. A
 * picture with alpha is laid over white first, as in Pillow's paste. */
void picture_to_vision(const struct sluice_picture *picture, const float mean[3], const float deviation[3],
                       struct tensor out);

/* Writes a mask of Y * factor by X * factor pixels to out [factor^2, Y, X] f32, packed: channel y * factor +
 * x of a latent pixel is 1 if the mask repaints pixel (y, x) of the factor x factor square under the latent
 * pixel, else 0. A mask repaints pixels whose grey (Pillow's convert("L")) is at least half of white. */
void mask_to_channels(const struct sluice_picture *mask, int factor, struct tensor out);

/* Writes a mask to out [Y, X] f32, packed: 1 where the mask repaints the upper left pixel of the factor x
 * factor square under a latent pixel, else 0 (nearest, as in PyTorch's interpolate). */
void mask_to_latent(const struct sluice_picture *mask, int factor, struct tensor out);

/* Inpainting mask of Flux.2. Interpolates a mask of Y * factor by X * factor pixels, each 0 or 1 as in
 * mask_to_channels, to out [Y, X] f32, packed: bilinear without antialiasing, as in PyTorch's interpolate.
 * With an even factor a value is the mean of the four pixels at a latent pixel's centre: 0, 1/4 ... 1. */
void mask_to_latent_bilinear(const struct sluice_picture *mask, int factor, struct tensor out);

/* The size at which a reference image is encoded. An image up to the largest Kontext training size keeps its
 * size, each side rounded down to a multiple of `multiple` (1 to 672). A larger image gets the training size
 * of the nearest aspect ratio. Fails with SHAPE for a side below `multiple`, and for larger images with an
 * aspect ratio beyond 4 to 1. */
enum status picture_reference_size(const struct sluice_picture *picture, int multiple,
                                   struct picture_size *size, struct error *e);

/* The size with about `area` pixels and the aspect ratio of `from`, both sides rounded to whole multiples of
 * `multiple`. A side of the result may be 0. area: up to 2^40. picture_area_size_up rounds each side up. */
struct picture_size picture_area_size(struct picture_size from, int64_t area, int multiple);
struct picture_size picture_area_size_up(struct picture_size from, int64_t area, int multiple);

/* Reference images of Flux.2. Returns `from` if it has at most `area` pixels, else the size with `area`
 * pixels and the same aspect ratio, both sides rounded down to whole pixels. The sides of `from` are at
 * least 1. */
struct picture_size picture_limited_size(struct picture_size from, int64_t area);
/* Fails with SHAPE for a side below 64 pixels or an aspect ratio beyond 8 to 1. */
enum status picture_limited_check(const struct sluice_picture *picture, struct error *e);

/* Samples the diagonal Gaussian of a VAE encoder: out := (mean + exp(logvar / 2) noise - shift) * scale. out:
 * [C, Y, X] f32, packed, or [C, Y X] whose rows may be any distance apart. moments: [Y, X, 2 C] f32, C means,
 * then C logvars, which are clamped to -30 to 20. noise: C Y X values in the order of out (out itself is
 * allowed if packed); NULL: no noise, out is made from the mean. */
void posterior_sample(struct tensor moments, const float *noise, const struct latent_format *format,
                      struct tensor out);

#endif
