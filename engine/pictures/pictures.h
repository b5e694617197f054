/* What is done with the pictures of a request before a model sees them, and with what an autoencoder's
 * encoder makes of them. Pure functions over host memory; must not know of jobs, devices or files.
 *
 * Source of the arithmetic: diffusers 0.42, image_processor.py (VaeImageProcessor), pipelines/wan
 * (pipeline_wan_vace.py), pipelines/flux
 * (pipeline_flux_fill.py, pipeline_flux_kontext.py), pipelines/qwenimage (pipeline_qwenimage_edit.py),
 * models/autoencoders/vae.py; transformers 5.23, image_processing_backends.py (TorchvisionBackend). */
#ifndef SLUICE_PICTURES_PICTURES_H
#define SLUICE_PICTURES_PICTURES_H

#include "engine/pictures/resample.h"
#include "engine/base/error.h"
#include "engine/base/tensor.h"
#include "engine/sluice.h"
#include "kernels/ops.h"

enum { PICTURE_SIDE_MAX = SLUICE_SIDE_MAX };

/* Pictures as the public header has them, whole (copy_sized). what: how messages call it, "the mask". */

/* USAGE without pixels or what reads them, LIMIT unless both sides are 1 to PICTURE_SIDE_MAX. */
enum status picture_check(const struct sluice_picture *picture, const char *what, struct error *e);
/* out [Y, X, 3] f32, packed, of the picture's size: 2 (v / 255) - 1. mask, of the same size, or NULL: where
 * it draws, out is 0 (the grey that a model that fills has seen there). */
void picture_to_tensor(const struct sluice_picture *picture, const struct sluice_picture *mask,
                       struct tensor out);
/* The same of the part that a mask draws, or of that which it leaves: out is 0 elsewhere. mask NULL: all. */
void picture_to_part(const struct sluice_picture *picture, const struct sluice_picture *mask, bool drawn,
                     struct tensor out);
/* Its grey there, from 0 to 1; it draws from half on. */
float mask_level(const struct sluice_picture *mask, int y, int x);

/* A picture of that size on a canvas: as large as fits into it. A side may be 0. */
struct picture_size picture_canvas_size(struct picture_size from, struct picture_size canvas);
/* out [Y, X, 3] f32, packed, of any size: the picture in its middle at that size, bilinear as PyTorch's
 * interpolate of f32 is without antialiasing, and white around it. */
void picture_to_canvas(const struct sluice_picture *picture, struct tensor out);

/* (v / 255 - mean) / deviation, a colour each, rounded as transformers 5 rounds it. */
void picture_to_seen(const struct sluice_picture *picture, const float mean[3], const float deviation[3],
                     struct tensor out);

/* out [factor^2, Y, X] f32, packed, of a mask of Y factor by X factor pixels: channel y factor + x of a
 * latent pixel is 1 where the mask draws at (y, x) within its square, else 0. A mask draws where its grey, as
 * Pillow converts to "L", is at least half of white. */
void mask_to_channels(const struct sluice_picture *mask, int factor, struct tensor out);

/* out [Y, X] f32, packed, of such a mask: 1 where it draws at the upper left pixel of a latent pixel's
 * square, else 0: nearest, as PyTorch makes a picture smaller. */
void mask_to_latent(const struct sluice_picture *mask, int factor, struct tensor out);

/* The size that a picture to refer to is read at: its own where that has whole multiples and no more pixels
 * than the largest of Kontext's trained sizes; with fewer pixels each side is rounded down to a multiple;
 * with more it is the trained size of the nearest aspect. SHAPE for a side below a multiple, and for aspects
 * beyond 4 to 1 that would be squeezed into a trained size. multiple: 1 to 672. */
enum status picture_reference_size(const struct sluice_picture *picture, int multiple,
                                   struct picture_size *size, struct error *e);

/* Of about so many pixels, with that aspect, both sides rounded to multiples; a side may be 0. area: up to
 * 2^40. */
struct picture_size picture_area_size(struct picture_size from, int64_t area, int multiple);

/* Draws a latent from what the encoder says of it: out [C, Y, X] f32, packed, or [C, Y X] with rows apart, =
 * (mean + exp(logvar / 2) noise - shift) scale, from moments [Y, X, 2 C] f32 with the C means first; logvar
 * is clamped to -30 to 20. noise: C Y X values in out's order, which may be out itself if that is packed, or
 * NULL: the mean. */
void posterior_sample(struct tensor moments, const float *noise, const struct latent_format *format,
                      struct tensor out);

#endif
