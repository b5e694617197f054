#include "test/lib/gates.h"

#include "test/lib/fault_sys.h"

/* Members of a request: a short prompt and negative prompt, and a memory budget that is never exceeded. */
#define REQUEST(...) REQUEST_OF_WIDTH(48, __VA_ARGS__)
#define REQUEST_OF_WIDTH(width_, ...)                                                                        \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_request), .prompt = "a red fox in the snow",                     \
        .negative_prompt = "blurry, low contrast", .width = width_, .height = 32, .seed = 42,                \
        .max_ram_bytes = (int64_t)1 << 36, __VA_ARGS__                                                       \
    }
#define HARBOUR                                                                                              \
    "an old harbour at dawn, fishing boats, gulls over the mole, mist on the water, oil on canvas, 1890, "   \
    "\xe2\x98\x83"

#define SHAPE(width_, height_, batch_, cfg_scale_, prompt_, negative_prompt_)                                \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_request), .prompt = prompt_,                                     \
        .negative_prompt = negative_prompt_, .width = width_, .height = height_, .steps = 2,                 \
        .batch = batch_, .cfg_scale = cfg_scale_, .seed = 42, .max_ram_bytes = (int64_t)1 << 36              \
    }

static const struct sluice_request shapes[] = {
    SHAPE(16, 64, 1, 1, "fox", NULL),   SHAPE(32, 80, 2, 3.5, "fox", HARBOUR),
    SHAPE(48, 48, 2, 1, "", NULL),      SHAPE(80, 16, 1, 3.5, HARBOUR, ""),
    SHAPE(64, 32, 3, 1, HARBOUR, NULL), SHAPE(16, 48, 3, 3.5, "", "fox"),
};

#define ZIMAGE                                                                                               \
    .request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 3.5),                                            \
    .other = SHAPE(32, 80, 1, 1, HARBOUR, "blurry, low contrast"), .shapes = shapes,                         \
    .n_shapes = sizeof shapes / sizeof *shapes

const struct gate gate_zimage = {ZIMAGE, .threads = 2, .always = true, .in_bf16 = true,
                                 .cuda = CUDA_AND_THEN_LOST};
const struct gate gate_zimage_wide = {
    ZIMAGE, .threads = 1, .wide = true, .no_decode = true, .in_bf16 = true, .cuda = CUDA_EVERYTHING};

enum { SIDE_MOST = 128 };
static uint8_t noise_rgb[SIDE_MOST * SIDE_MOST * 3];
#define PICTURE(width_, height_, offset, name_)                                                              \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_picture), .width = width_, .height = height_,                    \
        .rgb = noise_rgb + (offset), .name = name_                                                           \
    }
static const struct sluice_picture picture = PICTURE(48, 32, 0, "picture"),
                                   mask = PICTURE(48, 32, 3 * 48 * 32, "mask"),
                                   end_picture = PICTURE(48, 32, 555, "end picture"),
                                   wide_picture = PICTURE(96, 32, 0, "wide picture"),
                                   tall_picture = PICTURE(16, 80, 999, "tall picture");
static const struct sluice_picture *const references[] = {&wide_picture, &tall_picture};

/* Control images of a request. */
#define CONTROL(network_, image_, strength_, mode_, start_, end_)                                            \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_control), .network = network_, .image = image_,                  \
        .strength = strength_, .mode = mode_, .start = start_, .end = end_                                   \
    }
#define CONTROLLED(list, n) .controls = list, .n_controls = n

void gates_begin(void) {
    atomic_ullong random = 5;
    for (size_t i = 0; i < sizeof noise_rgb; i++) noise_rgb[i] = (uint8_t)random_next_atomic(&random);
}

#define DRAWN                .steps = 2, .batch = 2, .cfg_scale = 2.5, .guidance = 3.5
#define FROM_PICTURE(batch_) .steps = 4, .batch = batch_, .init_image = &picture, .strength = 0.6
#define SCHNELL(batch_)      FROM_PICTURE(batch_), .cfg_scale = 2.5
#define FILLED(batch_)       FROM_PICTURE(batch_), .cfg_scale = 1, .guidance = 30, .mask = &mask
#define REFERRING            DRAWN, .references = references, .n_references = 2

