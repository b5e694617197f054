/* Runs a kernel block by block; each CUDA thread is a fiber.
 *
 * A fiber runs until it waits at a barrier or warp operation, then switches to a runnable fiber in the
 * configured order. A fiber whose thread has ended runs the next thread that has not started, so a kernel
 * without barriers needs one fiber. ThreadSanitizer would interpret the reuse of fibers as ordering. Under
 * TSan each thread therefore has its own fiber, and neighbouring blocks use two alternating sets of fibers.
 *
 * If no fiber is runnable, a barrier is divergent: the message names the waiting threads and source lines. */
#include "blocks.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

EMU_THREAD_LOCAL const emu_thread *emu_self;
EMU_THREAD_LOCAL const emu_place *emu_where;
EMU_THREAD_LOCAL worker *own;

const char *kernel_running() {
    return own && own->now ? own->now->name : "";
}

static inline void make_ready(block_state *b, int warp, uint32_t lanes) {
    b->ready[warp] |= lanes;
    b->ready_warps |= 1u << warp;
}

/* Returns the index of one set bit, chosen by the configured thread order. */
static inline int choose_bit(uint32_t bits, uint64_t *random) {
    if (now.order == EMU_FORWARD) return __builtin_ctz(bits);
    if (now.order == EMU_REVERSE) return 31 - __builtin_clz(bits);
    int by = (int)(random_next(random) >> 59);
    uint32_t turned = bits >> by | bits << (31 & (32 - by));
    return (__builtin_ctz(turned) + by) & 31;
}

static thread *pick(worker *w) {
    block_state *b = w->block;
    if (!b->ready_warps) return nullptr;
    int warp = choose_bit(b->ready_warps, &w->random), lane = choose_bit(b->ready[warp], &w->random);
    b->ready[warp] &= ~(1u << lane);
    if (!b->ready[warp]) b->ready_warps &= ~(1u << warp);
    return &b->threads[32 * warp + lane];
}

static void place_text(char *out, size_t bytes, const worker *w) {
    snprintf(out, bytes, "kernel %s, block (%u, %u, %u)", w->now->name, w->where.block.x, w->where.block.y,
             w->where.block.z);
}

__attribute__((noreturn)) static void refuse_deadlock(const worker *w) {
    char at[256];
    place_text(at, sizeof at, w);
    const block_state *b = w->block;
    const thread *waits = nullptr, *other = nullptr;
    for (int i = 0; i < b->n; i++) {
        const thread *t = &b->threads[i];
        if (!t->ended && !waits)
            waits = t;
        else if (!other && (t->ended || (waits && (t->line != waits->line || t->what != waits->what))))
            other = t;
    }
    if (!other) other = &b->threads[0];
    const char *fault = strcmp(waits->what, "__syncthreads") ? "absent lanes" : "divergent barrier";
    if (other->ended)
        refuse("%s: %s: thread %d waits at %s (%s:%d), thread %d has ended", at, fault, waits->self.number,
               waits->what, waits->file, waits->line, other->self.number);
    refuse("%s: %s: thread %d waits at %s (%s:%d), thread %d at %s (%s:%d)", at, fault, waits->self.number,
           waits->what, waits->file, waits->line, other->self.number, other->what, other->file, other->line);
}

static void fiber_main();

static fiber *fiber_for(block_state *b, const thread *t) {
    int i = t->self.number + b->rotation;
    fiber *f = &b->fibers[i < b->n ? i : i - b->n];
    if (!f->stack) fiber_make(f, fiber_main);
    return f;
}

/* Switches from the fiber of a waiting or ended thread to a runnable fiber. Returns when this fiber's thread
 * can continue, or, after an ended thread, when the fiber has a new thread. */
static void switch_to_runnable(worker *w, fiber *from, bool ended) {
    thread *next = pick(w);
    if (!next) refuse_deadlock(w);
    thread *before_it = w->running;
    w->running = next;
    emu_self = &next->self;
    if (next == before_it) return;
    if (!next->on) {
        bool same = ended && !(w->own_fibers);
        next->on = same ? from : fiber_for(w->block, next);
        if (same) return;
    }
    fiber_switch(from, next->on);
}

static void thread_end(worker *w, thread *t) {
    block_state *b = w->block;
    if (t->n_copies) {
        char at[256];
        place_text(at, sizeof at, w);
        refuse("%s: thread %d ends and has never waited for its cp.async (%s:%d)", at, t->self.number,
               t->file, t->line);
    }
    t->ended = true;
    b->alive[t->self.number / 32] &= ~(1u << t->self.lane);
    before(&w->end);
    if (++b->n_ended == b->n)
        fiber_switch(t->on, &w->main);
    else
        switch_to_runnable(w, t->on, true);
}

