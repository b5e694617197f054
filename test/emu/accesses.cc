/* Counts the cost of 16-byte accesses by kernels: 32-byte sectors per request of global memory, passes per
 * phase of shared memory. Counts only accesses through the wrappers of ptx_emulated.h, which all memory-bound
 * kernels use.
 *
 * A request is the n-th access of each lane of a warp at one source line. Shared memory serves eight lanes of
 * 16 bytes at once (a phase; one tile of ldmatrix). Lanes of a phase with different addresses in one bank
 * need one pass each. */
#include "blocks.h"

#include <map>
#include <string>
#include <vector>

enum { PIECE = 16, SECTOR = 32, LANES = 32, PHASE = 8, BANK_ROW = 128 };

bool emu_counts_accesses;

struct request {
    uintptr_t at[LANES];
    uint32_t lanes;
};

struct source_place {
    const char *file;
    int line, warp;
    bool shared, write;
    bool operator<(const source_place &b) const {
        if (line != b.line) return line < b.line;
        if (warp != b.warp) return warp < b.warp;
        if (shared != b.shared) return shared < b.shared;
        if (write != b.write) return write < b.write;
        return strcmp(file, b.file) < 0;
    }
};

struct place_requests {
    size_t next[LANES]; /* index of the next memory request of each lane */
    std::vector<request> requests;
};

/* Memory requests, by source line, of the block that this host thread runs. */
static thread_local std::map<source_place, place_requests> places;

static quiet_lock counting;
static std::map<std::string, emu_accesses> counts; /* counts of memory accesses by kernel name */

/* Returns the address's offset in the block's shared memory, or -1 for other memory. */
static int64_t shared_offset(uintptr_t at) {
    for (int i = 0; i < own->n_arrays; i++) {
        uintptr_t first = reinterpret_cast<uintptr_t>(own->arrays[i].memory);
        if (at >= first && at < first + own->arrays[i].bytes) return (int64_t)(at - first);
    }
    return -1;
}

void emu_access(const void *address, bool write, const char *file, int line) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    int64_t offset = shared_offset(at);
    const emu_thread *self = emu_self;
    place_requests &p = places[{file, line, self->number / LANES, offset >= 0, write}];
    size_t n = p.next[self->lane]++;
    if (n == p.requests.size()) p.requests.push_back(request{});
    p.requests[n].at[self->lane] = offset >= 0 ? (uintptr_t)offset : at;
    p.requests[n].lanes |= 1u << self->lane;
}

static int distinct(uintptr_t *values, int n) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (int j = 0; j < found && !known; j++) known = values[j] == values[i];
        if (!known) values[found++] = values[i];
    }
    return found;
}

static void count_global(emu_accesses *to, const request &r) {
    uintptr_t pieces[LANES], sectors[LANES];
    int n = 0;
    for (int i = 0; i < LANES; i++)
        if (r.lanes >> i & 1) pieces[n] = r.at[i] / PIECE, sectors[n++] = r.at[i] / SECTOR;
    to->requests++;
    to->sectors += (uint64_t)distinct(sectors, n);
    to->least_sectors += (uint64_t)(distinct(pieces, n) * PIECE + SECTOR - 1) / SECTOR;
}

/* Counts one phase. Accesses are aligned to 16 bytes, so two accesses that share one bank share all four
 * banks. */
static void count_phase(emu_accesses *to, const request &r, int first) {
    uintptr_t of_bank[BANK_ROW / PIECE][PHASE];
    int n[BANK_ROW / PIECE] = {}, passes = 0;
    for (int i = first; i < first + PHASE; i++) {
        if (!(r.lanes >> i & 1)) continue;
        uintptr_t bank = r.at[i] % BANK_ROW / PIECE;
        of_bank[bank][n[bank]++] = r.at[i];
    }
    for (int bank = 0; bank < BANK_ROW / PIECE; bank++) {
        int here = distinct(of_bank[bank], n[bank]);
        if (here > passes) passes = here;
    }
    to->phases += passes > 0;
    to->passes += (uint64_t)passes;
}

void accesses_of_block() {
    lock(&counting);
    emu_accesses *to = &counts[kernel_running()];
    for (const auto &p : places)
        for (const request &r : p.second.requests)
            if (p.first.shared)
                for (int first = 0; first < LANES; first += PHASE) count_phase(to, r, first);
            else
                count_global(to, r);
    unlock(&counting);
    places.clear();
}

void emu_count_accesses(bool on) {
    lock(&counting);
    counts.clear();
    emu_counts_accesses = on;
    unlock(&counting);
}

struct emu_accesses emu_read_accesses(const char *kernel) {
    struct emu_accesses sum = {};
    lock(&counting);
    for (const auto &c : counts) {
        if (c.first.find(kernel) == std::string::npos) continue;
        sum.requests += c.second.requests, sum.sectors += c.second.sectors;
        sum.least_sectors += c.second.least_sectors;
        sum.phases += c.second.phases, sum.passes += c.second.passes;
    }
    unlock(&counting);
    return sum;
}
