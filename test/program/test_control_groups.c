/* Memory and CPU limits of Linux control groups (cgroups), read from simulated root folders: version 1,
 * version 2, nested groups, both versions at once, containers, damaged files. */
#include "engine/base/machine_limits.h"
#include "engine/machine/machine.h"
#include "test/lib/check.h"
#include "test/lib/temporary_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define GIB ((uint64_t)1 << 30)
#define V1  "sys/fs/cgroup/memory"
#define V2  "sys/fs/cgroup"
#define CPU "sys/fs/cgroup/cpu"

enum { FILES_MAX = 12, NONE_LEFT = -1 };

static const struct machine {
    const char *label;
    struct {
        int memory, left;  /* memory limit and remaining memory in MiB; 0: no limit */
        double processors; /* 0: no limit */
    } expected;
    struct {
        const char *path, *text;
    } files[FILES_MAX];
} machines[] = {
    {"no control groups", {0, 0, 0}, {{NULL, NULL}}},
    {"limit of the own group, version 2",
     {1024, 924, 1.5},
     {{"proc/self/cgroup", "0::/a\n"},
      {V2 "/a/memory.max", "1073741824\n"},
      {V2 "/a/memory.current", "209715200\n"},
      {V2 "/a/memory.stat", "anon 1\ninactive_file 52428800\nactive_file 52428800\n"},
      {V2 "/a/cpu.max", "150000 100000\n"}}},
    {"limits of parent groups, version 2",
     {512, 412, 0.5},
     {{"proc/self/cgroup", "0::/a/b/c\n"},
      {V2 "/a/memory.max", "536870912\n"},
      {V2 "/a/memory.current", "104857600\n"},
      {V2 "/a/b/memory.max", "max\n"},
      {V2 "/a/b/c/memory.max", "1073741824\n"},
      {V2 "/a/b/c/memory.current", "1024\n"},
      {V2 "/a/b/c/cpu.max", "max 100000\n"},
      {V2 "/a/b/cpu.max", "50000 100000\n"},
      {V2 "/a/cpu.max", "200000 100000\n"}}},
    {"the inner group has the lowest limit",
     {256, NONE_LEFT, 2.5},
     {{"proc/self/cgroup", "0::/a/b\n"},
      {V2 "/a/memory.max", "2147483648\n"},
      {V2 "/a/b/memory.max", "268435456\n"},
      {V2 "/a/b/memory.current", "268435456\n"},
      {V2 "/a/cpu.max", "300000 100000\n"},
      {V2 "/a/b/cpu.max", "250000 100000\n"}}},
    {"limit of another group",
     {0, 0, 0},
     {{"proc/self/cgroup", "0::/a\n"}, {V2 "/b/memory.max", "4096\n"}, {V2 "/b/cpu.max", "1 100000\n"}}},
    {"a container: limits in the root, path not visible",
     {768, 767, 1},
     {{"proc/self/cgroup", "0::/docker/0123\n"},
      {V2 "/memory.max", "805306368\n"},
      {V2 "/memory.current", "1048576\n"},
      {V2 "/cpu.max", "100000 100000\n"}}},
    {"no /proc/self/cgroup",
     {768, 0, 1.2},
     {{V2 "/memory.max", "805306368\n"}, {V2 "/cpu.max", "120000 100000\n"}}},
    {"version 1, nested",
     {614, 519, 1.5},
     {{"proc/self/cgroup", "9:name=systemd:/x\n5:cpu,cpuacct:/q/r\n4:memory:/m/n\n0::/\n"},
      {V1 "/memory.limit_in_bytes", "9223372036854771712\n"},
      {V1 "/m/memory.limit_in_bytes", "644245094\n"},
      {V1 "/m/memory.usage_in_bytes", "110000000\n"},
      {V1 "/m/memory.stat", "inactive_file 1\ntotal_inactive_file 4000000\ntotal_active_file 6000000\n"},
      {V1 "/m/n/memory.limit_in_bytes", "1073741824\n"},
      {CPU "/q/cpu.cfs_quota_us", "75000\n"},
      {CPU "/q/cpu.cfs_period_us", "50000\n"},
      {CPU "/q/r/cpu.cfs_quota_us", "-1\n"},
      {CPU "/q/r/cpu.cfs_period_us", "100000\n"}}},
    {"version 1, mount named cpu,cpuacct only",
     {0, 0, 0.2},
     {{"proc/self/cgroup", "5:cpu,cpuacct:/q\n"},
      {"sys/fs/cgroup/cpu,cpuacct/q/cpu.cfs_quota_us", "20000\n"},
      {"sys/fs/cgroup/cpu,cpuacct/q/cpu.cfs_period_us", "100000\n"}}},
    {"controllers whose names begin with cpu",
     {0, 0, 0},
     {{"proc/self/cgroup", "5:cpuset:/q\n4:cpuacct:/q\n"},
      {CPU "/q/cpu.cfs_quota_us", "20000\n"},
      {CPU "/q/cpu.cfs_period_us", "100000\n"}}},
    {"both versions",
     {512, 511, 4},
     {{"proc/self/cgroup", "4:memory:/m\n0::/u\n"},
      {V1 "/m/memory.limit_in_bytes", "1073741824\n"},
      {V1 "/m/memory.usage_in_bytes", "1048576\n"},
      {"sys/fs/cgroup/unified/u/memory.max", "536870912\n"},
      {"sys/fs/cgroup/unified/u/memory.current", "1048576\n"},
      {"sys/fs/cgroup/unified/u/cpu.max", "400000 100000\n"}}},
    {"invalid files",
     {0, 0, 0},
     {{"proc/self/cgroup", "0\n::::\n\n0::/a"},
      {V2 "/a/memory.max", ""},
      {V2 "/a/memory.current", "many"},
      {V2 "/a/cpu.max", "100000"},
      {V2 "/memory.max", "-5"},
      {V2 "/cpu.max", "0 0"}}},
};
enum { MACHINES = sizeof machines / sizeof *machines };

