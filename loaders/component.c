/* Opens the weights of a component: finds the weight files, reads their headers, and merges the headers into
 * one tensor index. See loaders.h. A shard index (JSON) is read twice: first for the names of the shards,
 * then, with all shards open, to check that every tensor is in its shard. Positions and shapes come only from
 * the shards' headers. */
#include "loaders/gguf/gguf.h"
#include "loaders/json.h"
#include "loaders/loaders.h"
#include "loaders/quantised.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"

enum { SHARDS_MAX = 256, SHARD_NAME_MAX = 1023, INDEX_BYTES_MAX = 100000000, INDEX_DEPTH_MAX = 8 };
enum { INDEX_MEMBER_BYTES_MAX = 65536 };

struct sharding {
    struct sys *sys;
    const char *path;
    struct json_text weight_map; /* text of the JSON object weight_map in the shard index */
    char *name[SHARDS_MAX];      /* shard file names as written in the shard index */
    struct tensor_index part[SHARDS_MAX];
    int n_shards, n_parts;
    uint64_t claimed_bytes; /* metadata.total_size of the shard index in bytes; 0: absent */
};

/* Sets an error at the start of a JSON text. what: printf format, may end in FOUND, EXPECTED (error_set). */
#define fail_at(e, code, at, what, ...)                                                                      \
    error_set(e, code, what WHERE "%s, byte %" PRIu64, ##__VA_ARGS__, (at)->path, (at)->offset)

/* Decodes and checks a shard name. Fails with LIMIT, META or BOUNDS if the name is invalid or leads out of
 * the folder of the index. Symlinks may lead anywhere: the Hugging Face cache consists of them. */
static enum status decode_shard_name(const struct json_text *value, json_t **json, struct error *e) {
    *json = NULL;
    if (json_first_char(value) != '"')
        return fail_at(e, META, value, "the shard file name of a tensor is not a string");
    if (value->bytes > INDEX_MEMBER_BYTES_MAX) return fail_at(e, LIMIT, value, "a shard name is too long");
    if (json_decode(value, JSON_ALLOW_NUL, json, e) != OK) return e->code;
    const char *name = json_string_value(*json);
    size_t bytes = json_string_length(*json);
    bool leaves = !bytes || *name == '/' || strlen(name) != bytes;
    for (const char *part = name; part && !leaves; part = strchr(part, '/')) {
        if (*part == '/') part++;
        leaves = !strncmp(part, "..", 2) && (part[2] == '/' || !part[2]);
    }
    if (leaves) {
        fail_at(e, BOUNDS, value,
                "a shard path leaves the model folder" FOUND "'%s'" EXPECTED "a relative path without '..'",
                name);
    } else if (bytes > SHARD_NAME_MAX) {
        fail_at(e, LIMIT, value, "a shard name is too long");
    } else {
        return OK;
    }
    json_decref(*json);
    *json = NULL;
    return e->code;
}

static char *copy_joined(struct sys *sys, const char *folder, size_t folder_bytes, const char *name,
                         struct error *e) {
    size_t name_bytes = strlen(name) + 1;
    char *joined = sys_new(sys, folder_bytes + name_bytes, 1, "the path of a weight file", e);
    if (!joined) return NULL;
    memcpy(joined, folder, folder_bytes);
    memcpy(joined + folder_bytes, name, name_bytes);
    return joined;
}

/* Index of the shard with this name, or -1. Tries the shard added last first, because consecutive tensors are
 * often in the same shard. */
static int find_shard(const struct sharding *s, const char *name, int last) {
    if (last < s->n_shards && !strcmp(s->name[last], name)) return last;
    for (int i = 0; i < s->n_shards; i++)
        if (!strcmp(s->name[i], name)) return i;
    return -1;
}

/* Lists the names of the shards in weight_map. */
static enum status collect_shards(struct sharding *s, struct error *e) {
    struct json_walk walk;
    struct json_member member;
    int shard = 0;
    if (json_walk_start(&walk, &s->weight_map, INDEX_DEPTH_MAX - 1, e) != OK) return e->code;
    for (int n = 0; json_walk_next(&walk, &member, e); n++) {
        if (n == LOADER_TENSORS_MAX)
            return fail_at(e, LIMIT, &member.name, "too many tensors in weight_map" EXPECTED "at most %d",
                           LOADER_TENSORS_MAX);
        json_t *name;
        if (decode_shard_name(&member.value, &name, e) != OK) return e->code;
        int found = find_shard(s, json_string_value(name), shard);
        if (found < 0 && s->n_shards == SHARDS_MAX) {
            fail_at(e, LIMIT, &member.value, "too many shards" EXPECTED "at most %d", SHARDS_MAX);
        } else if (found < 0) {
            s->name[s->n_shards] = copy_joined(s->sys, "", 0, json_string_value(name), e);
            if (s->name[s->n_shards]) found = s->n_shards++;
        }
        shard = found;
        json_decref(name);
        if (e->code != OK) return e->code;
    }
    return e->code;
}

static bool is_named(const struct json_member *member, const char *name) {
    size_t bytes = strlen(name);
    return member->name.bytes == bytes + 2 && !memcmp(member->name.text + 1, name, bytes);
}

/* Finds weight_map in the shard index. The index's other members only need to be valid JSON. total_size is
 * not compared with the files, because some published values are wrong. */
static enum status find_weight_map(struct sharding *s, const struct json_text *text, struct error *e) {
    struct json_walk walk;
    struct json_member member;
    if (json_walk_start(&walk, text, INDEX_DEPTH_MAX, e) != OK) return e->code;
    while (json_walk_next(&walk, &member, e)) {
        if (is_named(&member, "weight_map")) {
            if (s->weight_map.text) return fail_at(e, DUP, &member.name, "weight_map occurs twice");
            s->weight_map = member.value;
            continue;
        }
        json_t *other;
        if (member.value.bytes > INDEX_MEMBER_BYTES_MAX)
            return fail_at(e, LIMIT, &member.value, "a member of the shard index is too long");
        if (json_decode(&member.value, 0, &other, e) != OK) return e->code;
        json_int_t claim = json_integer_value(json_object_get(other, "total_size"));
        if (is_named(&member, "metadata") && claim > 0) s->claimed_bytes = (uint64_t)claim;
        json_decref(other);
    }
    if (e->code != OK) return e->code;
    if (s->weight_map.text && json_first_char(&s->weight_map) == '{') return OK;
    return fail_at(e, META, s->weight_map.text ? &s->weight_map : text,
                   "weight_map is missing or not an object" EXPECTED
                   "an object that maps tensor names to shard files");
}

/* Opens every shard. The limits for the whole component are checked after each shard, so that many shards
 * cannot use more memory than one file may. */
static enum status open_shards(struct sharding *s, struct error *e) {
    const char *slash = strrchr(s->path, '/');
    size_t folder_bytes = slash ? (size_t)(slash - s->path) + 1 : 0;
    struct index_size size = {0};
    while (s->n_parts < s->n_shards) {
        struct tensor_index *part = &s->part[s->n_parts];
        char *path = copy_joined(s->sys, s->path, folder_bytes, s->name[s->n_parts], e);
        if (!path) return e->code;
        safetensors_open(s->sys, path, part, e);
        s->sys->release(s->sys, path);
        if (e->code == MISSING)
            error_expected(e, "this shard (maybe an incomplete download), which is listed in %s", s->path);
        if (e->code != OK) return e->code;
        s->n_parts++;
        if (index_add_size(&size, part, s->path, e) != OK) return e->code;
    }
    return OK;
}

/* Second pass over weight_map: checks that every tensor is in its shard. mapped: for each entry of the tensor
 * index, true if an earlier member of weight_map named the tensor. */
static enum status check_weight_map(const struct sharding *s, const struct tensor_index *index,
                                    struct error *e) {
    struct json_walk walk;
    struct json_member member;
    int shard = 0;
    bool *mapped = sys_new(s->sys, (size_t)index->n_entries, sizeof *mapped, "a tensor index", e);
    if (!mapped) return e->code;
    if (json_walk_start(&walk, &s->weight_map, INDEX_DEPTH_MAX - 1, e) != OK) goto out;
    while (e->code == OK && json_walk_next(&walk, &member, e)) {
        json_t *name = NULL, *file = NULL;
        if (member.name.bytes > INDEX_MEMBER_BYTES_MAX) {
            fail_at(e, LIMIT, &member.name, "a tensor name is too long");
            break;
        }
        if (json_decode(&member.name, 0, &name, e) != OK) break;
        if (decode_shard_name(&member.value, &file, e) == OK) {
            shard = find_shard(s, json_string_value(file), shard);
            const struct index_entry *entry = index_find(index, json_string_value(name));
            if (!entry || entry->source != shard) {
                error_set(e, MISSING,
                          "tensor '%s' is not in the shard that the index names" WHERE
                          "%s, byte %" PRIu64 FOUND "%s" EXPECTED "%s",
                          json_string_value(name), s->path, member.name.offset,
                          entry ? s->name[entry->source] : "no shard", json_string_value(file));
            } else if (mapped[entry - index->entries]) {
                fail_at(e, DUP, &member.name, "tensor occurs twice in weight_map" FOUND "'%s'", entry->name);
            } else {
                mapped[entry - index->entries] = true;
            }
        }
        json_decref(name);
        json_decref(file);
    }
out:
    s->sys->release(s->sys, mapped);
    return e->code;
}

static enum status open_sharded(struct sys *sys, const char *path, struct tensor_index *index,
                                struct error *e) {
    char *text = NULL;
    uint64_t bytes = 0;
    *index = (struct tensor_index){.sys = sys};
    struct sharding *s = sys_new(sys, 1, sizeof *s, "a tensor index", e);
    if (!s) return e->code;
    s->sys = sys;
    s->path = path;
    if (file_read_text(sys, path, INDEX_BYTES_MAX, &text, &bytes, e) == OK &&
        find_weight_map(s, &(struct json_text){.path = path, .text = text, .bytes = bytes}, e) == OK &&
        collect_shards(s, e) == OK && open_shards(s, e) == OK &&
        index_merge(sys, path, s->part, s->n_parts, index, e) == OK) {
        index->claimed_bytes = s->claimed_bytes;
        check_weight_map(s, index, e);
    }
    for (int i = 0; i < s->n_parts; i++) index_destroy(&s->part[i]);
    for (int i = 0; i < s->n_shards; i++) sys->release(sys, s->name[i]);
    sys->release(sys, s);
    sys->release(sys, text);
    if (bytes > JSON_LARGE_BYTES) sys->trim(sys);
    if (e->code != OK) index_destroy(index);
    return e->code;
}

/* Kinds of weight files in a folder, in the order of preference that component_open documents. Two files of
 * the same kind are ambiguous. */
enum place {
    DIFFUSION_INDEX,
    MODEL_INDEX,
    DIFFUSION_FILE,
    MODEL_FILE,
    OTHER_INDEX,
    OTHER_FILE,
    VARIANT_INDEX,
    VARIANT_FILE,
    GGUF_FILE,
    LONE_SHARD,
    NO_WEIGHTS,
};

static const char *const preferred[] = {
    [DIFFUSION_INDEX] = "diffusion_pytorch_model.safetensors.index.json",
    [MODEL_INDEX] = "model.safetensors.index.json",
    [DIFFUSION_FILE] = "diffusion_pytorch_model.safetensors",
    [MODEL_FILE] = "model.safetensors",
};

/* Returns the shard number and the rest of a shard file's name: "00001-of-00002.safetensors" in
 * "model-00001-of-00002.safetensors", also with a variant before or after the numbers; also for parts of
 * GGUF files. NULL: not a shard. */
static const char *shard_number(const char *name) {
    const char *of = strstr(name, "-of-");
    bool shard = of && of - name >= 6 && of[-6] == '-' && strspn(of - 5, "0123456789") == 5 &&
                 strspn(of + 4, "0123456789") == 5;
    return shard ? of - 5 : NULL;
}

static enum place place_of(const char *name) {
    static const char *const variants[] = {"fp16", "bf16", "fp32", "fp8", "ema", "non_ema"};
    const char *number = shard_number(name);
    for (int i = 0; i <= MODEL_FILE; i++)
        if (!strcmp(name, preferred[i])) return (enum place)i;
    if (ends_with(name, ".safetensors.index.json")) return OTHER_INDEX;
    if (strstr(name, ".safetensors.index.") && ends_with(name, ".json")) return VARIANT_INDEX;
    if (ends_with(name, ".gguf")) return number && strncmp(number, "00001", 5) ? LONE_SHARD : GGUF_FILE;
    if (!ends_with(name, ".safetensors")) return NO_WEIGHTS;
    if (number) return LONE_SHARD;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        char end[40];
        snprintf(end, sizeof end, ".%s.safetensors", variants[i]);
        if (ends_with(name, end)) return VARIANT_FILE;
    }
    return OTHER_FILE;
}

