/* `bench block --predict` against formulas: FLOPs of products, bytes moved by elementwise passes, kernel
 * launches and seconds. test_cuda_work.c compares the launches with those of a CUDA device. */

#include "engine/bench/predict.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "models/models.h"
#include "models/row_chunk.h"
#include "test/lib/seeded.h"

#include <string.h>

static struct sys sys;
static const struct cuda_card *card;
static struct device *cuda;

static struct predict_rows predict(const struct cuda_card *of, const struct predict_case *c) {
    struct predict_rows rows;
    struct error e = {0};
    char line[1200];
    if (predict_block(&sys, cuda, of, c, &rows, &e) != OK) fail_msg("%s", error_line(&e, line, sizeof line));
    return rows;
}

static struct predict_row sum_of(const struct predict_rows *rows, enum work_class class) {
    struct predict_row sum = {0};
    for (int i = 0; i < rows->n; i++) {
        const struct predict_row *row = &rows->rows[i];
        assert_true(row->calls > 0 && row->bytes > 0 && row->seconds > 0 && row->flops >= 0);
        if (row->class != class) continue;
        sum.calls += row->calls;
        sum.flops += row->flops;
        sum.bytes += row->bytes;
        sum.seconds += row->seconds;
    }
    return sum;
}

static void assert_near(double a, double b, double share) {
    if (!(a >= b * (1 - share) && a <= b * (1 + share))) fail_msg("%.9g, not %.9g", a, b);
}

#define FAMILY_ROW(name) &family_##name,
static const struct family *const published[] = {PUBLISHED_FAMILIES(FAMILY_ROW)};
enum { N_PUBLISHED = sizeof published / sizeof *published };

/* Expected FLOPs of one predicted block by kind of operation, in the order of published[]. */
struct formula {
    const struct family *family;
    double tokens, products, attention, convolutions;
};

static const double T = 4128, C = 3840, F = 10240; /* Z-Image: T tokens, hidden size C, feed-forward size F */
static const double FT = 4608, FC = 3072, FF = 12288;
static const double F2 = 6144;                        /* Flux.2 dev: hidden size; feed-forward 3 F2 */
static const double OT = 4096 + 256;                  /* Ovis-Image: OT tokens, 256 of them text */
static const double CR = 344, CC = 5120;              /* Chroma's approximator: CR rows, CC columns */
static const double QT = 4160, QC = 3072, QF = 12288; /* Qwen-Image: QT tokens, 64 of them text */
static const double QN = 4096;                        /* Qwen-Image-2.1: image tokens, beside 64 of text */
/* Krea 2: hidden size, width of keys, feed-forward size; as many tokens as Qwen-Image */
static const double KC = 6144, KK = 1536, KF = 16384;
static const double UT = 4096, UC = 320;
static const double WT = 21 * 30 * 52, WC = 5120, WF = 13824; /* Wan, 81 frames: WT tokens; 512 text tokens */
/* Stable Diffusion 3: ST tokens, hidden size SC, feed-forward size SF */
static const double LT = 16 * 22 * 40, LC = 4096, LF = 16384; /* LTX-2, 121 frames; 1024 text tokens */
static const double LP = 176 * 320;                           /* pixels of the last level of its VAE */
static const double ST = 4096 + 77 + 256, SC = 1536, SF = 4 * SC;
static const double AT = 4096, AC = 2048; /* Anima: image tokens, hidden size; 512 text tokens of 1024 */
/* Qwen2.5-VL's vision encoder: VT patches; VW * VW query-key pairs within windows of at most 8x8 patches */
static const double VT = 74 * 74, VW = 9 * 8 * 8 + 2 * 2;
static const double V3 = 64 * 64; /* Qwen3-VL's vision encoder: patches */
static const double PIXELS = 1024.0 * 1024, WAN22_VIDEO_PIXELS = 4.0 * 352 * 640;

