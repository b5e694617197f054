/* How keys of adapters' files are written: which module a tensor is for and what it is to it, both told by
 * how its name ends. */
#ifndef SLUICE_OPEN_ADAPTER_KEYS_H
#define SLUICE_OPEN_ADAPTER_KEYS_H

#include "engine/open/adapter_file.h"

struct adapter_key {
    int name_bytes; /* of the module's name, which the key begins with */
    enum adapter_role role;
    enum adapter_dialect dialect;
    const char *refused; /* what it is a part of that nothing here knows; NULL: role says what it is */
};

/* False: it is no key of an adapter's. */
bool adapter_key_read(const char *key, struct adapter_key *out);

/* Names that the module may have in the model: its own, or what old versions of diffusers meant by it. i
 * counts from 0; false: there are no more. out has LOADER_NAME_MAX + 1 bytes. */
bool adapter_module_name(const struct adapter_module *module, int i, char *out);

#endif
