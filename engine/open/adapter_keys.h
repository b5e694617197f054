/* Parses keys of adapter files: the end of a key gives the tensor's role, the rest is the module's name. */
#ifndef SLUICE_OPEN_ADAPTER_KEYS_H
#define SLUICE_OPEN_ADAPTER_KEYS_H

#include "engine/open/adapter_file.h"

struct adapter_key {
    int name_bytes; /* length of the module's name at the beginning of the key */
    enum adapter_role role;
    enum adapter_dialect dialect;
    const char *refused; /* name of the unsupported kind of adapter; NULL: supported, role is set */
};

/* Parses a key. False: not a key of an adapter. */
bool adapter_key_read(const char *key, struct adapter_key *out);

/* Writes candidate i (from 0) for the module's name in the model to out, LOADER_NAME_MAX + 1 bytes. Candidate
 * 0 is the name in the file; old diffusers names have further candidates. False: no more
 * candidates. */
bool adapter_module_name(const struct adapter_module *module, int i, char *out);

#endif
