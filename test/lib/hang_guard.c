#include "test/lib/hang_guard.h"

#include <sys/time.h>
#include <unistd.h>

void hang_guard(int processor_seconds, int seconds) {
    struct itimerval timer = {.it_value.tv_sec = processor_seconds};
    setitimer(ITIMER_PROF, &timer, NULL);
    alarm((unsigned)seconds);
}
