/* Numbering and naming of UNet blocks, in diffusers' and in the authors' scheme: at every published size each
 * weight has a unique name in either scheme, and a block's number determines its position. */
#include "models/models.h"
#include "engine/run/component.h"
#include "models/unet.h"
#include "test/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 4096, NAME_BYTES = 2 * BLOCK_NAME_MAX };

static char names[2][NAMES_MAX][NAME_BYTES];

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

static void published(const struct recipe *recipe, struct component *c) {
    const struct slot *slot = &recipe->slot[recipe_slot(recipe, FAMILY_DENOISER)];
    int chosen[DIMENSIONS_MAX];
    *c = (struct component){.family = slot->family, .published = slot->published};
    for (int i = 0; i < c->family->config.n_dimensions; i++)
        chosen[i] = slot_dimension(slot, &c->family->config.dimensions[i]);
    component_derive(c, chosen);
}

/* Returns the authors' checkpoint name of the weight with the diffusers name `wanted`. */
static const char *original_of(const struct component *c, const char *wanted) {
    static struct block_ref refs[FAMILY_BLOCKS_MAX];
    static char original[NAME_BYTES];
    int n = c->family->blocks.list(c, refs);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < refs[b].kind->n_weights; i++) {
            const struct weight_spec *spec = &refs[b].kind->weights[i];
            char name[NAME_BYTES];
            if (strcmp(block_weight_name(spec->names[0], refs[b].number, name), wanted) != 0) continue;
            return block_weight_name(spec->checkpoint_name, refs[b].number + refs[b].number_offset, original);
        }
    return "no such weight";
}

static void test_names_are_unique(const struct recipe *recipe) {
    static struct block_ref refs[FAMILY_BLOCKS_MAX];
    struct component c;
    int n_names = 0;
    published(recipe, &c);
    int n = c.family->blocks.list(&c, refs);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < refs[b].kind->n_weights; i++, n_names++) {
            const struct weight_spec *spec = &refs[b].kind->weights[i];
            if (!check(n_names < NAMES_MAX, "%s has more names", recipe->name)) return;
            block_weight_name(spec->names[0], refs[b].number, names[0][n_names]);
            block_weight_name(spec->checkpoint_name, refs[b].number + refs[b].number_offset,
                              names[1][n_names]);
        }
    for (int k = 0; k < 2; k++) {
        qsort(names[k], (size_t)n_names, NAME_BYTES, compare_names);
        for (int i = 1; i < n_names; i++)
            check(strcmp(names[k][i - 1], names[k][i]) != 0, "%s: two weights named '%s'", recipe->name,
                  names[k][i]);
    }
    printf("%s: %d weights in %d blocks\n", recipe->name, n_names, n);
}

/* Checkpoint names expected for diffusers names. Source: diffusers 0.42, loaders/single_file_utils.py,
 * convert_ldm_unet_checkpoint. */
static void test_checkpoint_names(void) {
    static const struct {
        const struct recipe *recipe;
        const char *name, *original;
    } pairs[] = {
        {&recipe_sd1, "down_blocks.3.resnets.1.conv1.weight", "input_blocks.11.0.in_layers.2.weight"},
        {&recipe_sd1, "down_blocks.2.downsamplers.0.conv.bias", "input_blocks.9.0.op.bias"},
        {&recipe_sd1, "up_blocks.0.upsamplers.0.conv.weight", "output_blocks.2.1.conv.weight"},
        {&recipe_sd1, "up_blocks.1.upsamplers.0.conv.weight", "output_blocks.5.2.conv.weight"},
        {&recipe_sd1, "up_blocks.3.attentions.2.proj_out.weight", "output_blocks.11.1.proj_out.weight"},
        {&recipe_sd1, "mid_block.resnets.1.time_emb_proj.weight", "middle_block.2.emb_layers.1.weight"},
        {&recipe_sdxl, "down_blocks.2.attentions.1.transformer_blocks.9.attn2.to_k.weight",
         "input_blocks.8.1.transformer_blocks.9.attn2.to_k.weight"},
        {&recipe_sdxl, "mid_block.attentions.0.transformer_blocks.7.norm3.bias",
         "middle_block.1.transformer_blocks.7.norm3.bias"},
        {&recipe_sdxl, "up_blocks.1.attentions.0.transformer_blocks.1.ff.net.2.weight",
         "output_blocks.3.1.transformer_blocks.1.ff.net.2.weight"},
        {&recipe_sdxl, "up_blocks.2.resnets.2.conv_shortcut.weight",
         "output_blocks.8.0.skip_connection.weight"},
        {&recipe_sdxl, "add_embedding.linear_2.bias", "label_emb.0.2.bias"},
        {&recipe_sdxl_refiner, "up_blocks.2.attentions.1.transformer_blocks.3.attn1.to_q.weight",
         "output_blocks.7.1.transformer_blocks.3.attn1.to_q.weight"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct component c;
        published(pairs[i].recipe, &c);
        const char *original = original_of(&c, pairs[i].name);
        check(!strcmp(original, pairs[i].original), "%s is named '%s', not '%s'", pairs[i].name, original,
              pairs[i].original);
    }
}

/* A block's number gives its position and the position gives the number; positions are consecutive. */
static void test_block_number_and_position(void) {
    for (const struct recipe *const *r = recipes; *r; r++) {
        struct component c;
        if (recipe_family(*r, FAMILY_DENOISER) != &family_unet) continue;
        published(*r, &c);
        const struct unet_settings *s = (const struct unet_settings *)c.settings;
        for (int i = 0; i < unet_n_positions(s); i++) {
            struct unet_position place = unet_position_at(s, i);
            struct unet_position same = unet_position_of(unet_ref(s, place).number);
            check(unet_index(s, place) == i && unet_index(s, same) == i && same.side == place.side,
                  "%s: block %d has the wrong position", (*r)->name, i);
            place.layer = UNET_LAYERS_MAX - 1;
            same = unet_layer_position_of(unet_layer_ref(s, place).number);
            check(unet_index(s, same) == i && same.layer == place.layer,
                  "%s: a layer of block %d has the wrong position", (*r)->name, i);
        }
    }
}

int main(void) {
    char name[NAME_BYTES];
    check(!strcmp(block_weight_name("a.%d.b.%d.c.%d", 2 * BLOCK_ROW_STEP + 20304, name), "a.2.b.3.c.4"), "%s",
          name);
    check(!strcmp(block_weight_name("a.%d.c", BLOCK_ROW_STEP + 312, name), "a.312.c"), "%s", name);
    check(!strcmp(block_weight_name("a.%d.b[1/3]?.c", 2, name), "a.2.b.c"), "%s", name);
    for (const struct recipe *const *r = recipes; *r; r++)
        if (recipe_family(*r, FAMILY_DENOISER) == &family_unet) test_names_are_unique(*r);
    test_checkpoint_names();
    test_block_number_and_position();
    return finish();
}
