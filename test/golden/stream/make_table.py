"""Prints the expected results of `sluice-dev stream --clock timed`, test/golden/stream/table.csv, which test_stream reads.

    python3 test/golden/stream/make_table.py SIMULATOR.py > test/golden/stream/table.csv

SIMULATOR.py is an independent Python simulator of the streaming order that is not part of this repository. It has the
same timing model as Sluice. Sizes and times of blocks are rounded here as engine/bench/stream.c rounds them. "ours" is
the best of the simulator's own layouts in the same memory: a resident percentage and a ring of two of the largest
blocks, or fewer residents and a larger ring.
"""
import importlib.util
import sys

PAGE, FLOPS = 4096, 1e15


def block(size, seconds):
    columns = 16384 if size > 1e8 else 1024
    rows = int(size / 2 / columns + .5)
    tokens = max(1, int(seconds * FLOPS / (2 * rows * columns) + .5))
    return 2 * rows * columns, 2 * rows * columns * tokens / FLOPS


def shapes():
    layer = 61.3e12 / 32 / 32e12
    each = 74.3e12 / 57 / 115e12
    return {"zimage": [block(354e6, .95 * layer)] * 2 + [block(354e6, layer)] * 30,
            "flux": [block(680e6, each)] * 19 + [block(283.2e6, each)] * 38,
            "qwen_image": [block(680e6, 1.15 / 60)] * 60,
            "uniform": [block(300e6, .5 / 40)] * 40}


def want_of(blocks, percent):
    return (sum(b for b, _ in blocks) * percent + 99) // 100


def picked(sim, blocks, want, how):
    total = sum(b for b, _ in blocks)
    return sim.pick(blocks, max(0, want) / total * (1 + 1e-12), how)


def main():
    spec = importlib.util.spec_from_file_location("residency_sim", sys.argv[1])
    sim = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sim)
    print("blocks,layout,resident_percent,bus_gbytes_per_second,seconds,floor_seconds")
    for name, blocks in shapes().items():
        largest = max(b for b, _ in blocks)
        compute, total = sum(c for _, c in blocks), sum(b for b, _ in blocks)
        for bus in (12, 24, 56):
            for percent in (0, 20, 40, 60):
                want, two = want_of(blocks, percent), 2 * (-(-largest // PAGE) * PAGE)

                def row(layout, resident, seconds):
                    copies = (total - sum(blocks[i][0] for i in resident)) / (bus * 1e9)
                    print(f"{name},{layout},{percent},{bus},{seconds:.6f},{max(compute, copies):.6f}")

                best = None
                for k in (2, 3, 4):
                    for how in ("time", "even", "prefix"):
                        if want < (k - 2) * largest:
                            continue
                        resident = picked(sim, blocks, want - (k - 2) * largest, how)
                        seconds = sim.sim(blocks, resident, bus * 1e9, two + (k - 2) * largest)
                        if best is None or seconds < best[1]:
                            best = resident, seconds
                row("ours", *best)
                for layout, how, options in (("prefix", "prefix", {}), ("suffix", "suffix", {}), ("even", "even", {}),
                                             ("depth1", "even", {"depth": 1}), ("no_wrap", "even", {"wrap": False}),
                                             ("sync", "even", {"depth": 0})):
                    resident = picked(sim, blocks, want, how)
                    row(layout, resident, sim.sim(blocks, resident, bus * 1e9, two, **options))


if __name__ == "__main__":
    main()
