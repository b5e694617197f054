"""Compares Sluice with diffusers at published widths: few layers, random weights, one picture of each family.

  python published.py [--sluice ../../build/release/sluice] [--keep FOLDER] [NAME ...]     (all: flux2_klein flux2_dev ...)

The fixtures' widths are tiny, so this shows what they cannot: sums over 3072 to 15360 inputs, heads of 128, the
published VAE. One double and one single block; text encoders of published width with one head and few layers. Not part of
make test: needs about 6 GB of RAM and of disk, and minutes.
"""
