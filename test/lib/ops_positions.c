/* Test cases of the operators for token positions: RoPE tables, patches, timesteps. */
#include "test/lib/ops_cases.h"

/* Returns a token's index in the token order, which sorts by window, then block, then position in the block.
 */
static int64_t walk_rank(struct token_order walk, int32_t rows, int32_t columns, int32_t row,
                         int32_t column) {
    int32_t window = walk.window ? walk.window : rows > columns ? rows : columns;
    int32_t block = walk.block ? walk.block : 1;
    int64_t keys[] = {row / window,         column / window,
                      row % window / block, column % window / block,
                      row % window % block, column % window % block},
            rank = 0;
    for (int i = 0; i < 6; i++) rank = rank * 1000 + keys[i];
    return rank;
}

/* Returns the coordinates of an image's tokens in token order, computed independently of the engine by
 * sorting. */
static struct token_coords *walk_places(struct token_order walk, int32_t rows, int32_t columns) {
    struct token_coords *places = pool_alloc(sizeof *places * (size_t)rows * (size_t)columns);
    int64_t *ranks = pool_alloc(sizeof *ranks * (size_t)rows * (size_t)columns);
    int64_t n = 0;
    for (int32_t row = 0; row < rows; row++)
        for (int32_t column = 0; column < columns; column++, n++) {
            int64_t rank = walk_rank(walk, rows, columns, row, column), i = n;
            for (; i > 0 && ranks[i - 1] > rank; i--) ranks[i] = ranks[i - 1], places[i] = places[i - 1];
            ranks[i] = rank;
            places[i] = (struct token_coords){row, column};
        }
    return places;
}

static int32_t extent_of(const struct rope_options *o, const struct rope_grid *grid, int axis) {
    return axis < o->n_axes && !(axis && grid->diagonal) ? grid->extent[axis] : 1;
}

/* Computes RoPE's cos and sin for each pair of values of one token. */
static double *rope_row(const struct rope_options *o, const int32_t *position, double *at) {
    int32_t all = 0, dim = 0, pair_position[256];
    for (int a = 0; a < o->n_axes; a++) all += o->axis_dim[a];
    for (int a = 0; a < o->n_axes; a++)
        for (int j = 0; j < o->axis_dim[a]; j += 2) pair_position[dim++] = position[a];
    /* Interleaved M-RoPE as in transformers: all pairs have the time position, then every third pair is
     * overwritten, from pair 1 with rows and from pair 2 with columns. */
    for (int a = 1; a < 3 && o->mrope_interleaved; a++) {
        for (int i = 0; i < dim && a == 1; i++) pair_position[i] = position[0];
        for (int i = a; i < dim && i < 3 * o->axis_dim[a] / 2; i += 3) pair_position[i] = position[a];
    }
    dim = 0;
    for (int a = 0; a < o->n_axes; a++)
        for (int j = 0; j < o->axis_dim[a]; j += 2, dim += 2) {
            int32_t numerator = o->mrope ? dim : j, of = o->mrope ? all : o->axis_dim[a];
            double theta = o->theta_factor[a] > 0 ? o->theta * o->theta_factor[a] : o->theta;
            double frequency = pow(theta, -(double)numerator / of);
            if (o->f32_frequencies) {
                float power = (float)pow(theta, (double)((float)numerator / (float)of));
                frequency = (double)(1.0f / power);
            }
            if (o->position_divisor > 0) frequency = (double)(float)(frequency / o->position_divisor);
            double angle = pair_position[dim / 2] * frequency;
            if (!o->f64_angles) angle = (double)(float)angle;
            *at++ = cos(angle);
            *at++ = sin(angle);
        }
    return at;
}

/* Writes the table rows of one grid to `at`. token_order orders the last two axes (rows and columns); the
 * axes before them are outer loops, the first one slowest. Returns the end of the rows. */