TEST(flops_match_formulas) {
    const struct formula formulas[] = {
        {&family_zimage, T, 2 * T * (4 * C * C + 3 * C * F), 4 * T * T * C, 0},
        {&family_flux, FT, 2 * FT * (3 * FC * FC + FC * FF + (FC + FF) * FC), 4 * FT * FT * FC, 0},
        {&family_flux, FT, 2 * FT * (4 * FC * FC + 2 * FC * FF), 4 * FT * FT * FC, 0}, /* double block */
        {&family_flux2, FT, 2 * FT * 13 * F2 * F2, 4 * FT * FT * F2, 0},               /* single block */
        {&family_flux2, FT, 2 * FT * 13 * F2 * F2, 4 * FT * FT * F2, 0},               /* double block */
        {&family_longcat_image, FT, 2 * FT * (3 * FC * FC + FC * FF + (FC + FF) * FC), 4 * FT * FT * FC, 0},
        {&family_longcat_image, FT, 2 * FT * (4 * FC * FC + 2 * FC * FF), 4 * FT * FT * FC, 0},
        {&family_chroma, CR, 2 * CR * (10 * CC * CC + CC * FC), 0, 0},
        {&family_ovis_image, OT, 2 * OT * (3 * FC * FC + 2 * FC * FF + (FC + FF) * FC), 4 * OT * OT * FC, 0},
        {&family_ovis_image, OT, 2 * OT * (4 * FC * FC + 3 * FC * FF), 4 * OT * OT * FC, 0},
        {&family_krea2, QT, 2 * QT * (3 * KC * KC + 2 * KC * KK + 3 * KC * KF), 4 * QT * QT * KC, 0},
        {&family_unet, UT, 2 * UT * 18 * UC * UC, 4 * UT * (UT + 77) * UC, 0},
        {&family_qwen_image, QT, 2 * QT * (4 * QC * QC + 2 * QC * QF), 4 * QT * QT * QC, 0},
        {&family_qwen_image_21, QT, 2 * (QN * 13 + 64 * 13) * 4096 * 4096,
         4 * QN * (QN + 64) * 4096 + 4 * 64.0 * 65 / 2 * 4096, 0},
        {&family_wan, WT, 2 * WT * (6 * WC * WC + 2 * WC * WF), 4 * WT * (WT + 512) * WC, 0},
        {&family_ltx2, LT, 2 * (6 * LT + 2 * 1024) * LC * LC, 4 * LT * (LT + 1024) * LC, 0}, /* attention */
        {&family_ltx2, LT, 2 * LT * 2 * LC * LF, 0, 0}, /* feed-forward */
        {&family_sd3, ST, 2 * ST * (4 * SC * SC + 2 * SC * SF), 4 * ST * ST * SC, 0},
        {&family_anima, AT, 2 * AT * (6 + 8) * AC * AC, 4 * AT * (AT + 512) * AC, 0},
        {&family_qwen3, 512, 2 * 512.0 * (2 * 4096 + 2 * 1024 + 3 * 9728) * 2560, 4 * 512.0 * 513 / 2 * 4096,
         0},
        {&family_mistral, 512, 2 * 512.0 * (2 * 4096 + 2 * 1024 + 3 * 32768) * 5120,
         4 * 512.0 * 513 / 2 * 4096, 0},
        {&family_anima_adapter, 512, 2 * 512.0 * (8 + 8) * 1024 * 1024, 2 * 4 * 512.0 * 512 * 1024, 0},
        {&family_qwen25vl, 512, 2 * 512.0 * (2 * 3584 + 2 * 512 + 3 * 18944) * 3584,
         4 * 512.0 * 513 / 2 * 3584, 0},
        {&family_qwen25vl_vision, VT, 2 * VT * (4 * 1280 + 3 * 3420) * 1280, 4 * VW * VW * 1280, 0},
        {&family_qwen3vl, 512, 2 * 512.0 * (2 * 4096 + 2 * 1024 + 3 * 12288) * 4096,
         4 * 512.0 * 513 / 2 * 4096, 0},
        {&family_qwen3vl_vision, V3, 2 * V3 * (4 * 1152 + 2 * 4304) * 1152, 4 * V3 * V3 * 1152, 0},
        {&family_gemma3, 1024, 2 * 1024.0 * (2 * 4096 + 2 * 2048 + 3 * 15360) * 3840,
         4 * 1024.0 * 1025 / 2 * 4096, 0},
        {&family_ltx2_projection, 256, 2 * 256.0 * 49 * 3840 * 4096 / 8, 0, 0}, /* an eighth of its rows */
        {&family_ltx2_connectors, 1024, 2 * 1024.0 * (12 * 4096 + 32) * 4096, 4 * 1024.0 * 1024 * 4096, 0},
        {&family_clip, 77, 2 * 77.0 * (4 * 768 + 2 * 3072) * 768, 4 * 77.0 * 78 / 2 * 768, 0},
        {&family_clip_vision, 257, 2 * 257.0 * (4 * 1280 + 2 * 5120) * 1280, 4 * 257.0 * 257 * 1280, 0},
        {&family_siglip, 729, 2 * 729.0 * (4 * 1152 + 2 * 4304) * 1152, 4 * 729.0 * 729 * 1152, 0},
        {&family_redux, 729, 2 * 729.0 * (1152 + 4096) * 12288, 0, 0},
        {&family_t5, 512, 2 * 512.0 * (4 * 4096 + 3 * 10240) * 4096, 4 * 512.0 * 512 * 4096, 0},
        {&family_umt5, 512, 2 * 512.0 * (4 * 4096 + 3 * 10240) * 4096, 4 * 512.0 * 512 * 4096, 0},
        {&family_vae_kl, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 128 * 128},
        {&family_vae_kl_encoder, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 128 * 128},
        {&family_vae_flux2, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 128 * 128},
        {&family_vae_flux2_encoder, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 128 * 128},
        {&family_vae_wan, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 96 * 96},
        {&family_vae_wan_encoder, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 96 * 96},
        {&family_vae_wan22, WAN22_VIDEO_PIXELS, 0, 0, 2 * 2 * WAN22_VIDEO_PIXELS * 27 * 256 * 256},
        {&family_vae_wan22_encoder, WAN22_VIDEO_PIXELS, 0, 0, 2 * 2 * WAN22_VIDEO_PIXELS * 27 * 160 * 160},
        {&family_vae_qwen21, PIXELS / 64, 0, 0, 2 * 2 * PIXELS / 64 * 9 * 1152 * 1152},
        {&family_vae_qwen21_encoder, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 96 * 96},
        {&family_vae_ltx2, 8 * LP, 0, 0, 8 * 2 * 2 * LP * 27 * 128 * 128},
        {&family_vae_ltx2_encoder, LP, 0, 0, 2 * 2 * LP * 27 * 128 * 128},
        {&family_ltx2_audio_vae, 501 * 64, 0, 0, 2 * 2 * 501.0 * 64 * 9 * 128 * 128},
        {&family_ltx2_vocoder, 2505, 6 * 2 * 2505.0 * 3 * 768 * 768, 0, 0},
        {&family_taesd, PIXELS / 4, 0, 0, 2 * 3 * PIXELS / 4 * 9 * 64 * 64},
        {&family_taehv, PIXELS / 4, 0, 0, 2 * 4 * PIXELS / 4 * 9 * 64 * 64},
        {&family_rrdbnet, PIXELS, 0, 0, 3 * 2 * PIXELS * 9 * (32 * (64 + 96 + 128 + 160) + 64 * 192)},
        {&family_srvgg, PIXELS, 0, 0, 2 * 2 * PIXELS * 9 * 64 * 64},
        /* Three slices a frame, without those before the first frame and after the last. */
        {&family_ltx2_upsampler, 16 * 32 * 48, 0, 0, 2 * 2 * (3 * 16 - 2) * 32 * 48 * 9 * 1024.0 * 1024},
    };
    const struct formula *f = formulas;
    for (int i = 0; i < N_PUBLISHED; i++) {
        struct predict_case c = predict_case_of(published[i], 0);
        /* Blocks of control networks read the state of a denoiser, which no component has alone; their
         * products have the shapes of the denoiser's. */
        if (published[i]->kind == FAMILY_CONTROL) {
            assert_null(c.name);
            continue;
        }
        assert_non_null(c.name);
        for (int k = 0; (c = predict_case_of(published[i], k)).name; k++) {
            if (!c.sizes.last.kind) continue; /* a whole component */
            assert_true(f < formulas + sizeof formulas / sizeof *formulas);
            assert_ptr_equal(f->family, published[i]);
            struct predict_rows rows = predict(card, &c);
            assert_near(c.tokens, f->tokens, 0);
            assert_near(sum_of(&rows, WORK_PRODUCT).flops, f->products, 1e-9);
            assert_near(sum_of(&rows, WORK_ATTENTION).flops, f->attention, 1e-9);
            assert_near(sum_of(&rows, WORK_CONV).flops, f->convolutions, 1e-9);
            f++;
        }
    }
    assert_ptr_equal(f, formulas + sizeof formulas / sizeof *formulas);
}