/* Steps begin with 1 - sigma of 0, 0.05, 0.14 and 0.33: the last two have no guidance. */
const struct gate gate_zimage_base = {
    .request = REQUEST(.steps = 4, .batch = 3, .cfg_scale = 2.5, .cfg_norm = 0.8, .cfg_until = 0.1),
    .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 2.5, .cfg_until = 0.1, .mask = &mask),
    .threads = 2,
    .always = true};

const struct gate gate_flux = {.request = REQUEST(DRAWN),
                               .other = REQUEST(SCHNELL(2), .guidance = 3.5, .mask = &mask),
                               .threads = 1,
                               .always = true};
const struct gate gate_flux_schnell = {
    .request = REQUEST(SCHNELL(2)), .other = REQUEST(SCHNELL(1)), .threads = 2, .always = true};
const struct gate gate_flux_kontext = {.request = REQUEST(REFERRING),
                                       .other = REQUEST(DRAWN),
                                       .threads = 2,
                                       .always = true,
                                       .in_bf16 = true,
                                       .cuda = CUDA_BUDGETS_AND_PLANS};
const struct gate gate_flux_fill = {
    .request = REQUEST(FILLED(2)), .other = REQUEST(FILLED(1)), .threads = 1, .always = true};
/* Two Redux images with a prompt; the negative prompt has no image rows. Then one image without a prompt. */
const struct gate gate_flux_redux = {
    .request = REQUEST(.steps = 1, .batch = 2, .guidance = 3.5, .cfg_scale = 2.5, .redux_images = references,
                       .n_redux_images = 2, .redux_strength = 0.5),
    .other = REQUEST(SCHNELL(1), .guidance = 3.5, .redux_images = references, .n_redux_images = 1),
    .threads = 1,
    .always = true,
    .in_bf16 = true};
/* Flux.1 Canny, whose denoiser reads the control image; control networks: several images of one network, two
 * networks, windows, lanes that add another lane's residuals, groups of lanes. */
static const struct sluice_control denoisers_image[] = {CONTROL(-1, &wide_picture, 1, -1, 0, 1)};
static const struct sluice_control flux_networks[] = {CONTROL(0, &wide_picture, 0.8, -1, 0, 1),
                                                      CONTROL(1, &tall_picture, 1, -1, 0.5, 1)};
static const struct sluice_control flux_kinds[] = {CONTROL(0, &wide_picture, 0.8, 3, 0, 1),
                                                   CONTROL(1, &tall_picture, 1, -1, 0, 0.5),
                                                   CONTROL(0, &end_picture, 1, 1, 0, 1)};
const struct gate gate_flux_canny = {
    .request =
        REQUEST(.steps = 2, .batch = 2, .cfg_scale = 1, .guidance = 30, CONTROLLED(denoisers_image, 1)),
    .other = REQUEST(SCHNELL(1), .guidance = 10, CONTROLLED(denoisers_image, 1)),
    .threads = 1,
    .always = true};
const struct gate gate_control_flux = {
    .request = REQUEST(DRAWN, CONTROLLED(flux_networks, 2)),
    .other = REQUEST(SCHNELL(1), .guidance = 3.5, .mask = &mask, CONTROLLED(flux_networks, 1)),
    .threads = 2,
    .always = true,
    .in_bf16 = true,
    .cuda = CUDA_BUDGETS_AND_PLANS,
    .small = true};
const struct gate gate_control_flux_union = {
    .request = REQUEST(SCHNELL(2), .guidance = 3.5, CONTROLLED(flux_kinds, 3)),
    .other = REQUEST(DRAWN, CONTROLLED(flux_kinds, 1)),
    .threads = 1,
    .always = true};
const struct gate gate_control_flux_xlabs = {
    .request = REQUEST(DRAWN, CONTROLLED(flux_networks, 1)),
    .other = REQUEST(SCHNELL(1), .guidance = 3.5, CONTROLLED(flux_networks, 1)),
    .threads = 1,
    .always = true};
/* Flux.2 refuses references with a side below 64 pixels. */
static const struct sluice_picture reference_wide = PICTURE(99, 64, 0, "wide reference"),
                                   reference_tall = PICTURE(64, 80, 999, "tall reference");