static double *rope_grid_rows(const struct rope_options *o, const struct rope_grid *grid, double *at) {
    int last = grid->diagonal ? 0 : o->n_axes - 1;
    int32_t rows = last ? extent_of(o, grid, last - 1) : 1, columns = extent_of(o, grid, last), images = 1;
    for (int a = 0; a < last - 1; a++) images *= extent_of(o, grid, a);
    struct token_coords *places = walk_places(grid->token_order, rows, columns);
    for (int32_t i = 0; i < images * rows * columns; i++) {
        struct token_coords place = places[i % (rows * columns)];
        int32_t position[ROPE_AXES_MAX], image = i / (rows * columns);
        for (int a = o->n_axes - 1; a >= 0; a--) {
            position[a] = grid->start[a];
            if (grid->diagonal) {
                position[a] += a < grid->fixed_axes ? 0 : i;
            } else if (a >= last - 1) {
                position[a] += a == last ? place.column : place.row;
            } else {
                position[a] += image % grid->extent[a];
                image /= grid->extent[a];
            }
        }
        at = rope_row(o, position, at);
    }
    return at;
}

static void case_rope_table(const struct rope_options *o) {
    case_begin();
    int32_t tokens = 0, pairs = 0;
    for (int a = 0; a < o->n_axes; a++) pairs += o->axis_dim[a] / 2;
    for (int g = 0; g < o->n_grids; g++)
        tokens += extent_of(o, &o->grid[g], 0) * extent_of(o, &o->grid[g], 1) * extent_of(o, &o->grid[g], 2) *
                  extent_of(o, &o->grid[g], 3);
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(tokens, pairs, 2), 0, 1);
    double *truth = op_truth(&out), *at = truth;
    for (int g = 0; g < o->n_grids; g++) at = rope_grid_rows(o, &o->grid[g], at);
    op_rope_table(&x, out, o);
    op_expect(OP_ROPE_TABLE, &out, truth);
}

void case_rope_tables(int n) {
    static const struct rope_options tables[ROPE_TABLES] = {
        {.theta = 2000, /* four axes: text on the last, an image and a reference (Flux.2) */
         .n_axes = 4,
         .axis_dim = {32, 32, 30, 34},
         .n_grids = 4,
         .grid = {{.extent = {1, 1, 1, 21}},
                  {.start = {0, 0, 0, 3}, .extent = {2, 3, 5, 2}},
                  {.start = {20, 0, 0, 0}, .extent = {1, 4, 7, 1}},
                  {.start = {2, 3, 9, 4}, .extent = {11}, .diagonal = true, .fixed_axes = 2}}},
        {.theta = 256, /* two grids over three axes */
         .n_axes = 3,
         .axis_dim = {4, 8, 8},
         .n_grids = 2,
         .grid = {{.start = {1, 0, 0}, .extent = {32, 1, 1}}, {.start = {33, 0, 0}, .extent = {1, 6, 9}}}},
        {.theta = 1e6, .n_axes = 1, .axis_dim = {128}, .n_grids = 1, .grid = {{.extent = {300}}}},
        /* text after images with f32 frequencies */
        {.theta = 10000,
         .n_axes = 3,
         .axis_dim = {16, 56, 56},
         .f32_frequencies = true,
         .n_grids = 3,
         .grid = {{.start = {4, 5, 6}, .extent = {9}, .diagonal = true},
                  {.start = {0, -3, -4}, .extent = {1, 5, 8}},
                  {.start = {1, -2, -1}, .extent = {1, 3, 2}}}},
        /* text around an image with frequencies over the whole head */
        {.theta = 1e6,
         .n_axes = 3,
         .axis_dim = {32, 48, 48},
         .mrope = true,
         .f32_frequencies = true,
         .n_grids = 3,
         .grid = {{.extent = {7}, .diagonal = true},
                  {.start = {7, 7, 7}, .extent = {1, 4, 6}},
                  {.start = {13, 13, 13}, .extent = {300}, .diagonal = true}}},
        /* the same prompt with alternating axes: the published sections, and sections of a small head */
        {.theta = 5e6,
         .n_axes = 3,
         .axis_dim = {48, 40, 40},
         .mrope = true,
         .mrope_interleaved = true,
         .f32_frequencies = true,
         .n_grids = 3,
         .grid = {{.extent = {7}, .diagonal = true},
                  {.start = {7, 7, 7}, .extent = {1, 4, 6}},
                  {.start = {13, 13, 13}, .extent = {300}, .diagonal = true}}},
        {.theta = 100,
         .n_axes = 3,
         .axis_dim = {2, 6, 4},
         .mrope = true,
         .mrope_interleaved = true,
         .n_grids = 1,
         .grid = {{.start = {3, -9, 2}, .extent = {3, 7, 5}}}},
        /* a vision tower's windows cropped at both edges */
        {.theta = 10000,
         .n_axes = 2,
         .axis_dim = {40, 40},
         .f32_frequencies = true,
         .n_grids = 2,
         .grid = {{.extent = {14, 20}, .token_order = {8, 2}}, {.extent = {4, 6}, .token_order = {0, 2}}}},
        {.theta = 100,
         .n_axes = 3,
         .axis_dim = {2, 6, 4},
         .mrope = true,
         .n_grids = 1,
         .grid = {{.start = {3, -9, 2}, .extent = {3, 7, 5}, .token_order = {3, 1}}}},
        {.theta = 10000, /* axes of a video: frames, rows and columns */
         .n_axes = 3,
         .axis_dim = {44, 42, 42},
         .f64_angles = true,
         .n_grids = 1,
         .grid = {{.start = {20, 0, 70}, .extent = {2, 4, 10}}}},
        {.theta = 10000, /* rows and columns with a larger theta (Anima) */
         .n_axes = 3,
         .axis_dim = {44, 42, 42},
         .theta_factor = {0, 4.2870938501451725, 3},
         .f32_frequencies = true,
         .n_grids = 1,
         .grid = {{.start = {3, 0, 0}, .extent = {2, 5, 120}}}},
        {.theta = 1e6, /* scaled positions (Gemma 3) */
         .n_axes = 1,
         .axis_dim = {256},
         .position_divisor = 8,
         .f32_frequencies = true,
         .n_grids = 1,
         .grid = {{.extent = {1024}, .diagonal = true}}},
    };
    for (int i = 0; i < n; i++) case_rope_table(&tables[i]);
}

