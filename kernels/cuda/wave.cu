/* Operators on sound waves and spectrograms: map, snake, sinc_up. No workspace. */
#include "kernels/cuda/row_access.cuh"

/* Returns f(v) for op_map. limit: the parameter of the form. */
__device__ static inline float mapped(float v, enum map_form form, float limit) {
    switch (form) {
    case MAP_LEAKY_RELU:
        return v < 0 ? limit * v : v;
    case MAP_LOG:
        return logf(v < limit ? limit : v);
    case MAP_TANH:
        return tanhf(v);
    case MAP_CLAMP:
        return v < -limit ? -limit : v > limit ? limit : v;
    case MAP_SCALE:
        return limit * v;
    case MAP_FILL:
        return limit;
    case MAP_MAGNITUDE: /* map_values computes it */
        break;
    }
    return v;
}

__device__ static inline float magnitude(float real, float imaginary) {
    return sqrtf(fmaf(real, real, imaginary * imaginary));
}

/* Kernel: out = f(in). other: second half of the columns of `in` for MAP_MAGNITUDE, else absent. Grid:
 * rows_grid_of; no shared memory; 27 registers. Bytes: 8 per value, 12 for MAP_MAGNITUDE; FLOPs: 2. Bound by
 * memory; share of peak: not measured yet. `out` may alias `in`: each value is read and written by one
 * thread. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    map_values(struct rows out, struct rows in, struct rows other, int64_t rows, int64_t columns,
               enum map_form form, float limit) {
    int64_t i = 4 * first_quad();
    if (i >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        float4 v = rows_load_f32(in, row, i, columns);
        if (other.data) {
            float4 w = rows_load_f32(other, row, i, columns);
            v = make_float4(magnitude(v.x, w.x), magnitude(v.y, w.y), magnitude(v.z, w.z),
                            magnitude(v.w, w.w));
        } else
            v = make_float4(mapped(v.x, form, limit), mapped(v.y, form, limit), mapped(v.z, form, limit),
                            mapped(v.w, form, limit));
        rows_store(out, row, i, columns, v);
    }
}

static enum status map_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t rows = tensor_rows(&op->out), columns = tensor_columns(&op->out);
    struct rows_grid g = rows_grid_of(rows, (columns + 3) / 4);
    struct rows in = rows_of(&op->in[0]), other = rows_at(NULL, 0, DTYPE_F32);
    if (op->map == MAP_MAGNITUDE)
        other = rows_at(in.data + columns * (int64_t)sizeof(float), in.step, DTYPE_F32);
    LAUNCH(map_values, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), in, other, rows, columns,
           op->map, op->scale);
    return cuda_launched(op, e);
}

static const void *const map_kernels[] = {KERNEL(map_values), NULL};

const struct cuda_operator cuda_map = {NULL, map_run, map_kernels};

/* A thread block of snake_tile has up to SNAKE_ACROSS threads along the channels; its other threads lie along
 * the rows. Each thread computes SNAKE_EACH output rows. A tile of n rows needs 2 n + SNAKE_HALO upsampled
 * samples of each channel, at most SNAKE_SAMPLES in total. */
enum {
    SNAKE_ACROSS = 32,
    SNAKE_EACH = 4,
    SNAKE_HALO = SNAKE_TAPS - 2,
    SNAKE_SAMPLES = 2 * SNAKE_EACH * ROWS_THREADS + SNAKE_HALO * SNAKE_ACROSS
};

__device__ static inline int64_t cuda_clamped(int64_t i, int64_t n) {
    return i < 0 ? 0 : i < n ? i : n - 1;
}

/* Returns sin(x)^2 with an error below 2e-7 up to |x| = 1e7. x is reduced by multiples of pi; pi is the
 * difference of two floats. Not sinf, whose reduction of large angles needs local memory. The polynomial is
 * the Taylor series up to x^13. */
__device__ static inline float sine_squared(float x) {
    float periods = rintf(x * 0.318309886f);
    float r = fmaf(-periods, 3.14159274f, x);
    r = fmaf(periods, 8.74227766e-8f, r);
    float q = r * r, s = 1.6059044e-10f;
    s = fmaf(s, q, -2.5052108e-8f);
    s = fmaf(s, q, 2.7557319e-6f);
    s = fmaf(s, q, -1.9841270e-4f);
    s = fmaf(s, q, 8.3333333e-3f);
    s = fmaf(s, q, -1.6666667e-1f);
    s = fmaf(s * q, r, r);
    return s * s;
}

/* Loads value i of a vector; PLAIN: f32, bf16 or f16 without scale. */
template <bool PLAIN> __device__ static inline float vector_value(const struct rows &vector, int64_t i) {
    return PLAIN ? value_at(vector.data, vector.dtype, i) : rows_value(vector, 0, i);
}

/* Weights of op_snake (struct snake). */
struct snake_rows {
    struct rows alpha, beta, up, down;
};

/* Kernel: snake activation of a tile of rows and channels. The block first computes in shared memory the
 * samples of the 2x upsampled wave that its rows need, then the rows. Grid: x along the channels, y along the
 * tiles of rows; shared memory: 9.6 KB; 48 registers. Bytes: 8 per value; FLOPs: 74. Bound by arithmetic;
 * share of peak: not measured yet. */
