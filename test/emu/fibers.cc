/* Switches between fibers in assembly: ucontext makes a system call per switch and is ten times slower. */
#include "fibers.h"

#include <sys/mman.h>

enum { STACK = 256 << 10, GUARD = 4096 };

asm(".text\n"
    ".globl emu_switch\n"
    ".hidden emu_switch\n"
    ".type emu_switch, @function\n"
    "emu_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size emu_switch, . - emu_switch\n");

void fiber_make(fiber *f, void (*run)()) {
    char *memory = (char *)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) refuse("no memory for the stack of a thread");
    mprotect(memory, GUARD, PROT_NONE);
    f->stack = memory + GUARD;
    f->stack_bytes = STACK;
    void **top = (void **)(memory + GUARD + STACK);
    *--top = nullptr; /* return address of `run`, which also aligns run's stack frame */
    *--top = (void *)run;
    f->stack_pointer = top - 6;
#ifdef EMU_TSAN
    f->tsan = __tsan_create_fiber(1);
#endif
}
