/* A temporary folder for the program, removed at exit. */
#ifndef SLUICE_TEST_TEMPORARY_TEMPORARY_FOLDER_H
#define SLUICE_TEST_TEMPORARY_TEMPORARY_FOLDER_H

extern char temporary[64];

void temporary_make_in(const char *parent);

void temporary_make(void);

/* Copies a model folder to temporary/NAME, to be damaged. Returns the path, valid until the next call. */
const char *copy_model_folder(const char *folder, const char *name);

#endif
