/* The tests' table of recipes (tables.c). */
#ifndef SLUICE_TEST_TABLES_H
#define SLUICE_TEST_TABLES_H

/* Restores the published areas for the resizing of input images, for the rest of the process. Models of
 * published sizes need them. */
void tables_use_published_areas(void);

#endif
