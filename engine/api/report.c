/* Reports: see report.h. */
#include "engine/api/report.h"

#include <nettle/sha2.h>
#include <string.h>

char *sha256_hex(const void *bytes, size_t n, char *out) {
    struct sha256_ctx sha;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&sha);
    sha256_update(&sha, n, bytes);
    sha256_digest(&sha, sizeof digest, digest);
    for (int i = 0; i < SHA256_DIGEST_SIZE; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[2 * SHA256_DIGEST_SIZE] = 0;
    return out;
}

static json_t *hashes_json(const char (*hash)[SHA256_HEX], int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(hash[i]));
    return list;
}

static json_t *rate_json(const struct stage_record *stage) {
    double seconds = stage->seconds;
    return seconds > 0 ? json_real((double)stage->moved.bytes_moved / seconds / 1e9) : json_null();
}

static json_t *known_json(double number, bool known) {
    return known ? json_real(number) : json_null();
}

static json_t *stages_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_stages; i++) {
        const struct stage_record *s = &r->stage[i];
        bool floor = s->floor_seconds > 0, both = floor && s->seconds > 0;
        json_array_append_new(
            list,
            json_pack("{s:s, s:f, s:I, s:I, s:o, s:f, s:o, s:o}", "name", r->stage_name[i], "seconds",
                      s->seconds, "bytes_moved", (json_int_t)s->moved.bytes_moved, "bytes_direct",
                      (json_int_t)s->moved.bytes_direct, "gbytes_per_second", rate_json(s), "stall_seconds",
                      s->moved.stall_seconds, "floor_seconds", known_json(s->floor_seconds, floor),
                      "efficiency", known_json(both ? s->floor_seconds / s->seconds : 0, both)));
    }
    return list;
}

static json_t *steps_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_steps; i++) {
        const struct step_record *s = &r->step[i];
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:I, s:f, s:s?}", "index", i, "sigma",
                                              (double)r->sigma[i], "seconds", s->seconds, "bytes_moved",
                                              (json_int_t)s->moved.bytes_moved, "stall_seconds",
                                              s->moved.stall_seconds, "stall_block", s->stall_block));
    }
    return list;
}

json_t *report_json(const struct report *r) {
    json_t *json = json_pack(
        "{s:i, s:i, s:O?, s:I, s:f, s:o, s:o, s:{s:i, s:I, s:I, s:I}, s:o, s:o}", "version", 1, "exit",
        r->error.code == OK ? 0 : r->error.exit, "plan", r->plan, "seed", (json_int_t)r->seed, "seconds",
        r->seconds, "latent_sha256", hashes_json(r->latent_sha256, r->n_latents), "image_sha256",
        hashes_json(r->image_sha256, r->n_images), "measured", "vram_bytes", 0, "ram_bytes",
        (json_int_t)r->peak_bytes, "base_bytes", (json_int_t)r->base_bytes, "library_bytes",
        (json_int_t)r->library_bytes, "stages", stages_json(r), "steps", steps_json(r));
    if (json && r->error.code != OK)
        json_object_set_new(json, "error",
                            json_pack("{s:s, s:s, s:s, s:s, s:s}", "code", status_name(r->error.code), "what",
                                      r->error.what, "where", r->error.where, "found", r->error.found,
                                      "expected", r->error.expected));
    return json;
}

void report_destroy(struct sys *sys, struct report *report) {
    json_decref(report->plan);
    sys->release(sys, report->step);
    sys->release(sys, report->sigma);
    memset(report, 0, sizeof *report);
}
