/* Names of links (disk, PCIe) that match a measured rate. */
#ifndef SLUICE_BENCH_BUS_H
#define SLUICE_BENCH_BUS_H

/* Returns the kind of disk with this rate (several readers, large pieces), such as "SATA SSD". Never NULL. */
const char *link_of_disk(double bytes_per_second);
/* Returns the PCIe link with this rate from pinned host memory, such as "PCIe Gen3 x8 or Gen4 x4". Never
 * NULL. */
const char *link_of_pinned(double bytes_per_second);

#endif