/* Predicts a family's whole component in f16. Returns its launches and FLOPs. */
static struct predict_row predict_whole(const struct family *family, const struct cuda_card *of,
                                        double *seconds) {
    struct predict_case c = predict_case_of(family, 1);
    assert_non_null(c.name);
    c.sizes.type = DTYPE_F16;
    struct predict_rows rows = predict(of, &c);
    struct predict_row all = {0};
    *seconds = 0;
    for (enum work_class k = 0; k < N_WORK_CLASSES; k++) {
        struct predict_row sum = sum_of(&rows, k);
        all.calls += sum.calls, all.flops += k == WORK_PASS ? 0 : sum.flops, *seconds += sum.seconds;
        print_message("  %-20s %-10s %5d launches %7.3f TFLOP %7.3f GB %8.2f ms\n", c.name,
                      work_class_name(k), sum.calls, sum.flops / 1e12, sum.bytes / 1e9, 1e3 * sum.seconds);
    }
    return all;
}

/* One evaluation of SDXL at 1024 x 1024 with f16 weights, and the decoding of one image. Convolutions with
 * upsampling save 0.13 of 6.76 and 1.47 of 10.47 TFLOP. Calculated for a 4090: 82.9 and 159.7 ms. In bf16,
 * with TF32 convolutions in bands of 8,192 pixels: 117.9 and 280.8 ms (bench/LOG.md). */
