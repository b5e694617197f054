/* Edges of a picture, with the same bits as OpenCV 5's Canny with thresholds 100 and 200, a 3x3 Sobel
 * operator and the sum of absolute gradients. Source: opencv/modules/imgproc/src/canny.cpp. */
#ifndef SLUICE_PICTURES_CANNY_H
#define SLUICE_PICTURES_CANNY_H

#include "engine/base/error.h"
#include "engine/base/sys.h"

/* Temporary bytes of canny_edges: three rows of gradients. */
uint64_t canny_bytes(int width);
/* Replaces a picture, height packed rows of width RGB triples, by its edges: white (255) on black. Sides are
 * at least 1. Fails with MEMORY. */
enum status canny_edges(struct sys *sys, uint8_t *rgb, int width, int height, struct error *e);

#endif
