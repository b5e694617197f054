"""Plots the training log: loss, word probe and reader scores over time."""
import argparse
import csv

import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", default="log.csv")
    parser.add_argument("--out", default="curves.png")
    args = parser.parse_args()
    with open(args.log) as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    minutes = [r["minutes"] for r in rows]
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    axes[0, 0].plot(minutes, [r["loss"] for r in rows], "k.-")
    axes[0, 0].set(title="loss (mean since the last row)", yscale="log")
    for sigma in ("0.9", "0.7", "0.5"):
        axes[0, 1].plot(minutes, [r[f"word_{sigma}"] for r in rows], ".-", label=f"noise {sigma}")
    axes[0, 1].set(title="word probe: right shape word denoises best", ylim=(0, 1.05))
    axes[0, 2].plot(minutes, [r["samples"] / 1000 for r in rows], "k.-")
    axes[0, 2].set(title="thousand samples")
    titles = {"one": "one shape", "many": "two or three equal shapes", "pair": "two groups"}
    for axis, (kind, title) in zip(axes[1], titles.items()):
        for aspect in ("background", "colour", "side", "shape", "count"):
            # All zeros: not measured, because the curriculum had not reached this kind.
            points = [(r["minutes"], r[f"{kind}_{aspect}"]) for r in rows if r[f"{kind}_background"]]
            axis.plot(*zip(*points), ".-", label=aspect)
        axis.set(title=f"held-out prompts, {title}", ylim=(0, 1.05), xlabel="minutes of training")
    for axis in (axes[0, 1], *axes[1]):
        axis.legend(fontsize=8)
    figure.savefig(args.out, dpi=80)


if __name__ == "__main__":
    main()