static const struct sluice_picture *const large_references[] = {&reference_wide, &reference_tall};
const struct gate gate_flux2_dev = {.request =
                                        REQUEST(.steps = 2, .batch = 2, .cfg_scale = 1, .guidance = 3.5,
                                                .references = large_references, .n_references = 1),
                                    .other = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5, .guidance = 2.5),
                                    .threads = 1,
                                    .always = true};
const struct gate gate_flux2_klein = {.request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 1,
                                                         .references = large_references, .n_references = 2),
                                      .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1, .mask = &mask),
                                      .threads = 2,
                                      .always = true,
                                      .in_bf16 = true,
                                      .cuda = CUDA_BUDGETS_AND_PLANS};
const struct gate gate_flux2_klein_base = {.request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5),
                                           .other = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5),
                                           .threads = 1,
                                           .always = true};
const struct gate gate_flux_wide = {
    .request = REQUEST(SCHNELL(2), .guidance = 3.5), .other = REQUEST(DRAWN), .threads = 2, .wide = true};

#define GUIDED(batch_) .steps = 2, .batch = batch_, .cfg_scale = 2.5
#define EDITING(n)     .references = references, .n_references = n

const struct gate gate_longcat_image = {.request = REQUEST(GUIDED(2)),
                                        .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                        .threads = 2,
                                        .always = true,
                                        .in_bf16 = true};
const struct gate gate_longcat_image_edit = {.request = REQUEST(GUIDED(2), EDITING(1)),
                                             .other =
                                                 REQUEST(.steps = 2, .batch = 1, .cfg_scale = 1, EDITING(1)),
                                             .threads = 1,
                                             .always = true};

const struct gate gate_chroma = {.request = REQUEST(GUIDED(2)),
                                 .other = REQUEST(FROM_PICTURE(2), .cfg_scale = 1),
                                 .threads = 2,
                                 .always = true};
const struct gate gate_ovis_image = {.request = REQUEST(GUIDED(2)),
                                     .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                     .threads = 2,
                                     .always = true,
                                     .in_bf16 = true};

const struct gate gate_krea2 = {.request = REQUEST(GUIDED(2)),
                                .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1, .mask = &mask),
                                .threads = 2,
                                .always = true,
                                .in_bf16 = true,
                                .cuda = CUDA_BUDGETS_AND_PLANS};
const struct gate gate_krea2_turbo = {.request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 1),
                                      .other = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5),
                                      .threads = 1};

const struct gate gate_qwen_image = {.request = REQUEST(GUIDED(2)),
                                     .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                     .threads = 2,
                                     .always = true,
                                     .in_bf16 = true};
const struct gate gate_qwen_edit = {.request = REQUEST(GUIDED(2), EDITING(1)),
                                    .other = REQUEST(.steps = 2, .batch = 1, .cfg_scale = 1, EDITING(1)),
                                    .threads = 1,
                                    .always = true};
const struct gate gate_qwen_edit_plus = {.request = REQUEST(GUIDED(2), EDITING(2)),
                                         .other = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 1, EDITING(1)),
                                         .threads = 2,
                                         .always = true,
                                         .cuda = CUDA_BUDGETS_AND_PLANS};

const struct gate gate_qwen_image_21 = {.request = REQUEST_OF_WIDTH(64, GUIDED(2)),
                                        .other = REQUEST_OF_WIDTH(64, FROM_PICTURE(1), .cfg_scale = 1),
                                        .threads = 2,
                                        .always = true,
                                        .in_bf16 = true,
                                        .cuda = CUDA_BUDGETS_AND_PLANS,
                                        .small = true};
const struct gate gate_qwen_image_21_ref = {
    .request = REQUEST_OF_WIDTH(64, GUIDED(2), EDITING(2)),
    .other = REQUEST_OF_WIDTH(64, .steps = 2, .batch = 2, .cfg_scale = 1, EDITING(1)),
    .threads = 2};

/* An inpainting request with much state: PNDM keeps four history tensors per image, and the mask adds two
 * tensors on the host. */
#define MASKED(batch_) FROM_PICTURE(batch_), .cfg_scale = 1, .mask = &mask

const struct gate gate_sd1 = {.request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5),
                              .other = REQUEST(MASKED(2)),
                              .threads = 2,
                              .always = true,
                              .in_bf16 = true,
                              .cuda = CUDA_BUDGETS_AND_PLANS};
