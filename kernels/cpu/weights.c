/* Conversion of rows, parts of rows and panels of weights; blocks.c decodes single blocks. */
#include "kernels/cpu/weights.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

#include <string.h>

enum { BLOCK_MOST = 256, PIECE = 1024 };

bool weights_are(const struct tensor *w, enum dtype dtype) {
    return w->dtype == dtype && tensor_packed(w) && !w->scales && w->scale == 1;
}

WIDE static void multiply(float *to, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] *= factor;
}

/* Returns the start of a row's scales in tiled layout: tiles of 128 rows x 4 blocks, stored as 32 rows of the
 * four quarters, 4 blocks each. Source: cuBLAS 13, "1D block scaling factors layout". */
static const unsigned char *tile_row(const struct tensor *w, int64_t row) {
    int64_t blocks = tensor_columns(w) / dtype_tiled_values(w->dtype), across = (blocks + 3) / 4;
    row += w->scale_row;
    return (const unsigned char *)w->scales + row / 128 * across * BLOCKS_TILE_BYTES + row % 32 * 16 +
           row % 128 / 32 * 4;
}

static float cpu_row_scale(const struct tensor *w, int64_t row) {
    float scale;
    memcpy(&scale, (const char *)w->scales + (w->scale_row + row) * (int64_t)sizeof scale, sizeof scale);
    return scale;
}

/* Where some values of a weight start: row; first byte of the row (of the tensor, if blocks cross rows);
 * number of blocks before the values. */
struct place {
    int64_t row;
    const unsigned char *line;
    int64_t block;
};

static void widen_blocks(float *to, const struct tensor *w, struct place at, int64_t n) {
    int64_t values = n * dtype_block_values(w->dtype);
    blocks_decoder(w->dtype)(to, at.line + at.block * dtype_block_bytes(w->dtype), n);
    if (dtype_tiled_values(w->dtype))
        blocks_scale(w->dtype, to, tile_row(w, at.row), at.block, n);
    else if (w->scales)
        multiply(to, cpu_row_scale(w, at.row), values);
    if (w->scale != 1) multiply(to, w->scale, values);
}

/* Converts n values to f32, starting with value `first`, counted from address at.line. */
static void widen_line(float *to, const struct tensor *w, struct place at, int64_t first, int64_t n) {
    int64_t values = dtype_block_values(w->dtype);
    float block[BLOCK_MOST];
    while (n > 0) {
        int64_t skip = first % values, done = skip ? 0 : n / values * values;
        at.block = first / values;
        if (done) {
            widen_blocks(to, w, at, done / values);
        } else {
            widen_blocks(block, w, at, 1);
            done = values - skip < n ? values - skip : n;
            memcpy(to, block + skip, (size_t)done * sizeof *to);
        }
        to += done, first += done, n -= done;
    }
}

void weights_widen_part(float *to, const struct tensor *w, int64_t row, int64_t first, int64_t n) {
    bool whole = !tensor_runs_on(w);
    struct place at = {row, (const unsigned char *)w->data + (whole ? row * w->row_bytes : 0), 0};
    widen_line(to, w, at, first + (whole ? 0 : row * tensor_columns(w)), n);
}

void weights_widen(float *to, const struct tensor *w, int64_t first, int64_t rows) {
    int64_t columns = tensor_columns(w);
    if (tensor_packed(w) && !w->scales) {
        widen_line(to, w, (struct place){0, w->data, 0}, first * columns, rows * columns);
        return;
    }
    for (int64_t i = 0; i < rows; i++) weights_widen_part(to + i * columns, w, first + i, 0, columns);
}

WIDE static void round_values(uint16_t *restrict to, const float *restrict from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = half_f32_bf16(from[i]);
}

void weights_round(uint16_t *to, const struct tensor *w, int64_t first, int64_t rows) {
    float piece[PIECE];
    int64_t columns = tensor_columns(w);
    for (int64_t row = first; row < first + rows; row++)
        for (int64_t i = 0; i < columns; i += PIECE, to += PIECE) {
            int64_t n = columns - i < PIECE ? columns - i : PIECE;
            weights_widen_part(piece, w, row, i, n);
            round_values(to, piece, n);
            to += n - PIECE;
        }
}

const float *weights_vector(const struct tensor *w, float *to) {
    if (w->rank == 0) return NULL;
    if (weights_are(w, DTYPE_F32)) return w->data;
    weights_widen(to, w, 0, 1);
    return to;
}

enum { PACK_OUTPUTS = 64, PACK_INPUTS = 256, TILE = 16, TILE_ROW = PACK_INPUTS + TILE };

typedef float lanes __attribute__((vector_size(TILE * sizeof(float)), aligned(sizeof(float))));

