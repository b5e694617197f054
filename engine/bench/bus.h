/* What a measured rate looks like: the name of the link that people would recognise. Pure functions. */
#ifndef SLUICE_BENCH_BUS_H
#define SLUICE_BENCH_BUS_H

/* A disk, by what several readers get of it with large pieces: "SATA SSD". Never NULL. */
const char *link_of_disk(double bytes_per_second);
/* The link between pinned host memory and a device, from host to device: "PCIe Gen3 x8 or Gen4 x4". Never
 * NULL. */
const char *link_of_pinned(double bytes_per_second);

#endif