TEST(whole_components) {
    const struct cuda_card *rtx4090 = cuda_card_named("4090");
    double evaluation, decode;
    assert_near(predict_whole(&family_unet, rtx4090, &evaluation).flops, 6.63e12, 0.01);
    assert_near(predict_whole(&family_vae_kl, rtx4090, &decode).flops, 9.00e12, 0.01);
    assert_true(evaluation < 0.084 && decode < 0.162);
}

/* In int8 mode all products and attention of a block are 8-bit. Limits of calculated times: 7.0 ms
 * for a Z-Image block on a 4090 (calculated: 6.0) and 38 ms on a 3060 (31.2), 160 ms for a WAN block on a
 * 4090 (138). */
TEST(int8_blocks) {
    const struct {
        const struct family *family;
        const char *card;
        double products, attention, most;
    } aims[] = {
        {&family_zimage, "4090", 2 * T * (4 * C * C + 3 * C * F), 4 * T * T * C, 7.0e-3},
        {&family_zimage, "3060", 2 * T * (4 * C * C + 3 * C * F), 4 * T * T * C, 38e-3},
        {&family_wan, "4090", 2 * WT * (6 * WC * WC + 2 * WC * WF), 4 * WT * (WT + 512) * WC, 160e-3},
    };
    for (size_t i = 0; i < sizeof aims / sizeof *aims; i++) {
        struct predict_case c = predict_case_of(aims[i].family, 0);
        c.sizes.precision = PRECISION_INT8;
        c.sizes.type = random_component_type(aims[i].family, PRECISION_INT8, N_DTYPES);
        struct predict_rows rows = predict(cuda_card_named(aims[i].card), &c);
        double seconds = 0;
        for (int k = 0; k < rows.n; k++) seconds += rows.rows[k].seconds;
        print_message("%s on a %s: %.1f ms\n", aims[i].family->name, aims[i].card, 1e3 * seconds);
        assert_near(sum_of(&rows, WORK_PRODUCT_INT8).flops, aims[i].products, 1e-9);
        assert_near(sum_of(&rows, WORK_ATTENTION_INT8).flops, aims[i].attention, 1e-3);
        assert_true(seconds <= aims[i].most);
    }
}

