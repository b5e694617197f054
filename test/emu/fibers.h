/* A stack of its own, and going from one to another: what a thread of a kernel runs on. */
#ifndef SLUICE_EMU_FIBERS_H
#define SLUICE_EMU_FIBERS_H

#include "internal.h"

struct fiber {
    void *stack_pointer;
    void *stack; /* NULL: never used */
    size_t stack_bytes;
    void *tsan, *fake_stack;
};

/* Its first switch begins run, which never returns. Under TSan it comes after whoever makes it. */
void fiber_make(fiber *f, void (*run)());

extern "C" void emu_switch(void **from, void *to);
/* From the one that runs to one that waits or has been made. */
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
