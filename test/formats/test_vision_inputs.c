/* Input images of editing models (Qwen-Image-Edit) against diffusers' pipelines (test/golden/qwen): the size
 * for the vision encoder, its pixels, and the positions of the image tokens in the prompt. Also image tokens
 * typed into a prompt, and unsuitable tokenizers. */
#include "engine/open/prompt.h"
#include "engine/pictures/pictures.h"
#include "loaders/loaders.h"
#include "test/lib/check.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sys machine;
static struct tensor_index truth;

/* Reads a fixture tensor, freed by the caller; exits if the fixture lacks the tensor. */
static void *fixture_tensor(int index, const char *name, const struct index_entry **entry) {
    struct error e = {0};
    char full[64];
    snprintf(full, sizeof full, "case%d.%s", index, name);
    *entry = index_find(&truth, full);
    void *data = *entry ? malloc((*entry)->bytes) : NULL;
    if (!check(data && source_read(&truth.sources[(*entry)->source], data, (*entry)->bytes, (*entry)->offset,
                                   &e) == OK,
               "%s: %s", full, e.what))
        exit(finish());
    return data;
}

static const struct text_recipe *text_of(const struct recipe *recipe) {
    return &recipe->slot[recipe_slot(recipe, FAMILY_TEXT)].text;
}

/* Resizes an image to the pipeline's area, then to the vision grid; expects the reference's pixels bit for
 * bit. Returns the number of vision tokens. */
static int32_t check_pixels(int index, int number, int64_t area, int multiple) {
    char name[32];
    const struct index_entry *original, *read;
    struct error e = {0};
    snprintf(name, sizeof name, "picture.reference_%03d", number);
    uint8_t *rgb = fixture_tensor(index, name, &original);
    snprintf(name, sizeof name, "pixels.reference_%03d", number);
    uint8_t *wanted = fixture_tensor(index, name, &read);
    struct sluice_picture picture = {.width = original->dim[1], .height = original->dim[0], .rgb = rgb};
    struct picture_size size = {read->dim[1], read->dim[0]};
    struct picture_size shown =
        picture_area_size((struct picture_size){picture.width, picture.height}, area, multiple);
    uint8_t *between = malloc((size_t)(3 * shown.width * shown.height)), *made = malloc(read->bytes);
    if (!between || !made) abort();
    picture_resize(&machine, &picture, PILLOW_LANCZOS, shown, between, &e);
    picture = (struct sluice_picture){.width = shown.width, .height = shown.height, .rgb = between};
    picture_resize(&machine, &picture, TORCH_BICUBIC, size, made, &e);
    int differing = 0;
    for (uint64_t i = 0; i < read->bytes; i++) differing += made[i] != wanted[i];
    check(e.code == OK && !differing, "case %d, %s: %d of %d bytes differ", index, name, differing,
          (int)read->bytes);
    free(rgb);
    free(wanted);
    free(between);
    free(made);
    return size.width / 28 * (size.height / 28);
}

static void check_ids(const struct text_recipe *recipe, const struct tokenizer *tokenizer, int index,
                      const char *lane, const json_t *text, const int32_t *pictures, int n) {
    char name[16];
    const struct index_entry *entry;
    struct prompt_tokens tokens;
    struct error e = {0};
    snprintf(name, sizeof name, "ids.%s", lane);
    int32_t *ids = fixture_tensor(index, name, &entry);
    const char *prompt = json_string_value(text);
    prompt_encode_pictured(&machine, recipe, tokenizer, prompt, strlen(prompt), pictures, n, &tokens, &e);
    check(e.code == OK && tokens.n_ids == entry->dim[0] && !memcmp(tokens.ids, ids, entry->bytes),
          "case %d, %s: %d tokens instead of %d %s", index, lane, tokens.n_ids, entry->dim[0], e.what);
    check(tokens.drop_idx == 64, "%d template tokens are dropped instead of 64", tokens.drop_idx);
    int32_t pad = tokenizer_special(tokenizer, recipe->image_prompt.pad);
    for (int i = 0; i < n && e.code == OK; i++) {
        const int32_t *at = tokens.ids + tokens.picture[i];
        check(at[-1] != pad && at[pictures[i]] != pad, "case %d, image %d: wrong place of the image tokens",
              index, i);
        for (int k = 0; k < pictures[i]; k++)
            check(at[k] == pad, "case %d, image %d: too few image tokens", index, i);
    }
    prompt_destroy(&machine, &tokens);
    free(ids);
}