static void name_fiber(const worker *w) {
#ifdef EMU_TSAN
    if (!w->own_fibers) return;
    char name[64];
    snprintf(name, sizeof name, "block %u.%u.%u thread %d of %s", w->where.block.x, w->where.block.y,
             w->where.block.z, w->running->self.number, w->now->name);
    __tsan_set_fiber_name(w->running->on->tsan, name);
#endif
    (void)w;
}

static void fiber_main() {
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        worker *w = own;
        after(&w->begin);
        name_fiber(w);
        w->now->call(w->now->arguments);
        thread_end(w, w->running);
    }
}

void emu_trap(const char *file, int line) {
    refuse("kernel %s: __trap at %s:%d", kernel_running(), file, line);
}

void emu_syncthreads(const char *file, int line) {
    worker *w = own;
    block_state *b = w->block;
    thread *t = w->running;
    w->meets = true;
    if (!b->n_here)
        b->file = file, b->line = line;
    else if (b->line != line || strcmp(b->file, file)) {
        char at[256];
        place_text(at, sizeof at, w);
        refuse("%s: divergent barrier: thread %d comes to __syncthreads at %s:%d, others wait at %s:%d", at,
               t->self.number, file, line, b->file, b->line);
    }
    char *order = &b->order[b->phase & 1];
    before(order);
    t->what = "__syncthreads", t->file = file, t->line = line;
    if (++b->n_here == b->n) {
        b->n_here = 0;
        b->phase++;
        for (int i = 0; i < b->n_warps; i++) make_ready(b, i, b->alive[i]);
    }
    switch_to_runnable(w, t->on, false);
    after(order);
}

__attribute__((noreturn)) static void refuse_meeting(const worker *w, const char *what, uint32_t mask,
                                                     const char *file, int line, const meeting *m) {
    char at[256];
    place_text(at, sizeof at, w);
    if (m)
        refuse("%s: thread %d comes to %s, mask %08x, at %s:%d, lanes of its warp wait at %s, mask %08x, at "
               "%s:%d",
               at, emu_self->number, what, mask, file, line, m->what, m->mask, m->file, m->line);
    refuse("%s: %s at %s:%d, mask %08x, names absent lanes; thread %d's warp has %08x", at, what, file, line,
           mask, emu_self->number, w->block->alive[emu_self->number / 32]);
}

/* Returns the table entry where lanes with the given mask wait, or a free entry. Parts of a warp may meet
 * separately while other lanes wait for the whole warp. */
static meeting *meeting_of(block_state *b, int warp, uint32_t mask) {
    meeting *all = b->meetings[warp], *m = &all[__builtin_ctz(mask)];
    if (!b->n_meetings[warp] || (m->here && m->mask == mask)) return m;
    for (int i = 0; i < 32; i++)
        if (all[i].here && all[i].mask == mask) return &all[i];
    for (int i = 0; m->here; i++) m = &all[i];
    return m;
}

void warp_meet(uint32_t mask, warp_operation *operation, const char *what, void *operand, const char *file,
               int line) {
    worker *w = own;
    block_state *b = w->block;
    thread *t = w->running;
    int warp = t->self.number / 32, lane = t->self.lane;
    w->meets = true;
    if (!(mask >> lane & 1) || mask & ~b->alive[warp]) refuse_meeting(w, what, mask, file, line, nullptr);
    meeting *m = meeting_of(b, warp, mask);
    if (!m->here) {
        m->mask = mask, m->operation = operation, m->what = what, m->file = file, m->line = line;
        b->n_meetings[warp]++;
    } else if (m->operation != operation)
        refuse_meeting(w, what, mask, file, line, m);
    m->here |= 1u << lane;
    m->operands[lane] = operand;
    char *order = &m->order[m->phase & 1];
    if (!operation) before(order);
    t->what = what, t->file = file, t->line = line;
    if (m->here == mask) {
        if (operation) operation(m->operands, mask);
        m->here = 0;
        m->phase++;
        b->n_meetings[warp]--;
        make_ready(b, warp, mask);
    }
    switch_to_runnable(w, t->on, false);
    if (!operation) after(order);
}

/* __syncwarp orders memory for ThreadSanitizer; other warp operations only exchange values. */
void emu_syncwarp(uint32_t mask, const char *file, int line) {
    warp_meet(mask, nullptr, "__syncwarp", nullptr, file, line);
}

void emu_misaligned(const char *what, const void *address, const char *file, int line) {
    refuse("kernel %s: misaligned address %p for %s at %s:%d", kernel_running(), address, what, file, line);
}

static void block_shape(block_state *b, dim3 shape) {
    b->n = (int)(shape.x * shape.y * shape.z);
    b->n_warps = (b->n + 31) / 32;
    for (int i = 0; i < b->n; i++) {
        thread *t = &b->threads[i];
        unsigned u = (unsigned)i;
        t->self.index = uint3{u % shape.x, u / shape.x % shape.y, u / shape.x / shape.y};
        t->self.number = i;
        t->self.lane = i % 32;
    }
}