/* A second pass over the decoded images; `other` enlarges the latents. */
#define SECOND_PASS(upscaler) .hires_scale = 1.5, .hires_strength = 0.6, .hires_upscaler = upscaler
const struct gate gate_hires = {
    .request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5, SECOND_PASS("lanczos")),
    .other = REQUEST(.steps = 2, .batch = 1, .cfg_scale = 2.5, SECOND_PASS("latent")),
    .threads = 2,
    .always = true};
const struct gate gate_sd2 = {.request = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5),
                              .other = REQUEST(.steps = 2, .batch = 1, .cfg_scale = 1),
                              .threads = 1};
const struct gate gate_sdxl = {.request = REQUEST(MASKED(2)),
                               .other = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5),
                               .threads = 1,
                               .always = true};
/* Two networks, one with two images; a window; guess mode in the other request. */
static const struct sluice_control two_networks[] = {CONTROL(0, &wide_picture, 0.8, -1, 0, 1),
                                                     CONTROL(1, &tall_picture, 1, -1, 0.5, 1),
                                                     CONTROL(0, &end_picture, 1, -1, 0, 0.5)};
static const struct sluice_control two_images[] = {CONTROL(0, &wide_picture, 0.8, 3, 0, 1),
                                                   CONTROL(0, &tall_picture, 1.2, 1, 0, 1)};
const struct gate gate_control_sd1 = {
    .request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5, CONTROLLED(two_networks, 3)),
    .other = REQUEST(MASKED(2), .guess_mode = true, CONTROLLED(two_networks, 1)),
    .threads = 2,
    .always = true,
    .in_bf16 = true,
    .cuda = CUDA_BUDGETS_AND_PLANS,
    .small = true};
const struct gate gate_control_union = {
    .request = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5, CONTROLLED(two_images, 2)),
    .other = REQUEST(.steps = 2, .batch = 1, .cfg_scale = 1, CONTROLLED(two_images, 1)),
    .threads = 1,
    .always = true,
    .cuda = CUDA_BUDGETS_AND_PLANS,
    .small = true};
/* Z-Image 1.0 and 2.1 with inpainting, 2.0 with a window, and a second image of 2.1; guidance ends early. */
static const struct sluice_control zimage_networks[] = {CONTROL(0, &wide_picture, 0.8, -1, 0, 1),
                                                        {.struct_size = sizeof(struct sluice_control),
                                                         .network = 1,
                                                         .image = &tall_picture,
                                                         .strength = 0.7,
                                                         .end = 1,
                                                         .mode = -1,
                                                         .mask = &mask,
                                                         .inpaint = &end_picture},
                                                        CONTROL(2, &end_picture, 0.9, -1, 0.5, 1),
                                                        CONTROL(1, &wide_picture, 0.5, -1, 0, 0.5)};
const struct gate gate_control_zimage = {.request = REQUEST(.steps = 2, .batch = 2, .cfg_scale = 2.5,
                                                            .cfg_until = 0.1, CONTROLLED(zimage_networks, 4)),
                                         .other = REQUEST(MASKED(2), CONTROLLED(zimage_networks, 1)),
                                         .threads = 2,
                                         .always = true,
                                         .in_bf16 = true,
                                         .cuda = CUDA_BUDGETS_AND_PLANS,
                                         .small = true};
const struct gate gate_inpaint = {
    .request = REQUEST(MASKED(2)), .other = REQUEST(MASKED(1)), .threads = 1, .always = true};
const struct gate gate_refiner = {.request = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5),
                                  .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                  .threads = 2};

/* With 5 frames the VAE encoder and decoder each work in two chunks. */
#define VIDEO(frames_, batch_, cfg_scale_)                                                                   \
    .steps = 2, .frames = frames_, .batch = batch_, .cfg_scale = cfg_scale_
#define FROM_FRAME     .init_image = &picture, .strength = 1
#define BETWEEN_FRAMES FROM_FRAME, .end_image = &end_picture
/* A request for models whose width and height must be multiples of 32. */
#define WIDER(...)                                                                                           \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_request), .prompt = "a red fox in the snow",                     \
        .negative_prompt = "blurry, low contrast", .width = 64, .height = 32, .seed = 42,                    \
        .max_ram_bytes = (int64_t)1 << 36, __VA_ARGS__                                                       \
    }