/* area: pixels of an image for the vision encoder (the fixture's value: test/golden/qwen/specs.py). */
static void test_inputs_equal_pipeline(const char *fixture, const struct recipe *recipe, int64_t area) {
    char path[128];
    struct error e = {0};
    struct tokenizer *tokenizer = NULL;
    snprintf(path, sizeof path, "test/golden/%s/reference.safetensors", fixture);
    check(safetensors_open(&machine, path, &truth, &e) == OK, "%s", e.what);
    snprintf(path, sizeof path, "test/golden/%s/model/tokenizer", fixture);
    check(tokenizer_open(&machine, path, &tokenizer, &e) == OK, "%s", e.what);
    check(prompt_check(text_of(recipe), tokenizer, &e) == OK, "%s", e.what);
    snprintf(path, sizeof path, "test/golden/%s/expect.json", fixture);
    json_t *all = json_load_file(path, 0, NULL), *one;
    size_t index;
    int n_pictures = 0;
    json_array_foreach(json_object_get(all, "cases"), index, one) {
        int32_t pictures[LANE_REFERENCES_MAX];
        int n = (int)json_array_size(json_object_get(one, "references"));
        for (int i = 0; i < n; i++)
            pictures[i] = check_pixels((int)index, i, area, recipe->images.areas.multiple);
        if (!n) continue;
        n_pictures += n;
        check_ids(text_of(recipe), tokenizer, (int)index, "cond", json_object_get(one, "prompt"), pictures,
                  n);
        if (json_real_value(json_object_get(one, "cfg_scale")) != 1)
            check_ids(text_of(recipe), tokenizer, (int)index, "uncond",
                      json_object_get(one, "negative_prompt"), pictures, n);
    }
    check(n_pictures >= 3, "%s: only %d images", fixture, n_pictures);
    json_decref(all);
    tokenizer_close(tokenizer);
    index_destroy(&truth);
}

/* Image tokens typed into a prompt come after the tokens of the images and stand for no image. */
static void test_image_tokens_in_prompt(const struct text_recipe *recipe) {
    static const char text[] = "a <|image_pad|> b";
    struct tokenizer *tokenizer = NULL;
    struct error e = {0};
    struct prompt_tokens one, two;
    check(tokenizer_open(&machine, "test/golden/qwen_edit_plus/model/tokenizer", &tokenizer, &e) == OK, "%s",
          e.what);
    prompt_encode_pictured(&machine, recipe, tokenizer, text, strlen(text), (int32_t[]){1, 1}, 2, &one, &e);
    prompt_encode_pictured(&machine, recipe, tokenizer, text, strlen(text), (int32_t[]){3, 5}, 2, &two, &e);
    check(e.code == OK && two.n_ids == one.n_ids + 6 && two.picture[1] == one.picture[1] + 2, "%s", e.what);
    prompt_destroy(&machine, &one);
    prompt_destroy(&machine, &two);
    tokenizer_close(tokenizer);
}

/* Refuses a tokenizer with an added token that begins with the image token, since it would match instead. */
static void test_tokenizer_with_longer_token_refused(const struct text_recipe *recipe) {
    static const char swallowing[] = "<|vision_start|><|image_pad|>";
    struct tokenizer *tokenizer = NULL;
    struct error e = {0};
    struct prompt_tokens tokens;
    json_t *file = json_load_file("test/golden/qwen_edit_plus/model/tokenizer/tokenizer.json", 0, NULL);
    json_t *added = json_object_get(file, "added_tokens"),
           *token = json_deep_copy(json_array_get(added, json_array_size(added) - 1));
    json_int_t id = json_integer_value(json_object_get(token, "id")) + 1;
    json_object_set_new(token, "id", json_integer(id));
    json_object_set_new(token, "content", json_string(swallowing));
    json_array_append_new(added, token);
    char path[] = "/tmp/sluice_pictured_XXXXXX", name[64];
    if (!check(mkdtemp(path), "cannot make a folder")) return;
    snprintf(name, sizeof name, "%s/tokenizer.json", path);
    check(!json_dump_file(file, name, 0), "cannot write %s", name);
    check(tokenizer_open(&machine, name, &tokenizer, &e) == OK, "%s", e.what);
    prompt_encode_pictured(&machine, recipe, tokenizer, "a", 1, (int32_t[]){1}, 1, &tokens, &e);
    check(e.code == META && strstr(e.what, "<|image_pad|>"), "%s", e.what);
    prompt_destroy(&machine, &tokens);
    tokenizer_close(tokenizer);
    json_decref(file);
    remove(name);
    remove(path);
}

int main(void) {
    sys_init_machine(&machine);
    test_inputs_equal_pipeline("qwen_edit", &recipe_qwen_image_edit, 96 * 96);
    test_inputs_equal_pipeline("qwen_edit_plus", &recipe_qwen_image_edit_plus, 160 * 160);
    test_image_tokens_in_prompt(text_of(&recipe_qwen_image));
    test_tokenizer_with_longer_token_refused(text_of(&recipe_qwen_image));
    check(sys_memory_use(&machine).live_bytes[LINE_HOST] == 0, "memory leaks");
    return finish();
}
