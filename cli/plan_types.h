/* plan --types: compares weight types, as a table below the plan or as `types` in its JSON. */
#ifndef SLUICE_CLI_PLAN_TYPES_H
#define SLUICE_CLI_PLAN_TYPES_H

#include "cli/generation.h"

#include <stdio.h>

/* USAGE if --types is combined with --type, --plan or a latent, which fix the type. */
int plan_types_check(const struct args *args, struct sluice_error *e);
/* Plans the request with transformer and text encoders in several types, and adds to the plan's JSON:
 * "types": [{"type", "bytes" (of these weights), "seconds", "fits", "convert": {"bytes", "seconds",
 * "fits"}}]. Outer values: conversion while reading; "convert": files converted beforehand. The first
 * entry, with type and convert null, is for the types in the files. Replaces *json. */
int plan_types_add(struct generation *generation, char **json, struct sluice_error *e);
void plan_types_print(FILE *to, const char *json);

#endif