bool component_is_candidate(const char *name) {
    static const char *const others[] = {".sft", ".ckpt", ".pt", ".pth"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (ends_with(name, others[i])) return true;
    enum place place = place_of(name);
    return place != NO_WEIGHTS && place != LONE_SHARD;
}

/* The best weight file of a folder. If a second file of the same kind is present, the choice is
 * ambiguous. */
struct choice {
    enum place place;
    char name[256], other[256];
};

static enum status check_choice(const struct choice *choice, const char *folder, struct error *e) {
    if (choice->place == NO_WEIGHTS)
        return error_set(e, MISSING,
                         "the folder contains no weights" WHERE "%s" EXPECTED
                         "diffusion_pytorch_model or model with .safetensors or .safetensors.index.json, or "
                         "one *.safetensors or *.gguf",
                         folder);
    if (choice->place == LONE_SHARD) {
        return error_set(e, MISSING,
                         "the folder contains shards without their index file or first part" WHERE "%s" FOUND
                         "%s" EXPECTED "*.safetensors.index.json, or *-00001-of-*.gguf",
                         folder, choice->name);
    }
    if (!choice->other[0]) return OK;
    return error_set(e, UNSUPPORTED,
                     "the folder contains several weight files and none has a standard name" WHERE "%s" FOUND
                     "%s and %s" EXPECTED "one file, or the path of the file to use",
                     folder, choice->name, choice->other);
}

/* Opens a weight file. The file's first bytes determine the format, or else the file's name. */
static enum status open_file(struct sys *sys, const char *path, struct tensor_index *index, struct error *e) {
    if (ends_with(path, ".json"))
        open_sharded(sys, path, index, e);
    else if (ends_with(path, ".gguf") || gguf_is(sys, path))
        gguf_open(sys, path, index, e);
    else
        safetensors_open(sys, path, index, e);
    if (e->code == OK && quantised_pair(index, e) != OK) index_destroy(index);
    return e->code;
}

static enum status open_folder(struct sys *sys, const char *path, DIR *folder, struct tensor_index *index,
                               struct error *e) {
    struct choice choice = {.place = NO_WEIGHTS};
    for (struct dirent *file; (file = readdir(folder));) {
        enum place place = place_of(file->d_name);
        if (place > choice.place || place == NO_WEIGHTS) continue;
        if (place < choice.place) choice = (struct choice){.place = place};
        snprintf(choice.name[0] ? choice.other : choice.name, sizeof choice.name, "%s", file->d_name);
    }
    if (check_choice(&choice, path, e) != OK) return e->code;
    char with_slash[258];
    snprintf(with_slash, sizeof with_slash, "%s%s", ends_with(path, "/") ? "" : "/", choice.name);
    char *file = copy_joined(sys, path, strlen(path), with_slash, e);
    if (!file) return e->code;
    open_file(sys, file, index, e);
    sys->release(sys, file);
    return e->code;
}

/* Folders are listed with the C library's opendir, because struct sys has no function for it. */
enum status component_open(struct sys *sys, const char *path, struct tensor_index *index, struct error *e) {
    *index = (struct tensor_index){0};
    DIR *folder = opendir(path);
    int failed = folder ? 0 : errno;
    if (failed == ENOTDIR) return open_file(sys, path, index, e);
    if (failed)
        return error_set(e, failed == ENOENT ? MISSING : IO,
                         "cannot open model file or folder" WHERE "%s" FOUND "%s", path, strerror(failed));
    open_folder(sys, path, folder, index, e);
    closedir(folder);
    return e->code;
}
