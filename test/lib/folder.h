/* A temporary folder of the program's own, which goes when it ends. */
#ifndef SLUICE_TEST_FOLDER_H
#define SLUICE_TEST_FOLDER_H

extern char temporary[64];

void temporary_make_in(const char *parent);

void temporary_make(void);

/* A copy of a model to spoil. */
const char *copy_model_folder(const char *folder, const char *name);

#endif
