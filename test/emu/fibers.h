/* Fibers: stacks and switches between them. The emulated CUDA threads run on fibers. */
#ifndef SLUICE_EMU_FIBERS_H
#define SLUICE_EMU_FIBERS_H

#include "internal.h"

struct fiber {
    void *stack_pointer;
    void *stack; /* stack memory; NULL: the fiber was never used */
    size_t stack_bytes;
    void *tsan, *fake_stack;
};

/* Creates a fiber. The first switch to the fiber starts run, which never returns. TSan orders the fiber after
 * the creating thread. */
void fiber_make(fiber *f, void (*run)());

extern "C" void emu_switch(void **from, void *to);
/* Switches from the running fiber to a waiting or new fiber. */
static inline void fiber_switch(fiber *from, fiber *to) {
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

#endif