const struct gate gate_wan21 = {.request = REQUEST(VIDEO(5, 2, 2.5)),
                                .other = REQUEST(VIDEO(1, 1, 1)),
                                .threads = 2,
                                .always = true,
                                .in_bf16 = true};
const struct gate gate_wan_i2v = {.request = REQUEST(VIDEO(5, 2, 2.5), FROM_FRAME),
                                  .other = REQUEST(VIDEO(9, 1, 1), FROM_FRAME),
                                  .threads = 2,
                                  .always = true,
                                  .cuda = CUDA_BUDGETS_AND_PLANS,
                                  .small = true};
const struct gate gate_wan_flf2v = {.request = REQUEST(VIDEO(5, 1, 2.5), BETWEEN_FRAMES),
                                    .other = REQUEST(VIDEO(5, 2, 1), BETWEEN_FRAMES),
                                    .threads = 1};
const struct gate gate_wan_ti2v = {.request = WIDER(VIDEO(5, 2, 2.5), FROM_FRAME),
                                   .other = WIDER(VIDEO(5, 1, 1)),
                                   .threads = 1,
                                   .always = true};
/* The two steps use different transformers: high noise, then low noise. */
const struct gate gate_wan22 = {.request = REQUEST(VIDEO(5, 2, 2.5), .cfg_scale_low = 4),
                                .other = REQUEST(VIDEO(5, 1, 2.5), .cfg_scale_low = 1),
                                .threads = 1,
                                .always = true};
const struct gate gate_wan22_i2v = {.request = REQUEST(VIDEO(5, 1, 2.5), BETWEEN_FRAMES),
                                    .other = REQUEST(VIDEO(5, 1, 1), FROM_FRAME),
                                    .threads = 2};

/* Control input of VACE: a control video, and two reference images. */
static const struct sluice_picture *const leading[] = {&picture, &end_picture, &picture, &picture,
                                                       &end_picture};
const struct gate gate_wan_vace = {
    .request = REQUEST(VIDEO(5, 1, 2.5), .control = leading, .n_control = 5, .mask = &mask, EDITING(1)),
    .other = REQUEST(VIDEO(5, 2, 1), EDITING(2)),
    .threads = 1};

/* LTX-2: every kind of guidance, of the video and of its sound. The VAE of 2.0 pads by reflection and
 * therefore needs two latent rows. */
static const int perturbed_block[] = {1};
#define GUIDED_SOUND                                                                                         \
    .audio_cfg_scale = 4, .stg_scale = 0.8, .stg_blocks = perturbed_block, .n_stg_blocks = 1,                \
    .modality_scale = 2, .cfg_rescale = 0.7
#define TWO_ROWS(...)                                                                                        \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_request), .prompt = "a red fox in the snow",                     \
        .negative_prompt = "blurry, low contrast", .width = 64, .height = 64, .seed = 42,                    \
        .max_ram_bytes = (int64_t)1 << 36, __VA_ARGS__                                                       \
    }

const struct gate gate_ltx2 = {.request = TWO_ROWS(VIDEO(9, 1, 2.5), GUIDED_SOUND),
                               .other = TWO_ROWS(VIDEO(9, 2, 1), .fps = 50),
                               .threads = 1,
                               .always = true};
const struct gate gate_ltx23 = {.request = WIDER(VIDEO(9, 2, 2.5), FROM_FRAME, GUIDED_SOUND),
                                .other = WIDER(VIDEO(17, 1, 1)),
                                .threads = 2};

/* Skip-layer guidance in the second of three evaluations only. */
static const int middle_layer[] = {1};
#define SKIPPED(batch_)                                                                                      \
    .steps = 3, .batch = batch_, .cfg_scale = 2.5, .slg_layers = middle_layer, .n_slg_layers = 1,            \
    .slg_scale = 2.8, .slg_start = 0.01, .slg_end = 0.5

const struct gate gate_sd3_medium = {.request = REQUEST(GUIDED(2)),
                                     .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                     .threads = 2,
                                     .always = true,
                                     .in_bf16 = true};
const struct gate gate_sd35_medium = {
    .request = REQUEST(SKIPPED(2)), .other = REQUEST(GUIDED(1)), .threads = 1, .always = true};
const struct gate gate_sd35_large = {.request = REQUEST(FROM_PICTURE(2), .cfg_scale = 2.5, .mask = &mask),
                                     .other = REQUEST(GUIDED(2)),
                                     .threads = 2,
                                     .always = true};

