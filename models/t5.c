/* T5 1.1 encoder as a text encoder (transformers: T5EncoderModel; shared code in t5_layers.h). All layers use
 * the relative position bias of the first. Padding is attended to: diffusers' pipelines pass no attention
 * mask. */
#include "models/models.h"
#include "models/t5_layers.h"

static bool t5_probe(const struct tensor_index *index) {
    bool ends =
        index_find(index, "encoder.final_layer_norm.weight") || index_find(index, "enc.output_norm.weight");
    return ends && t5_has_bias(index, 0) && !t5_has_bias(index, 1);
}

/* Refuses T5 1.0 (no gate in the feed-forward) and umT5 (a relative position bias in every layer). */
static enum status t5_refuse(const struct component *c, struct error *e) {
    bool gated = t5_is_gated(&c->index);
    if (gated && !t5_has_bias(&c->index, 1)) return OK;
    return error_set(e, UNSUPPORTED,
                     "unsupported text encoder: not T5 1.1" WHERE "%s" FOUND "%s" EXPECTED "T5 1.1 (t5xxl)",
                     c->index.sources[0].path,
                     gated ? "a relative_attention_bias in the second layer, as in umT5"
                           : "a feed-forward without a gate (wi_0), as in T5 1.0");
}

static int t5_blocks(const struct component *c, struct block_ref *refs) {
    return t5_list_blocks(c, false, refs);
}

/* Published sizes: T5 1.1 XXL. */
static const struct dimension t5_dimensions[] = {T5_DIMENSIONS(32128, 1)};

const struct family family_t5 = {
    .name = "t5",
    .kind = FAMILY_TEXT,
    .display_name = "T5 text encoder",
    .architectures = t5_architectures,
    .config_key = "model_type",
    .config_value = "t5",
    .probe = t5_probe,
    .dimensions = t5_dimensions,
    .n_dimensions = COUNT_OF(t5_dimensions),
    .settings = t5_settings,
    .n_settings = COUNT_OF(t5_settings),
    .expects = t5_expects,
    .refuse = t5_refuse,
    .configure = t5_configure,
    .derive_dims = t5_derive_dims,
    .derive = t5_derive,
    .reads = {.tokens = true},
    .config_rest = T5_CONFIG_REST("T5EncoderModel"),
    .blocks = t5_blocks,
    .ignorable = t5_ignorable,
    .lane_state_bytes = sizeof(struct t5_state),
    .state = t5_state_tensors,
    .n_state = COUNT_OF(t5_state_tensors),
    .declare = t5_declare,
    .predicted = {.kind = "layer", .alone = true, .tokens = 512, .text_rows = 512, .text_columns = 4096},
};