void case_add_positions(struct position_grid grid, int32_t c, enum dtype dtype, int gap, bool in_place) {
    case_begin();
    int32_t tokens = grid.rows * grid.columns, side = grid.side;
    struct tensor a = tensor_random(DTYPE_F32, SHAPE(tokens, c), gap, 3),
                  table = tensor_random(dtype, SHAPE(side * side, c), 0, 1),
                  out = in_place ? a : tensor_random(DTYPE_F32, SHAPE(tokens, c), 2 * gap, 1);
    struct token_coords *places = walk_places(grid.token_order, grid.rows, grid.columns);
    double *truth = op_truth(&out);
    for (int64_t i = 0; i < (int64_t)tokens * c; i++) {
        struct token_coords place = places[i / c];
        double y = grid.rows > 1 ? (double)place.row * (side - 1) / (grid.rows - 1) : 0;
        double xx = grid.columns > 1 ? (double)place.column * (side - 1) / (grid.columns - 1) : 0;
        truth[i] = load(&a, i / c, i % c);
        for (int32_t row = 0; row < side; row++)
            for (int32_t column = 0; column < side; column++)
                truth[i] += fmax(0, 1 - fabs(y - row)) * fmax(0, 1 - fabs(xx - column)) *
                            load(&table, row * side + column, i % c);
    }
    op_add_positions(&x, out, a, table, grid);
    op_expect(OP_ADD_POSITIONS, &out, truth);
}

/* Element (row, column, channel) of an image: planes of channels, or pixels. */
static double element(const struct tensor *image, bool pixels, int32_t y, int32_t xx, int32_t channel) {
    if (pixels) return load(image, (int64_t)y * image->dim[1] + xx, channel);
    return load(image, (int64_t)channel * image->dim[1] + y, xx);
}

