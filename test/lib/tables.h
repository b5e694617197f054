/* The tests' table of recipes (tables.c). */
#ifndef SLUICE_TEST_TABLES_H
#define SLUICE_TEST_TABLES_H

/* From now on input images are resized to the published areas, as models of published sizes require. */
void tables_use_published_areas(void);

#endif