/* Shuffle indices that swap the off-diagonal d x d squares of a tile between two rows d apart: lane j of row
 * `a` and TILE + j of row `b`. */
#define UPPER(j, d) ((j) & (d) ? TILE + (j) - (d) : (j))
#define LOWER(j, d) ((j) & (d) ? TILE + (j) : (j) + (d))
#define LANES(of, d)                                                                                         \
    of(0, d), of(1, d), of(2, d), of(3, d), of(4, d), of(5, d), of(6, d), of(7, d), of(8, d), of(9, d),      \
        of(10, d), of(11, d), of(12, d), of(13, d), of(14, d), of(15, d)
#define SWAP_SQUARES(row, d)                                                                                 \
    for (int i = 0; i < TILE; i++) {                                                                         \
        if (i & (d)) continue;                                                                               \
        lanes a = (row)[i], b = (row)[i + (d)];                                                              \
        (row)[i] = __builtin_shufflevector(a, b, LANES(UPPER, d));                                           \
        (row)[i + (d)] = __builtin_shufflevector(a, b, LANES(LOWER, d));                                     \
    }

/* Transposes a 16 x 16 tile; compilers do not generate this shuffle sequence themselves. */
static inline __attribute__((always_inline)) void transpose_tile(float *to, const float *tile) {
    lanes row[TILE];
    for (int i = 0; i < TILE; i++) row[i] = *(const lanes *)(tile + TILE_ROW * i);
    SWAP_SQUARES(row, 1)
    SWAP_SQUARES(row, 2)
    SWAP_SQUARES(row, 4)
    SWAP_SQUARES(row, 8)
    for (int i = 0; i < TILE; i++) *(lanes *)(to + PACK_OUTPUTS * i) = row[i];
}

/* Transposes 16 outputs x inputs (a multiple of 16); rows are TILE_ROW apart. */
WIDE static void transpose_rows(float *to, const float *rows, int inputs) {
    for (int i = 0; i < inputs; i += TILE) transpose_tile(to + PACK_OUTPUTS * i, rows + i);
}

static void cpu_weights_pack_rows(float *to, const struct tensor *w, int64_t first, int64_t input,
                                  int inputs) {
    float rows[TILE * TILE_ROW];
    for (int n = 0; n < PACK_OUTPUTS; n += TILE) {
        for (int i = 0; i < TILE; i++)
            weights_widen_part(rows + TILE_ROW * i, w, first + n + i, input, inputs);
        transpose_rows(to + n, rows, inputs);
    }
}

/* Packs f16 or bf16 directly, without decoding blocks, in half the time. */
#define PACK_HALVES(name, converted)                                                                         \
    WIDE static void name(float *to, const uint16_t *from, int64_t k, int inputs) {                          \
        float tile[TILE * TILE_ROW];                                                                         \
        for (int n = 0; n < PACK_OUTPUTS; n += TILE)                                                         \
            for (int first = 0; first < inputs; first += TILE) {                                             \
                for (int i = 0; i < TILE; i++)                                                               \
                    for (int j = 0; j < TILE; j++)                                                           \
                        tile[TILE_ROW * i + j] = converted(from[(n + i) * k + first + j]);                   \
                transpose_tile(to + PACK_OUTPUTS * first + n, tile);                                         \
            }                                                                                                \
    }
PACK_HALVES(pack_bf16, half_bf16_f32)
PACK_HALVES(pack_f16, half_f16_f32)

static void pack_piece(float *to, const struct tensor *w, int64_t first, int64_t input, int inputs) {
    enum { HALVES = 32 };
    int64_t k = w->dim[1];
    const uint16_t *halves = (const uint16_t *)w->data + first * k + input;
    if (!weights_are(w, DTYPE_BF16) && !weights_are(w, DTYPE_F16)) {
        cpu_weights_pack_rows(to, w, first, input, inputs);
        return;
    }
    for (int i = 0, n; i < inputs; i += n) {
        n = inputs - i < HALVES ? inputs - i : HALVES;
        (w->dtype == DTYPE_BF16 ? pack_bf16 : pack_f16)(to + PACK_OUTPUTS * i, halves + i, k, n);
    }
}

void weights_widen_packed(float *to, const struct tensor *w) {
    int64_t k = w->dim[1];
    for (int64_t first = 0; first < w->dim[0]; first += PACK_OUTPUTS)
        for (int64_t input = 0; input < k; input += PACK_INPUTS) {
            int inputs = (int)(k - input < PACK_INPUTS ? k - input : PACK_INPUTS);
            pack_piece(to + first * k + input * PACK_OUTPUTS, w, first, input, inputs);
        }
}