static void block_run(worker *w, uint64_t i_block) {
    block_state *b = w->block = w->sets[w->n_blocks % SETS];
    b->rotation = (int)((w->n_blocks / SETS * 37) % (uint64_t)b->n);
    b->n_ended = b->n_here = 0;
    for (int i = 0; i < b->n; i++) {
        thread *t = &b->threads[i];
        t->on = nullptr;
        t->ended = false;
        t->n_copies = t->group = t->first_copy = 0;
    }
    for (int i = 0; i < b->n_warps; i++) {
        int lanes = b->n - 32 * i;
        b->alive[i] = lanes >= 32 ? 0xFFFFFFFFu : (1u << lanes) - 1;
        make_ready(b, i, b->alive[i]);
    }
    w->own_fibers = WITH_TSAN && (w->meets || i_block < OWN_FIBERS);
    if (w->n_blocks % SHARED_SLOTS == 0) after(&w->end), before(&w->begin);
    /* TSan orders a fiber after its creator, so fibers are created before any thread starts. */
    if (w->own_fibers)
        for (int i = 0; i < b->n; i++)
            if (!b->fibers[i].stack) fiber_make(&b->fibers[i], fiber_main);
    thread *first = pick(w);
    w->running = first;
    emu_self = &first->self;
    first->on = fiber_for(b, first);
    fiber_switch(&w->main, first->on);
    if (emu_counts_accesses) accesses_of_block();
    shared_forget(w);
    w->n_blocks++;
}

void worker_run(worker *w, const launch *l) {
    own = w;
    w->now = l;
    w->random = (now.seed + 1) * 0x9E3779B97F4A7C15ull ^ (w->n_blocks + 1) * 0xD1B54A32D192ED03ull;
    if (!w->random) w->random = 1;
    w->meets = false;
    w->where.block_dim = l->block;
    w->where.grid_dim = l->grid;
    emu_where = &w->where;
    for (int i = 0; i < SETS; i++) block_shape(w->sets[i], l->block);
    before(&w->begin);
    uint64_t i_block = 0;
    for (unsigned z = 0; z < l->grid.z; z++)
        for (unsigned y = 0; y < l->grid.y; y++)
            for (unsigned x = 0; x < l->grid.x; x++) {
                w->where.block = uint3{x, y, z};
                block_run(w, i_block++);
            }
    after(&w->end);
    w->now = nullptr;
}

static void *pages(size_t bytes) {
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) refuse("no memory for a stream's threads");
    return memory;
}

/* SIGSEGV handler without sanitizers: reports an unmapped address or a stack overflow in a kernel. */
static void segment_fault(int, siginfo_t *info, void *) {
    if (own && own->now)
        refuse("kernel %s, block (%u, %u, %u), thread %d: address %p is not mapped", own->now->name,
               own->where.block.x, own->where.block.y, own->where.block.z, emu_self->number, info->si_addr);
    /* an access outside of kernels is repeated with the default handler of SIGSEGV */
    signal(SIGSEGV, SIG_DFL);
}

static void install_fault_handler(worker *w) {
    if (WITH_TSAN || WITH_ASAN) return;
    stack_t stack = {w->fault_stack, 0, sizeof w->fault_stack};
    sigaltstack(&stack, nullptr);
    struct sigaction there, ours = {};
    if (sigaction(SIGSEGV, nullptr, &there) || there.sa_handler != SIG_DFL) return;
    ours.sa_sigaction = segment_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &ours, nullptr);
}

/* Thread block states of ended streams, kept for reuse: creating one costs more than most kernels. */
static quiet_lock free_lock;
static block_state *free_blocks;

static block_state *block_take() {
    lock(&free_lock);
    block_state *b = free_blocks;
    if (b) free_blocks = b->next_free;
    unlock(&free_lock);
    return b ? b : (block_state *)pages(sizeof(block_state));
}

static void block_give(block_state *b) {
    lock(&free_lock);
    b->next_free = free_blocks;
    free_blocks = b;
    unlock(&free_lock);
}

worker *worker_create() {
    worker *w = (worker *)pages(sizeof(worker));
    install_fault_handler(w);
    for (int i = 0; i < SETS; i++) w->sets[i] = block_take();
    w->shared = (char *)pages((size_t)SHARED_SLOTS * SHARED_SLOT);
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes)) refuse("pthread_getattr_np");
    pthread_attr_getstack(&attributes, &w->main.stack, &w->main.stack_bytes);
    pthread_attr_destroy(&attributes);
#ifdef EMU_TSAN
    w->main.tsan = __tsan_get_current_fiber();
#endif
    return w;
}

void worker_destroy(worker *w) {
    for (int i = 0; i < SETS; i++) block_give(w->sets[i]);
    munmap(w->shared, (size_t)SHARED_SLOTS * SHARED_SLOT);
    munmap(w, sizeof *w);
}
