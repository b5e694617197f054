/* Recipes with the same tensor shapes that only file and folder names distinguish: Stable Diffusion 3.5 Large
 * and its Turbo. */
#include "test/lib/temporary_folder.h"
#include "test/lib/layout_checks.h"
#include "test/lib/random_models.h"

#include <unistd.h>

#define MODEL "test/golden/sd35_large/model"

/* Opens the model; checks the recipe, and whether the log explains that a file or folder name chose it. */
static void opens_as(options from, const char *recipe, bool by_name, const char *what) {
    char lines[MODEL_NOTES_MAX][MODEL_NOTE_BYTES], line[1024];
    struct sluice_model *m = NULL;
    struct error e = {0};
    bool explained = false;
    int others = 0;
    model_open(NULL, model_options(&from), &m, &e);
    if (!check(e.code == OK, "%s: %s", what, error_line(&e, line, sizeof line))) return;
    int n = model_notes(m, lines);
    for (int i = 0; i < n; i++) {
        explained |= strstr(lines[i], "because the model's name has the word \"turbo\"") != NULL;
        others += strstr(lines[i], "(--steps 4 --cfg-scale 1)") != NULL;
        check(!strstr(lines[i], "look like those of"), "%s: reported as ambiguous: %s", what, lines[i]);
    }
    check(!strcmp(m->recipe->name, recipe), "%s: opened as %s", what, m->recipe->name);
    check(explained == by_name && others == !by_name,
          "%s: the log must explain the choice exactly if a name made it: %d, %d", what, explained, others);
    check(by_name == (m->steps == 4 && m->cfg_scale == 1), "%s: %d steps", what, m->steps);
    model_close(m);
}

/* Makes a symbolic link to the fixture under another name, in a new folder. */
static options linked(const char *folder, const char *name) {
    static char path[TENSOR_SET_PATH];
    char real[TENSOR_SET_PATH], command[2 * TENSOR_SET_PATH];
    snprintf(command, sizeof command, "mkdir -p '%s'", temporary_path(folder));
    check(system(command) == 0 && realpath(MODEL, real), "%s", command);
    snprintf(path, sizeof path, "%s/%s", temporary_path(folder), name);
    check(!symlink(real, path), "%s", path);
    return (options){.model = path};
}

static const struct {
    const char *folder, *name;
    bool turbo;
} folders[] = {
    {"plain", "sd3.5-large", false},
    {"plain", "stable-diffusion-3.5-large-turbo", true},
    {"plain", "SD35_Large_Turbo", true},
    {"plain", "turbocharged", false},
    {"turbo", "sd3.5-large", false},
    {"hub/models--stabilityai--stable-diffusion-3.5-large-turbo/snapshots", "0a1b", true},
    {"hub/models--stabilityai--stable-diffusion-3.5-large/snapshots", "0a1b", false},
    {"hub/turbo/models--stabilityai--stable-diffusion-3.5-large/snapshots", "0a1b", false},
};

static void test_folder_name_chooses_recipe(void) {
    char slashed[TENSOR_SET_PATH];
    for (int i = 0; i < COUNT_OF(folders); i++) {
        options from = linked(folders[i].folder, folders[i].name);
        const char *recipe = folders[i].turbo ? "sd35_large_turbo" : "sd35_large";
        opens_as(from, recipe, folders[i].turbo, from.model);
        snprintf(slashed, sizeof slashed, "%s/", from.model);
        from.model = slashed;
        opens_as(from, recipe, folders[i].turbo, slashed);
    }
}

/* Paths such as "." and ".." select the recipe by the name of the folder that they resolve to. */
static void test_relative_path_resolves_to_folder_name(void) {
    char here[TENSOR_SET_PATH], command[3 * TENSOR_SET_PATH];
    snprintf(command, sizeof command, "mkdir -p '%s' && cp -rL %s '%s'", temporary_path("dots"), MODEL,
             temporary_path("dots/sd35-turbo"));
    check(system(command) == 0 && getcwd(here, sizeof here), "%s", command);
    snprintf(command, sizeof command, "%s", temporary_path("dots/sd35-turbo"));
    check(!chdir(command), "%s", command);
    opens_as((options){.model = "."}, "sd35_large_turbo", true, ".");
    opens_as((options){.model = "./"}, "sd35_large_turbo", true, "./");
    check(!chdir("transformer"), "transformer");
    opens_as((options){.model = ".."}, "sd35_large_turbo", true, "..");
    check(!chdir(here), "%s", here);
}

/* With --diffusion-model the transformer file's name decides, not the name of the folder whose transformer it
 * replaces. */
static void test_file_name_beats_folder_name(void) {
    options from = {.model = MODEL};
    struct tensor_set *transformer = tensor_set_from_component(MODEL, "transformer");
    write_tensor_set(transformer, temporary_path("sd3.5_large_turbo.safetensors"), transformer->config);
    write_tensor_set(transformer, temporary_path("sd3.5_large.safetensors"), transformer->config);
    from.diffusion_model = temporary_path("sd3.5_large_turbo.safetensors");
    opens_as(from, "sd35_large_turbo", true, "a transformer file");
    from = linked("files", "a-turbo");
    from.diffusion_model = temporary_path("sd3.5_large.safetensors");
    opens_as(from, "sd35_large", false, "a file replacing a turbo folder's transformer");
    write_tensor_set(transformer, temporary_path("files/a-turbo.2.safetensors"), transformer->config);
    from.diffusion_model = temporary_path("files/a-turbo.2.safetensors");
    opens_as(from, "sd35_large_turbo", true, "a file name that extends the folder's by a word");
    write_tensor_set(transformer, temporary_path("files/a-turbo2.safetensors"), transformer->config);
    from.diffusion_model = temporary_path("files/a-turbo2.safetensors");
    opens_as(from, "sd35_large", false, "a file name that extends the folder's last word");
    tensor_set_free(transformer);
}

/* A generated checkpoint states its recipe; its folder may have any name. */
static void test_generated_checkpoint_ignores_folder_name(void) {
    static const char sizes[] =
        "heads=2,sd3_head=16,layers=2,sd3_positions=9,hidden=64,sd3_pooled=64,latent_channels=4,"
        "text_encoder.pooled=24,text_encoder.clip_projection=24,clip_l.clip_heads=3,"
        "clip_g.pooled=40,clip_g.clip_projection=40,clip_g.clip_heads=5,clip_ff=32,clip_layers=2,"
        "clip_vocabulary=600,t5_vocabulary=700,t5_heads=2,t5_head_dim=16,t5_ff=32,t5_layers=1,"
        "vae0=32,vae1=32,vae2=16,vae3=16,vae_groups=4";
    const char *made = random_model("made", "sd35_large_turbo", sizes, 5);
    struct model_paths from = {.model = made};
    struct sluice_model *m = NULL;
    struct error e = {0};
    model_open(NULL, model_options(&from), &m, &e);
    check(e.code == OK && m->steps == 4 && m->cfg_scale == 1, "%s %s", made, e.what);
    model_close(m);
}

int main(void) {
    temporary_make();
    test_folder_name_chooses_recipe();
    test_relative_path_resolves_to_folder_name();
    test_file_name_beats_folder_name();
    test_generated_checkpoint_ignores_folder_name();
    return finish();
}
