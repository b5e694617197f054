/* Names of links: see links.h. Limits lie halfway, by ratio, between what neighbours reach in practice, so
 * that 15 % of bad luck does not change a name. */
#include "engine/bench/links.h"

#include <stddef.h>

struct link {
    double below_gbytes; /* a rate under this is one of these */
    const char *name;
};

/* Hard disks 0.1 to 0.28, SATA ends at 0.55, NVMe drives at 3.5, 7 and 14 GB/s by PCIe generation. Faster
 * than that is memory. */
static const struct link disks[] = {{0.3, "hard disk"}, {0.7, "SATA SSD"}, {4.2, "NVMe Gen3"},
                                    {8, "NVMe Gen4"},   {16, "NVMe Gen5"}, {1e300, "page cache"}};

/* Reached in practice with pinned memory: Gen3 x4 3.1, x8 6.2, x16 12.4; each generation doubles it, so a
 * rate alone cannot tell x16 of one from x8 of the next. */
static const struct link pinned[] = {{1.1, "PCIe Gen3 x1 or narrower"},
                                     {2.2, "PCIe Gen3 x2"},
                                     {4.4, "PCIe Gen3 x4"},
                                     {9, "PCIe Gen3 x8 or Gen4 x4"},
                                     {17.5, "PCIe Gen3 x16 or Gen4 x8"},
                                     {36, "PCIe Gen4 x16 or Gen5 x8"},
                                     {80, "PCIe Gen5 x16"},
                                     {1e300, "a link wider than PCIe"}};

static const char *name_of(const struct link *link, double bytes_per_second) {
    while (!(bytes_per_second / 1e9 < link->below_gbytes) && link->below_gbytes < 1e300) link++;
    return link->name;
}

const char *link_of_disk(double bytes_per_second) {
    return name_of(disks, bytes_per_second);
}

const char *link_of_pinned(double bytes_per_second) {
    return name_of(pinned, bytes_per_second);
}
