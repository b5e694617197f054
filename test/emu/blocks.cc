/* Runs a kernel: its blocks one after the other, each thread of a block a fiber.
 *
 * A fiber runs until it must wait for others: at a barrier, or where the lanes of a warp meet. Then it goes
 * straight to another that can go on, in the order that was asked for. A fiber whose thread has ended takes
 * the next thread that has not begun, so a kernel without barriers needs one fiber. Under TSan that would
 * order threads that nothing orders: there each has its own, and two sets take turns so that neighbouring
 * blocks share none.
 *
 * When nobody can go on, a barrier is divergent: the message says who waits where. */
#include "internal.h"
#include "ptx_emulated.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    STACK = 256 << 10,
    GUARD = 4096,
    SHARED_MOST = 99 << 10, /* what sm_86, 89 and 120 give a block */
    SHARED_USUAL = 48 << 10,
    SHARED_SLOTS = WITH_TSAN ? 64 : 1, /* blocks until shared memory is used again */
    SHARED_SLOT = 128 << 10,
    ARRAYS = 32,
    ASYNC = 128,
    SETS = WITH_TSAN ? 2 : 1,
    OWN_FIBERS = WITH_TSAN ? 8 : 0 /* so many blocks of each launch have a fiber for each thread anyway */
};

struct fiber {
    void *stack_pointer;
    void *stack; /* NULL: never used */
    size_t stack_bytes;
    void *tsan, *fake_stack;
};

struct async_copy {
    void *to;
    uint4 value;
    int group;
};

struct thread {
    emu_thread self; /* first */
    fiber *on;       /* NULL: has not begun */
    const char *what, *file;
    int line; /* where it waits */
    bool ended;
    int n_copies, group, first_copy;
};

struct meeting {
    uint32_t mask, here, phase;
    warp_operation *operation;
    const char *what, *file;
    int line;
    void *operands[32];
    char order[2];
};

/* The threads of a block, and the fibers they run on. */
struct block_state {
    thread threads[THREADS];
    fiber fibers[THREADS];
    async_copy copies[THREADS][ASYNC]; /* a ring each */
    meeting meetings[WARPS][32];
    int n_meetings[WARPS]; /* of those, the ones that somebody waits at */
    uint32_t ready[WARPS], ready_warps, alive[WARPS];
    int n_warps;
    int n, n_ended, n_here, rotation;
    uint32_t phase;
    char order[2];
    const char *file;
    int line;
};

struct shared_array {
    const void *site;
    void *memory;
    size_t bytes;
};

struct worker {
    emu_place where; /* of the block that runs */
    const launch *now;
    block_state *sets[SETS], *block;
    thread *running;
    fiber main;
    uint64_t random, n_blocks;
    bool meets, own_fibers;
    char *shared; /* SHARED_SLOTS of them */
    size_t shared_used;
    shared_array arrays[ARRAYS];
    int n_arrays;
    char begin, end; /* places of order: of the blocks of a launch */
    char fault_stack[64 << 10];
};

EMU_THREAD_LOCAL const emu_thread *emu_self;
EMU_THREAD_LOCAL const emu_place *emu_where;
static EMU_THREAD_LOCAL worker *own;

const char *kernel_running() {
    return own && own->now ? own->now->name : "";
}

/* ---- switching ---- */

extern "C" void emu_switch(void **from, void *to);
asm(".text\n"
    ".type emu_switch, @function\n"
    "emu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emu_switch, . - emu_switch\n");

static void fiber_main();

static void fiber_make(fiber *f) {
    char *memory = (char *)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) refuse("no memory for the stack of a thread");
    mprotect(memory, GUARD, PROT_NONE);
    f->stack = memory + GUARD;
    f->stack_bytes = STACK;
    void **top = (void **)(memory + GUARD + STACK);
    *--top = nullptr; /* where fiber_main would return to, and what aligns its frame */
    *--top = (void *)fiber_main;
    f->stack_pointer = top - 6;
#ifdef EMU_TSAN
    f->tsan = __tsan_create_fiber(1);
#endif
}

static void fiber_free(fiber *f) {
    if (!f->stack) return;
#ifdef EMU_TSAN
    __tsan_destroy_fiber(f->tsan);
#endif
    __asan_unpoison_memory_region(f->stack, f->stack_bytes);
    munmap((char *)f->stack - GUARD, STACK + GUARD);
}

static inline void fiber_switch(fiber *from, fiber *to) {
    if (!to->stack) fiber_make(to);
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 1);
#endif
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    emu_switch(&from->stack_pointer, to->stack_pointer);
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

/* ---- who goes on ---- */

static inline void make_ready(block_state *b, int warp, uint32_t lanes) {
    b->ready[warp] |= lanes;
    b->ready_warps |= 1u << warp;
}

/* One of the set bits, by the order in force. */
static inline int one_of(uint32_t bits, uint64_t *random) {
    if (now.order == EMU_FORWARD) return __builtin_ctz(bits);
    if (now.order == EMU_REVERSE) return 31 - __builtin_clz(bits);
    int by = (int)(random_next(random) >> 59);
    uint32_t turned = bits >> by | bits << (31 & (32 - by));
    return (__builtin_ctz(turned) + by) & 31;
}

