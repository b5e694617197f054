#include "test/lib/random_needs.h"

#include "test/lib/seeded.h"

#include <string.h>

void add_blocks(struct stage_need *n, int count, double bytes, double seconds) {
    for (int i = 0; i < count; i++, n->n_blocks++) {
        n->block_bytes[n->n_blocks] = (uint64_t)bytes;
        n->block_seconds[n->n_blocks] = seconds;
        n->block_repeats[n->n_blocks] = n->block_keepable[n->n_blocks] = true;
    }
}

struct stage_need *one_stage(struct run_need *need, int evaluations, double disk) {
    memset(need, 0, sizeof *need);
    need->n_stages = 1;
    need->rates.disk = disk;
    need->stage[0].evaluations = evaluations;
    return &need->stage[0];
}

uint64_t stage_bytes(const struct stage_need *n) {
    uint64_t bytes = 0;
    for (int i = 0; i < n->n_blocks; i++) bytes += n->block_bytes[i];
    return bytes;
}

void random_stage(struct stage_need *n, int n_blocks) {
    double share = from_to(0.1, 2), uneven = from_to(0, 1);
    bool once = !below(3), sided = !below(3);
    n->evaluations = below(4) ? 2 + (int)below(12) : 1;
    n->n_blocks = n_blocks;
    n->state_bytes = below(1 << 16);
    n->activation_bytes = below(1 << 20);
    n->workspace_bytes = below(2) * below(1 << 18);
    n->library_bytes = below(1 << 16);
    n->image_bytes = below(1 << 16);
    uint64_t one = 256 * (40 + below(4000));
    for (int i = 0; i < n_blocks; i++) {
        double size = 1 + uneven * (from_to(0, 4) - 1);
        n->block_bytes[i] = below(12) ? 256 * (uint64_t)(size * (double)one / 256) : 0;
        n->block_adapter_bytes[i] = sided ? below(n->block_bytes[i] / 512 + 1) * 256 : 0;
        n->block_repeats[i] = !once || below(5);
        n->block_keepable[i] = below(10) != 0;
        n->block_seconds[i] = below(9) ? share * (double)one / 1e9 * from_to(1 - uneven, 1 + uneven) : 0;
    }
}

void random_need(struct run_need *need, bool separate, int n_stages, int most_blocks) {
    memset(need, 0, sizeof *need);
    need->n_stages = n_stages;
    need->separate = separate;
    need->rates = (struct rates){.disk = separate ? from_to(0.1e9, 1e9) : 1e9, .h2d = 1e9};
    need->base_bytes = below(1 << 20);
    need->host_bytes = below(1 << 18);
    need->interstage_bytes = below(1 << 18);
    need->open_bytes = below(1 << 18);
    need->device_bytes = separate ? below(1 << 20) : 0;
    for (int s = 0; s < n_stages; s++) random_stage(&need->stage[s], 1 + (int)below((uint64_t)most_blocks));
}

void check_refused(const struct run_need *need, uint64_t ram, uint64_t vram) {
    static struct plan plan;
    struct error e = {0};
    char number[32];
    plan_solve(need, ram, vram, &plan);
    assert_int_equal(plan_check(need, &plan, &e), BUDGET);
    uint64_t least = ram < plan.ram_least_bytes ? plan.ram_least_bytes : plan.vram_least_bytes;
    snprintf(number, sizeof number, " %lluB", (unsigned long long)least);
    assert_non_null(strstr(e.what, number));
}