/* Checks the bytes that elementwise passes of a Z-Image block move at 1024x1024, and the block's launches. */
TEST(pass_bytes_and_launches) {
    enum { LAUNCHES_MOST = 60 };
    const double pass_bytes_most = 1.4e9;
    struct predict_case c = predict_case_of(&family_zimage, 0);
    struct predict_rows rows = predict(card, &c);
    struct predict_row passes = sum_of(&rows, WORK_PASS);
    int launches = passes.calls + sum_of(&rows, WORK_PRODUCT).calls + sum_of(&rows, WORK_ATTENTION).calls;
    print_message("%d launches, passes move %.2f GB\n", launches, passes.bytes / 1e9);
    assert_true(launches <= LAUNCHES_MOST);
    assert_true(passes.bytes <= pass_bytes_most);
    assert_true(passes.bytes >= 10 * T * C); /* lower bound: reading and writing the residual stream */
}

/* Checks the chunk size that a device uses for activations of `rows` rows. */
static void assert_chunk(struct device *device, int32_t rows, int32_t chunk) {
    struct context x = {.device = device};
    assert_int_equal(row_chunk(&x, rows), chunk);
}

/* Chunk sizes in rows are constants, because results depend on them. A GPU uses as few chunks as possible. */
TEST(chunk_sizes_are_constant) {
    struct device *cpu = cpu_open(&sys, 1, &(struct error){0});
    assert_non_null(cpu);
    for (int32_t rows = 1; rows < 768; rows += 59) assert_chunk(cpu, rows, rows);
    assert_chunk(cpu, 768, 384);
    assert_chunk(cpu, 1056, 528);
    assert_chunk(cpu, 4128, 516);
    assert_chunk(cpu, 4608, 512);
    cpu->destroy(cpu);
    for (int32_t rows = 1; rows < 2688; rows += 59) assert_chunk(cuda, rows, rows);
    assert_chunk(cuda, 2688, 1408);
    assert_chunk(cuda, 4128, 2176);
    assert_chunk(cuda, 4608, 1536);
    assert_chunk(cuda, 16416, 1920);
}

/* Quantised weights cost additional dequantisation passes, but no additional products. */
TEST(quantised_weights_add_passes_only) {
    struct predict_case stored = predict_case_of(&family_zimage, 0);
    struct predict_rows plain = predict(card, &stored);
    stored.sizes.type = DTYPE_Q4_K;
    struct predict_rows rows = predict(card, &stored);
    double weights = 4 * C * C + 3 * C * F,
           more = sum_of(&rows, WORK_PASS).bytes - sum_of(&plain, WORK_PASS).bytes;
    assert_near(sum_of(&rows, WORK_PRODUCT).flops, sum_of(&plain, WORK_PRODUCT).flops, 1e-12);
    /* per 256 values, dequantisation reads 144 bytes and writes 2 bytes per value */
    assert_true(more >= weights * (2 + 144.0 / 256));
}

/* Elementwise passes follow memory bandwidth; products stay below the peak, slower for few rows. */
TEST(seconds_follow_card) {
    enum { WHOLE = 4128, PARTS = 8 };
    const struct cuda_card *of;
    for (int i = 0; (of = cuda_card_at(i)); i++) {
        const struct work pass = {.class = WORK_PASS, .launches = 3, .read_bytes = 6e9, .written_bytes = 3e9};
        const struct work whole = {.class = WORK_PRODUCT,
                                   .launches = 1,
                                   .flops = 2e0 * WHOLE * 3840 * 10240,
                                   .m = WHOLE,
                                   .n = 10240,
                                   .k = 3840};
        struct work parts = whole;
        parts.launches = PARTS;
        parts.m = WHOLE / PARTS;
        double one = cuda_card_seconds(of, &whole), cut = cuda_card_seconds(of, &parts);
        assert_near(cuda_card_seconds(of, &pass), 9e9 / (of->passes * of->memory_bytes_per_second), 1e-2);
        assert_true(one > whole.flops / (of->products * of->product_flops));
        assert_true(one < 1.15 * whole.flops / (of->products * of->product_flops));
        assert_true(cut > 1.05 * one);
        /* int8 is faster on every card, but by less than the ratio of the peak rates. */
        struct work int8 = whole, attention = whole;
        int8.class = WORK_PRODUCT_INT8;
        double quantised = cuda_card_seconds(of, &int8);
        assert_true(quantised > whole.flops / (of->int8_products * of->int8_ops));
        assert_true(quantised < 1.35 * whole.flops / (of->int8_products * of->int8_ops));
        assert_true(quantised < one && quantised > one * of->product_flops / of->int8_ops);
        attention.class = WORK_ATTENTION;
        attention.k = attention.n;
        double rounded = cuda_card_seconds(of, &attention);
        attention.class = WORK_ATTENTION_INT8;
        assert_true(cuda_card_seconds(of, &attention) < 0.95 * rounded);
        struct op_rates rates = cuda_card_rates(of);
        assert_near(attention.flops / rates.per_second[CLASS_ATTENTION_INT8],
                    cuda_card_seconds(of, &attention), 1e-2);
        assert_near(attention.flops / rates.per_second[CLASS_ATTENTION], rounded, 1e-2);
    }
}

