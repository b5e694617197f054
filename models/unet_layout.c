#include "models/unet_layout.h"

/* First block number of a side: down, mid and up blocks have separate number ranges. */
static int unet_side_number(const struct unet_position *p) {
    return (int)p->side * BLOCK_ROW_STEP;
}

/* Number of a position within its side in the authors' checkpoints. */
static int unet_checkpoint_number(const struct unet_settings *s, const struct unet_position *p) {
    if (p->side == UNET_MID) return 2 * p->resnet;
    return p->level * (s->resnets + 1) + p->resnet + (p->side == UNET_DOWN);
}

struct block_ref unet_ref(const struct unet_settings *s, struct unet_position p) {
    int number = p.level * BLOCK_NUMBER_STEP + p.resnet;
    return (struct block_ref){.number = unet_side_number(&p) + number,
                              .number_offset = unet_checkpoint_number(s, &p) - number};
}

struct block_ref unet_layer_ref(const struct unet_settings *s, struct unet_position p) {
    struct block_ref position = unet_ref(s, p);
    int side = unet_side_number(&p);
    position.number = side + (position.number - side) * BLOCK_NUMBER_STEP + p.layer;
    position.number_offset *= BLOCK_NUMBER_STEP;
    return position;
}

struct unet_position unet_position_of(int number) {
    int offset = number % BLOCK_ROW_STEP;
    return (struct unet_position){.side = (enum unet_side)(number / BLOCK_ROW_STEP),
                                  .level = offset / BLOCK_NUMBER_STEP,
                                  .resnet = offset % BLOCK_NUMBER_STEP};
}

struct unet_position unet_layer_position_of(int number) {
    int side = number / BLOCK_ROW_STEP * BLOCK_ROW_STEP, offset = number - side;
    struct unet_position position = unet_position_of(side + offset / BLOCK_NUMBER_STEP);
    position.layer = offset % BLOCK_NUMBER_STEP;
    return position;
}

int unet_index(const struct unet_settings *s, struct unet_position p) {
    int down = s->levels * s->resnets;
    if (p.side == UNET_DOWN) return p.level * s->resnets + p.resnet;
    if (p.side == UNET_MID) return down + p.resnet;
    return down + s->mid_resnets + p.level * (s->resnets + 1) + p.resnet;
}

int unet_n_positions(const struct unet_settings *s) {
    return s->levels * (2 * s->resnets + 1) + s->mid_resnets;
}

struct unet_position unet_position_at(const struct unet_settings *s, int i) {
    int down = s->levels * s->resnets, up = i - down - s->mid_resnets;
    if (i < down) return (struct unet_position){UNET_DOWN, i / s->resnets, i % s->resnets, 0};
    if (up < 0) return (struct unet_position){UNET_MID, 0, i - down, 0};
    return (struct unet_position){UNET_UP, up / (s->resnets + 1), up % (s->resnets + 1), 0};
}

int unet_depth(const struct unet_settings *s, struct unet_position p) {
    return p.side == UNET_DOWN ? p.level : s->levels - 1 - (p.side == UNET_UP ? p.level : 0);
}

int unet_skip(const struct unet_settings *s, struct unet_position p) {
    int i = p.level * (s->resnets + 1) + p.resnet;
    return p.side == UNET_DOWN ? i + 1 : s->levels * (s->resnets + 1) - 1 - i;
}
