#include "engine/api/report.h"

#include "loaders/json.h"

#include <string.h>

char *sha256_end(struct sha256_ctx *sha, char *out) {
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(sha, sizeof digest, digest);
    for (int i = 0; i < SHA256_DIGEST_SIZE; i++) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[2 * SHA256_DIGEST_SIZE] = 0;
    return out;
}

char *sha256_hex(const void *bytes, size_t n, char *out) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, n, bytes);
    return sha256_end(&sha, out);
}

static json_t *hashes_json(const char (*hash)[SHA256_HEX], int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_push(list, json_string(hash[i]));
    return list;
}

static json_t *real_or_null(double number, bool known) {
    return known ? json_real(number) : json_null();
}

static void put_work(json_t *json, double seconds, double floor_seconds, struct processor_time spent,
                     const struct store_counters *moved, const struct stall *stall) {
    bool took = seconds > 0, floor = floor_seconds > 0;
    double computing = seconds - moved->stall_seconds, bytes = (double)moved->bytes_moved;
    json_put(json, "seconds", json_real(seconds));
    json_put(json, "compute_seconds", json_real(computing > 0 ? computing : 0));
    json_put(json, "user_seconds", json_real(spent.user));
    json_put(json, "system_seconds", json_real(spent.system));
    json_put(json, "bytes_moved", json_integer(moved->bytes_moved));
    json_put(json, "gbytes_per_second", real_or_null(took ? bytes / seconds / 1e9 : 0, took));
    if (moved->bytes_windowed) json_put(json, "bytes_windowed", json_integer(moved->bytes_windowed));
    if (moved->bytes_unpinned) json_put(json, "bytes_unpinned", json_integer(moved->bytes_unpinned));
    json_put(json, "stall_seconds", json_real(moved->stall_seconds));
    json_put(json, "stall_block", stall->seconds > 0 ? json_string(stall->block) : json_null());
    json_put(json, "stall_block_seconds", json_real(stall->seconds));
    json_put(json, "floor_seconds", real_or_null(floor_seconds, floor));
    json_put(json, "efficiency", real_or_null(took ? floor_seconds / seconds : 0, took && floor));
}

static json_t *stages_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_stages; i++) {
        const struct stage_record *s = &r->stage[i];
        json_t *stage =
            json_pack("{s:s, s:I, s:I, s:I}", "name", r->stage_name[i], "bytes_direct",
                      (json_int_t)s->moved.bytes_direct, "planned_ram_bytes", (json_int_t)s->planned_bytes,
                      "measured_ram_bytes", (json_int_t)s->measured_bytes);
        put_work(stage, s->seconds, s->floor_seconds, s->spent, &s->moved, &s->stall);
        json_push(list, stage);
    }
    return list;
}

static json_t *steps_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_steps; i++) {
        const struct step_record *s = &r->step[i];
        json_t *step = json_pack("{s:i, s:f}", "index", i, "sigma", (double)r->sigma[i]);
        put_work(step, s->seconds, s->floor_seconds, s->spent, &s->moved, &s->stall);
        json_push(list, step);
    }
    return list;
}

static json_t *evicted_json(const struct report *r) {
    json_t *list = json_array();
    for (int i = 0; i < r->n_evicted; i++)
        json_push(list, json_pack("{s:s, s:i, s:I}", "stage", r->evicted[i].stage, "step", r->evicted[i].step,
                                  "given_up_bytes", (json_int_t)r->evicted[i].bytes));
    return list;
}

json_t *report_json(const struct report *r) {
    json_t *json = json_pack(
        "{s:i, s:i, s:O?, s:I, s:f, s:o, s:o, s:{s:I, s:I, s:I, s:I}, s:o, s:o, s:o}", "version", 1, "exit",
        r->error.code == OK ? 0 : r->error.exit, "plan", r->plan, "seed", (json_int_t)r->seed, "seconds",
        r->seconds, "latent_sha256", hashes_json(r->latent_sha256, r->n_latents), "image_sha256",
        hashes_json(r->image_sha256, r->n_images), "measured", "vram_bytes", (json_int_t)r->device_bytes,
        "ram_bytes", (json_int_t)r->peak_bytes, "base_bytes", (json_int_t)r->base_bytes, "library_bytes",
        (json_int_t)r->library_bytes, "stages", stages_json(r), "steps", steps_json(r), "replanned",
        evicted_json(r));
    if (r->context_bytes)
        json_put(json_object_get(json, "measured"), "context_bytes",
                 json_integer((json_int_t)r->context_bytes));
    if (r->algorithms) json_put(json, "algorithms", json_incref(r->algorithms));
    if (json && r->error.code != OK)
        json_put(json, "error",
                 json_pack("{s:s, s:o, s:o, s:o, s:o}", "code", status_name(r->error.code), "what",
                           json_string_of(r->error.what), "where", json_string_of(r->error.where), "found",
                           json_string_of(r->error.found), "expected", json_string_of(r->error.expected)));
    return json;
}

void report_destroy(struct sys *sys, struct report *report) {
    json_decref(report->plan);
    json_decref(report->algorithms);
    sys->release(sys, report->step);
    sys->release(sys, report->sigma);
    memset(report, 0, sizeof *report);
}