void case_patchify(int32_t c, int32_t rows, int32_t columns, struct patches patches, int gap) {
    case_begin();
    int32_t p = patches.side, area = p * p, high = rows * p, wide = columns * p;
    struct tensor image = patches.pixels ? tensor_random(DTYPE_F32, SHAPE(high, wide, c), gap, 1)
                                         : tensor_random(DTYPE_F32, SHAPE(c, high, wide), 0, 1);
    struct tensor tokens = tensor_random(DTYPE_F32, SHAPE(rows * columns, area * c), 2 * gap, 1);
    double *truth = op_truth(&tokens), *back = op_truth(&image);
    struct token_coords *places = walk_places(patches.token_order, rows, columns);
    for (int64_t i = 0; i < tensor_elements(&tokens); i++) {
        int32_t place = (int32_t)(i % (area * c)), last = patches.order == PATCH_CHANNELS_LAST;
        int32_t pixel = last ? place / c : place % area, channel = last ? place % c : place / area;
        struct token_coords corner = places[i / (area * c)];
        int32_t row = pixel / p, column = pixel % p;
        if (patches.order == PATCH_COLUMNS_FIRST) row = pixel % p, column = pixel / p;
        row += corner.row * p, column += corner.column * p;
        truth[i] = element(&image, patches.pixels, row, column, channel);
        int64_t at = patches.pixels ? ((int64_t)row * wide + column) * c + channel
                                    : ((int64_t)channel * high + row) * wide + column;
        back[at] = 1.7f * truth[i];
    }
    op_patchify(&x, tokens, image, patches);
    op_expect(OP_PATCHIFY, &tokens, truth);
    memset(image.data, 0xff, (size_t)(tensor_rows(&image) * image.row_bytes));
    op_unpatchify(&x, image, tokens, patches, 1.7f);
    op_expect(OP_UNPATCHIFY, &image, back);
}

void case_patch_orders(int32_t c, int32_t rows, int32_t columns, int p, int gap) {
    static const enum patch_order orders[] = {PATCH_CHANNELS_LAST, PATCH_CHANNELS_FIRST, PATCH_COLUMNS_FIRST};
    for (int i = 0; i < 3; i++)
        case_patchify(c, rows / p, columns / p, (struct patches){.side = p, .order = orders[i]}, gap);
}

void case_timestep(int32_t d, float t, enum timestep_form form) {
    case_begin();
    struct tensor out = tensor_random(DTYPE_F32, SHAPE(1, d), 0, 1);
    double *truth = op_truth(&out);
    bool to_end = form == TIMESTEP_TO_END;
    for (int i = 0; i < d / 2; i++) {
        /* Computed in f32, as in the reference. */
        float exponent = (float)-log(10000) * (float)i / (float)(d / 2);
        if (to_end) exponent = (float)-log(10000) / (float)(d / 2 - 1) * (float)i;
        float angle = t * (float)exp((double)exponent);
        if (form == TIMESTEP_OF_SIGMA) angle = 1000 * angle;
        truth[to_end ? d / 2 + i : i] = cos((double)angle);
        truth[to_end ? i : d / 2 + i] = sin((double)angle);
    }
    op_timestep(&x, out, t, form);
    op_expect(OP_TIMESTEP, &out, truth);
}

void case_token_orders(void) {
    static const struct token_order orders[] = {{8, 2}, {4, 2}, {0, 2}, {4, 0}, {6, 3}, {0, 1}, {0, 0}};
    static const struct {
        int32_t c, rows, columns, side;
        enum patch_order order;
        int gap;
    } images[] = {{3, 6, 12, 14, PATCH_CHANNELS_FIRST, 0},
                  {7, 18, 24, 1, PATCH_CHANNELS_FIRST, 2},
                  {5, 6, 6, 2, PATCH_CHANNELS_LAST, 1},
                  {3, 6, 12, 2, PATCH_COLUMNS_FIRST, 0}};
    for (int i = 0; i < 28; i++)
        case_patchify(images[i % 4].c, images[i % 4].rows, images[i % 4].columns,
                      (struct patches){.side = images[i % 4].side,
                                       .order = images[i % 4].order,
                                       .pixels = true,
                                       .token_order = orders[i / 4]},
                      images[i % 4].gap);
}
