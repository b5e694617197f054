/* Signal handlers: see interrupt.h. The handler calls only async-signal-safe functions. It acts on the main
 * thread only, so that the session cannot be closed at the same time. */
#include "cli/interrupt.h"

#include "cli/fail.h"
#include "cli/outfile.h"
#include "cli/messages.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int n_signals;
static atomic_bool graceful;
static sluice_session *_Atomic watched;

static void act_on_signal(void) {
    int before = atomic_fetch_add(&n_signals, 1);
    sluice_session *session = atomic_load(&watched);
    if (session) sluice_cancel(session);
    if (before == 0 && atomic_load(&graceful)) return;
    outfile_unlink_in_handler();
    /* If the final error line has already been printed, main exits with its own code. */
    if (message_cancelled_in_handler()) _exit(130);
}

static void on_signal(int number) {
    int saved = errno;
    if (syscall(SYS_gettid) != getpid()) {
        syscall(SYS_tgkill, getpid(), getpid(), number);
    } else {
        act_on_signal();
    }
    errno = saved;
}

/* Stack of the signal handler. oneDNN's AVX2 matrix products use the stack pointer register for packed
 * operands: a handler on the normal stack would corrupt the heap (observed: "corrupted size vs. prev_size"
 * after a cancelled `bench ops`). */
static char handler_stack[64 << 10];

void interrupt_install(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGHUP);
    sigaltstack(&(stack_t){.ss_sp = handler_stack, .ss_size = sizeof handler_stack}, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* writing beyond the file size limit fails */
    sigaction(SIGTERM, &action, NULL);
    /* A SIGHUP that is ignored at program start (nohup) stays ignored. */
    sigaction(SIGHUP, NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
    /* SIGINT is handled even if it was ignored, as in background jobs of a shell: scripts use kill -INT. */
    sigaction(SIGINT, &action, NULL);
}

void interrupt_gracefully(void) {
    atomic_store(&graceful, true);
}

void interrupt_watch(sluice_session *session) {
    atomic_store(&watched, session);
}

bool interrupt_pending(void) {
    sluice_session *session = atomic_load(&watched);
    if (atomic_load(&n_signals) == 0) return false;
    if (session) sluice_cancel(session);
    return true;
}

int interrupt_error(struct sluice_error *error) {
    return fail(error, SLUICE_CANCELLED, "cancelled");
}