/* The rates that cards.c computes from multiprocessors and clock equal those of NVIDIA's white papers: bf16
 * with f32 sums, f16 with f16 sums, and int8, in 10^12 operations per second. */
TEST(rates_match_white_papers) {
    static const struct {
        const char *name;
        double products, half_sums, int8;
    } published_rates[] = {
        {"3070", 40.6, 81.3, 162.6},   {"3080", 59.5, 119, 238},      {"3090", 71, 142, 284},
        {"4080", 97.5, 194.9, 389.9},  {"4090", 165.2, 330.3, 660.6}, {"5090", 209.5, 419, 838},
        {"5080", 112.6, 225.1, 450.2}, {"a100", 312, 312, 624},       {"h100", 989.4, 989.4, 1978.9},
        {"l4", 121, 121, 242},         {"l40s", 366, 366, 733},
    };
    for (size_t i = 0; i < sizeof published_rates / sizeof *published_rates; i++) {
        const struct cuda_card *of = cuda_card_named(published_rates[i].name);
        assert_non_null(of);
        assert_near(of->product_flops, 1e12 * published_rates[i].products, 3e-3);
        assert_near(of->half_sum_flops, 1e12 * published_rates[i].half_sums, 3e-3);
        assert_near(of->int8_ops, 1e12 * published_rates[i].int8, 3e-3);
    }
}

TEST(cards_are_found_by_name) {
    const struct cuda_card *of;
    for (int i = 0; (of = cuda_card_at(i)); i++) {
        assert_ptr_equal(cuda_card_named(of->name), of);
        const double shares[] = {of->products, of->attention,     of->convolutions,
                                 of->passes,   of->int8_products, of->int8_attention};
        for (size_t k = 0; k < sizeof shares / sizeof *shares; k++)
            assert_true(shares[k] > 0.1 && shares[k] < 1);
    }
    assert_ptr_equal(cuda_card_named("H100"), cuda_card_named("h100"));
    assert_null(cuda_card_named("5"));
}

/* Attention pads heads of 40 columns to 48, and the prediction counts the padding. */
TEST(padded_heads_are_counted) {
    struct predict_row row = {0};
    struct predict_case c = predict_case_of(&family_unet, 0);
    struct predict_rows rows = predict(card, &c);
    for (int i = 0; i < rows.n; i++)
        if (rows.rows[i].class == WORK_ATTENTION) row = rows.rows[i];
    assert_near(row.seconds, row.flops * 48 / 40 / (card->attention * card->product_flops), 0.05);
}

static int set_up(void **state) {
    sys_init_machine(&sys);
    card = cuda_card_at(0);
    cuda = cuda_plan_device(&sys, card, &(struct error){0});
    return !cuda;
}

static int tear_down(void **state) {
    cuda->destroy(cuda);
    struct memory_use use = sys_memory_use(&sys);
    for (int i = 0; i < N_MEMORY_LINES; i++)
        if (use.live_bytes[i]) return 1;
    return 0;
}

int main(void) {
    return run_all_tests(set_up, tear_down);
}