static thread *pick(worker *w) {
    block_state *b = w->block;
    if (!b->ready_warps) return nullptr;
    int warp = one_of(b->ready_warps, &w->random), lane = one_of(b->ready[warp], &w->random);
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

static fiber *fiber_for(block_state *b, const thread *t) {
    int i = t->self.number + b->rotation;
    return &b->fibers[i < b->n ? i : i - b->n];
}

/* From the fiber of a thread that waits, or (last) whose thread has ended, to whoever can go on. Returns when
 * this fiber's thread can; for an ended one when the fiber has a new thread. */
static void go_on(worker *w, fiber *from, bool ended) {
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
        go_on(w, t->on, true);
}

/* For TSan's reports. */
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

/* ---- barriers ---- */

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
    go_on(w, t->on, false);
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

/* Where lanes with this mask wait, or a free place. Parts of a warp may meet apart, and some of its lanes may
 * already wait for all. */
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
    go_on(w, t->on, false);
    if (!operation) after(order);
}

/* Other warp operations exchange values and promise no order of memory. */
void emu_syncwarp(uint32_t mask, const char *file, int line) {
    warp_meet(mask, nullptr, "__syncwarp", nullptr, file, line);
}

/* ---- copies that a thread waits for ---- */

void emu_async_copy(void *to, uint4 value, const char *file, int line) {
    thread *t = own->running;
    if (t->n_copies == ASYNC)
        refuse("kernel %s: more than %d copies of a thread on their way", own->now->name, ASYNC);
    async_copy *c = &own->block->copies[t->self.number][(t->first_copy + t->n_copies++) % ASYNC];
    c->to = to;
    c->value = value;
    c->group = t->group;
    t->file = file, t->line = line;
}

void emu_async_commit(void) {
    own->running->group++;
}

bool emu_async_arrived(int n, void **to, uint4 *value) {
    thread *t = own->running;
    async_copy *c = &own->block->copies[t->self.number][t->first_copy];
    if (!t->n_copies || c->group >= t->group - n) return false;
    *to = c->to;
    *value = c->value;
    t->first_copy = (t->first_copy + 1) % ASYNC;
    t->n_copies--;
    return true;
}

void emu_misaligned(const char *what, const void *address, const char *file, int line) {
    refuse("kernel %s: misaligned address %p for %s at %s:%d", kernel_running(), address, what, file, line);
}

/* ---- shared memory ---- */

static void *shared_take(worker *w, const void *site, size_t bytes, const char *name) {
    if (w->n_arrays == ARRAYS) refuse("kernel %s: more than %d shared arrays", w->now->name, ARRAYS);
    size_t used = (w->shared_used + 15) / 16 * 16;
    size_t limit = shared_limit(w->now->function) > SHARED_USUAL ? SHARED_MOST : SHARED_USUAL;
    if (used + bytes > limit)
        refuse("kernel %s: shared array %s makes %zu bytes of shared memory; the kernel may have %zu",
               w->now->name, name, used + bytes, limit);
    shared_array *a = &w->arrays[w->n_arrays++];
    a->site = site;
    a->bytes = bytes;
    w->shared_used = used + bytes;
    if (WITH_ASAN) {
        /* Exact, so that its end is guarded. */
        if (posix_memalign(&a->memory, 16, bytes ? bytes : 1)) refuse("no memory for shared arrays");
    } else
        a->memory = w->shared + w->n_blocks % SHARED_SLOTS * SHARED_SLOT + used;
    quiet_fill(a->memory, 0xFF, bytes);
    return a->memory;
}

void *emu_shared_array(const void *site, size_t bytes, const char *name) {
    worker *w = own;
    w->meets = true;
    for (int i = 0; i < w->n_arrays; i++)
        if (w->arrays[i].site == site) return w->arrays[i].memory;
    return shared_take(w, site, bytes, name);
}

void *emu_shared_dynamic(void) {
    static char site;
    return emu_shared_array(&site, own->now->shared_bytes, "SMEM_DYN");
}

static void shared_forget(worker *w) {
    if (WITH_ASAN)
        for (int i = 0; i < w->n_arrays; i++) free(w->arrays[i].memory);
    w->n_arrays = 0;
    w->shared_used = 0;
}

/* ---- blocks ---- */

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
    /* A fiber comes after whoever makes it: here, where no thread of the block has begun. */
    if (w->own_fibers)
        for (int i = 0; i < b->n; i++)
            if (!b->fibers[i].stack) fiber_make(&b->fibers[i]);
    thread *first = pick(w);
    w->running = first;
    emu_self = &first->self;
    first->on = fiber_for(b, first);
    fiber_switch(&w->main, first->on);
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

/* An address that is nobody's, or a stack that has overflowed: the sanitizers report that themselves. */
static void segment_fault(int, siginfo_t *info, void *) {
    if (own && own->now)
        refuse("kernel %s, block (%u, %u, %u), thread %d: address %p is not mapped", own->now->name,
               own->where.block.x, own->where.block.y, own->where.block.z, emu_self->number, info->si_addr);
    /* Not ours: the same again, as if this handler were not here. */
    signal(SIGSEGV, SIG_DFL);
}

static void watch_addresses(worker *w) {
    if (WITH_TSAN || WITH_ASAN) return;
    stack_t stack = {w->fault_stack, 0, sizeof w->fault_stack};
    sigaltstack(&stack, nullptr);
    struct sigaction there, ours = {};
    if (sigaction(SIGSEGV, nullptr, &there) || there.sa_handler != SIG_DFL) return;
    ours.sa_sigaction = segment_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &ours, nullptr);
}

worker *worker_create() {
    worker *w = (worker *)pages(sizeof(worker));
    watch_addresses(w);
    for (int i = 0; i < SETS; i++) w->sets[i] = (block_state *)pages(sizeof(block_state));
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
    for (int i = 0; i < SETS; i++) {
        for (int j = 0; j < THREADS; j++) fiber_free(&w->sets[i]->fibers[j]);
        munmap(w->sets[i], sizeof(block_state));
    }
    munmap(w->shared, (size_t)SHARED_SLOTS * SHARED_SLOT);
    munmap(w, sizeof *w);
}