template <bool PLAIN>
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    snake_tile(struct rows out, struct rows in, struct snake_rows weights, int64_t rows, int64_t columns) {
    SMEM_ARRAY(float, samples, SNAKE_SAMPLES);
    SMEM_ARRAY(float, up, SNAKE_TAPS);
    SMEM_ARRAY(float, down, SNAKE_TAPS);
    int across = (int)blockDim.x, lane = (int)threadIdx.x, line = (int)threadIdx.y;
    int thread = line * across + lane, tile = SNAKE_EACH * (int)blockDim.y;
    if (thread < SNAKE_TAPS) up[thread] = 2 * vector_value<PLAIN>(weights.up, thread);
    if (thread < SNAKE_TAPS) down[thread] = vector_value<PLAIN>(weights.down, thread);
    int64_t channel = (int64_t)blockIdx.x * across + lane;
    bool present = channel < columns;
    float alpha = 0, amplitude = 0;
    if (present) alpha = expf(vector_value<PLAIN>(weights.alpha, channel));
    if (present) amplitude = 1.0f / (expf(vector_value<PLAIN>(weights.beta, channel)) + 1e-9f);
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.y * tile; first < rows; first += (int64_t)gridDim.y * tile) {
        for (int i = line; i < 2 * tile + SNAKE_HALO && present; i += (int)blockDim.y) {
            int64_t u = cuda_clamped(2 * first - SNAKE_HALO / 2 + i, 2 * rows);
            int64_t last = u / 2 + u % 2 + 2;
            int odd = (int)(u % 2);
            float v = 0;
#pragma unroll
            for (int k = 0; k < SNAKE_TAPS / 2; k++)
                v = fmaf(value_at(in.data + cuda_clamped(last - k, rows) * in.step, DTYPE_F32, channel),
                         up[2 * k + 1 - odd], v);
            samples[i * across + lane] = fmaf(amplitude, sine_squared(v * alpha), v);
        }
        __syncthreads();
        for (int i = line; i < tile && present && first + i < rows; i += (int)blockDim.y) {
            float sum = 0;
#pragma unroll
            for (int k = 0; k < SNAKE_TAPS; k++)
                sum = fmaf(down[k], samples[(2 * i + k) * across + lane], sum);
            reinterpret_cast<float *>(out.data + (first + i) * out.step)[channel] = sum;
        }
        __syncthreads();
    }
}

static enum status snake_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t rows = op->out.dim[0], columns = op->out.dim[1];
    unsigned across = 1;
    while (across < SNAKE_ACROSS && across < columns) across *= 2;
    unsigned lines = ROWS_THREADS / across;
    int64_t tiles = (rows + SNAKE_EACH * lines - 1) / (SNAKE_EACH * lines);
    const int64_t most = 65535;
    dim3 grid((unsigned)((columns + across - 1) / across), (unsigned)(tiles < most ? tiles : most));
    bool plain = true;
    for (int i = 1; i < OP_INPUTS; i++) plain = plain && weight_is_plain(&op->in[i]);
    struct snake_rows weights = {rows_vector(&op->in[1]), rows_vector(&op->in[2]), rows_vector(&op->in[3]),
                                 rows_vector(&op->in[4])};
    if (plain)
        LAUNCH(snake_tile<true>, grid, dim3(across, lines), 0, cuda->compute, rows_of(&op->out),
               rows_of(&op->in[0]), weights, rows, columns);
    else
        LAUNCH(snake_tile<false>, grid, dim3(across, lines), 0, cuda->compute, rows_of(&op->out),
               rows_of(&op->in[0]), weights, rows, columns);
    return cuda_launched(op, e);
}

static const void *const snake_kernels[] = {KERNEL(snake_tile<true>), KERNEL(snake_tile<false>), NULL};

const struct cuda_operator cuda_snake = {NULL, snake_run, snake_kernels};

struct sinc_filter {
    float tap[SINC_TAPS_MAX];
};

/* Kernel: one value of sinc_up. Grid: rows_grid_of, channels take the place of column groups; no shared
 * memory; 30 registers. Bytes per output value: 4 + 4 / ratio, and 4 with a base; FLOPs: 28. Bound by memory;
 * share of peak: not measured yet. `out` may alias `base`. */
static __global__ void __launch_bounds__(ROWS_THREADS, 1)
    sinc_values(struct rows out, struct rows in, struct rows base, struct sinc_filter filter, int32_t ratio,
                int64_t rows, int64_t columns) {
    int64_t c = first_quad();
    if (c >= columns) return;
    for (int64_t row = first_row(); row < rows; row += next_row()) {
        int64_t last = row / ratio + SINC_WIDTH;
        int32_t k = (int32_t)(row % ratio);
        float sum = 0;
        for (; k <= 2 * SINC_WIDTH * ratio; k += ratio, last--)
            sum = fmaf(value_at(in.data + cuda_clamped(last, rows / ratio) * in.step, DTYPE_F32, c),
                       filter.tap[k], sum);
        if (base.data) sum += value_at(base.data + row * base.step, DTYPE_F32, c);
        reinterpret_cast<float *>(out.data + row * out.step)[c] = sum;
    }
}

static enum status sinc_run(struct cuda *cuda, const struct op *op, char *workspace, struct error *e) {
    (void)workspace;
    int64_t rows = op->out.dim[0], columns = op->out.dim[1];
    struct rows_grid g = rows_grid_of(rows, columns);
    struct sinc_filter filter = {{0}};
    for (int32_t k = 0; k <= 2 * SINC_WIDTH * op->ratio; k++) filter.tap[k] = sinc_tap(op->ratio, k);
    LAUNCH(sinc_values, g.grid, g.block, 0, cuda->compute, rows_of(&op->out), rows_of(&op->in[0]),
           rows_of(&op->in[1]), filter, op->ratio, rows, columns);
    return cuda_launched(op, e);
}

static const void *const sinc_kernels[] = {KERNEL(sinc_values), NULL};

const struct cuda_operator cuda_sinc_up = {NULL, sinc_run, sinc_kernels};
