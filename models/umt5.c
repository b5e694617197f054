/* umT5 encoder as a text encoder (transformers: UMT5EncoderModel): multilingual T5 1.1 with a relative
 * position bias in every layer. The encoder reads a prompt without padding and appends zero rows. diffusers
 * instead pads, masks the padding and zeroes the padding's rows. Source: transformers 5,
 * models/umt5/modeling_umt5.py. */
#include "models/models.h"
#include "models/t5_layers.h"

static bool umt5_probe(const struct tensor_index *index) {
    return t5_has_bias(index, 0) && t5_has_bias(index, 1);
}

static enum status umt5_refuse(const struct component *c, struct error *e) {
    if (t5_is_gated(&c->index) && t5_has_bias(&c->index, 1)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported text encoder: not umT5" WHERE "%s" FOUND "%s" EXPECTED "umT5 (umt5-xxl)",
                     c->index.sources[0].path,
                     t5_is_gated(&c->index) ? "no relative_attention_bias in the second layer, as in T5"
                                            : "a feed-forward without a gate (wi_0)");
}

static int umt5_blocks(const struct component *c, struct block_ref *refs) {
    return t5_list_blocks(c, true, refs);
}

/* Published sizes: umT5 XXL. */
static const struct dimension umt5_dimensions[] = {T5_DIMENSIONS(256384, 2)};

const struct family family_umt5 = {
    .name = "umt5",
    .kind = FAMILY_TEXT,
    .display_name = "umT5 text encoder",
    .architectures = t5_architectures,
    .config_key = "model_type",
    .config_value = "umt5",
    .probe = umt5_probe,
    .dimensions = umt5_dimensions,
    .n_dimensions = COUNT_OF(umt5_dimensions),
    .settings = t5_settings,
    .n_settings = COUNT_OF(t5_settings),
    .expects = t5_expects,
    .refuse = umt5_refuse,
    .configure = t5_configure,
    .derive_dims = t5_derive_dims,
    .derive = t5_derive,
    .reads = {.tokens = true},
    .config_rest = T5_CONFIG_REST("UMT5EncoderModel"),
    .blocks = umt5_blocks,
    .ignorable = t5_ignorable,
    .lane_state_bytes = sizeof(struct t5_state),
    .state = t5_state_tensors,
    .n_state = COUNT_OF(t5_state_tensors),
    .declare = t5_declare,
    .predicted = {.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 4096},
};