static bool is_near(uint64_t bytes, int mebibytes) {
    if (mebibytes == NONE_LEFT) return bytes == 0;
    return mebibytes ? bytes >> 20 == (uint64_t)mebibytes : bytes == UINT64_MAX;
}

/* The simulated machine has 2 GiB, of which 1.5 GiB are free. */
static void test_machine(const struct machine *m, int i) {
    const char *root = format_text("%s/%d", temporary, i);
    write_text_below(root, "proc/meminfo",
                     "MemTotal:  2097152 kB\nMemFree: 1 kB\nMemAvailable:  1572864 kB\n");
    for (int k = 0; k < FILES_MAX && m->files[k].path; k++)
        write_text_below(root, m->files[k].path, m->files[k].text);
    uint64_t memory = control_groups_memory(root), left = control_groups_memory_left(root);
    double processors = control_groups_processors(root),
           wanted = m->expected.processors ? m->expected.processors : HUGE_VAL;
    check(is_near(memory, m->expected.memory), "%s: a limit of %llu bytes", m->label,
          (unsigned long long)memory);
    check(is_near(left, m->expected.left), "%s: %llu bytes left", m->label, (unsigned long long)left);
    check(processors == wanted, "%s: %g processors", m->label, processors);
    uint64_t whole = machine_memory_bytes(root), free = free_memory_bytes(root);
    check(whole == (memory < 2 * GIB ? memory : 2 * GIB), "%s: a machine of %llu bytes", m->label,
          (unsigned long long)whole);
    check(free == (m->expected.left == NONE_LEFT ? 1
                   : left < 3 * GIB / 2          ? left
                                                 : 3 * GIB / 2),
          "%s: %llu bytes free", m->label, (unsigned long long)free);
    int cores = machine_cores(), threads = machine_threads(root);
    check(threads == (wanted < cores ? (int)ceil(wanted) : cores) && threads >= 1, "%s: %d threads", m->label,
          threads);
}

/* Only a balloon that reports free pages (bit 5 of its features) and Hyper-V's balloon take free pages. */
static void test_free_pages(void) {
    static const struct {
        const char *label, *device, *features;
        bool taken;
    } balloons[] = {
        {"reporting", "0x0005\n", "01100101000000000000\n", true},
        {"balloon without reporting", "0x0005\n", "01100001000000000000\n", false},
        {"bit 5 of a disk", "0x0002\n", "11111111000000000000\n", false},
        {"truncated features", "0x0005\n", "011", false},
    };
    for (int i = 0; i < (int)(sizeof balloons / sizeof *balloons); i++) {
        const char *root = format_text("%s/balloon%d", temporary, i);
        write_text_below(root, "sys/bus/virtio/devices/virtio7/device", balloons[i].device);
        write_text_below(root, "sys/bus/virtio/devices/virtio7/features", balloons[i].features);
        check(host_takes_free_pages(root) == balloons[i].taken, "%s: free pages taken is wrong",
              balloons[i].label);
    }
    const char *root = format_text("%s/hyperv", temporary);
    write_text_below(root, "sys/bus/vmbus/drivers/hv_balloon/uevent", "");
    check(host_takes_free_pages(root), "Hyper-V: free pages are not taken");
    check(!host_takes_free_pages("/nowhere"), "no devices: free pages are taken");
}

int main(void) {
    temporary_make();
    test_free_pages();
    for (int i = 0; i < MACHINES; i++) test_machine(&machines[i], i);
    check(free_memory_bytes("/nowhere") == 0 && machine_memory_bytes("/nowhere") == 0,
          "memory of a missing root is not 0");
    return finish();
}
