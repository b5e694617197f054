/* Small CUDA programs for testing the emulator: correct programs, and programs with one fault each. */
#ifndef SLUICE_EMU_SELF_CASES_H
#define SLUICE_EMU_SELF_CASES_H

#ifdef __cplusplus
extern "C" {
#endif

enum { CASE_RIGHT = 0, CASE_WRONG = 3, CASE_UNKNOWN = 4 };

/* Returns CASE_RIGHT or CASE_WRONG, unless the emulator or a sanitizer ends the process. */
int case_run(const char *name);

#ifdef __cplusplus
}
#endif

#endif