const struct gate gate_anima = {.request = REQUEST(GUIDED(2)),
                                .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1),
                                .threads = 2,
                                .always = true,
                                .in_bf16 = true};

static const struct sluice_picture small_wide = {.struct_size = sizeof small_wide,
                                                 .width = 8,
                                                 .height = 4,
                                                 .rgb = noise_rgb + 77,
                                                 .name = "small wide picture"},
                                   small_tall = {.struct_size = sizeof small_tall,
                                                 .width = 10,
                                                 .height = 14,
                                                 .rgb = noise_rgb + 777,
                                                 .name = "small tall picture"};
static const struct sluice_picture *const vision_images[] = {&small_wide, &small_tall};

/* Skip-layer guidance in the last step of the first denoiser and the first step of the second. */
static const int synthetic_skip_layers[] = {3, 1};
#define SKIPPING                                                                                             \
    .slg_layers = synthetic_skip_layers, .n_slg_layers = 2, .slg_scale = 1.5, .slg_start = 0.01,             \
    .slg_end = 0.7

/* A video request to the synthetic pipeline with n_images reference images; more initialisers may follow. */
#define SYNTHETIC(width_, height_, frames_, steps_, batch_, cfg_scale_, n_images, ...)                       \
    {                                                                                                        \
        .struct_size = sizeof(struct sluice_request), .prompt = "a red fox in the snow",                     \
        .negative_prompt = "blurry", .width = width_, .height = height_, .frames = frames_, .steps = steps_, \
        .batch = batch_, .cfg_scale = cfg_scale_, .references = vision_images, .n_references = n_images,     \
        .seed = 42, .max_ram_bytes = (int64_t)1 << 36, __VA_ARGS__                                           \
    }
static const struct sluice_request synthetic_shapes[] = {
    SYNTHETIC(4, 16, 7, 1, 3, 3.5, 2, ), SYNTHETIC(14, 6, 1, 3, 2, 1, 0, ), SYNTHETIC(6, 6, 5, 2, 1, 2, 1, )};
/* Two control images, in different ranges of steps: for an inpainting network, for one network, for two. */
static const struct sluice_control control_inpainting[] = {CONTROL(0, &wide_picture, 0.7, -1, 0, 1),
                                                           {.struct_size = sizeof(struct sluice_control),
                                                            .network = 1,
                                                            .mask = &mask,
                                                            .inpaint = &picture,
                                                            .strength = 1,
                                                            .end = 0.5,
                                                            .mode = -1}};
static const struct sluice_control control_twice[] = {CONTROL(0, &wide_picture, 0.7, -1, 0, 0.5),
                                                      CONTROL(0, &tall_picture, 0.4, -1, 0, 1)};
static const struct sluice_control control_apart[] = {CONTROL(0, &tall_picture, 0.6, -1, 0, 0.5),
                                                      CONTROL(1, &picture, 0.3, -1, 0.5, 1)};
const struct gate gate_control_qwen = {
    .request = REQUEST(GUIDED(2), CONTROLLED(control_inpainting, 2)),
    .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1, CONTROLLED(control_twice, 2)),
    .threads = 2,
    .always = true,
    .in_bf16 = true};
const struct gate gate_control_sd3 = {
    .request = REQUEST(GUIDED(2), CONTROLLED(control_twice, 2)),
    .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1, CONTROLLED(control_apart, 2)),
    .threads = 2};
const struct gate gate_control_sd35 = {
    .request = REQUEST(GUIDED(2), CONTROLLED(control_apart, 2)),
    .other = REQUEST(FROM_PICTURE(1), .cfg_scale = 1, CONTROLLED(control_twice, 2)),
    .threads = 1,
    .always = true};

const struct gate gate_synthetic = {.request = SYNTHETIC(12, 8, 9, 4, 2, 2.5, 2, SKIPPING),
                                    .other = SYNTHETIC(10, 10, 5, 2, 1, 1, 1, ),
                                    .shapes = synthetic_shapes,
                                    .n_shapes = sizeof synthetic_shapes / sizeof *synthetic_shapes,
                                    .threads = 1,
                                    .always = true,
                                    .cuda = CUDA_BUDGETS_AND_PLANS,
                                    .small = true};
