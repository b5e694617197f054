#!/bin/sh
# Compares `sluice bench block` with diffusers, alternating in one process. PYTHON: an interpreter with torch and diffusers.
#   PYTHON=/opt/ref/venv/bin/python sh bench/diffusers_block.sh [THREADS [PRECISION]]
# PRECISION (bf16, int8): measures Sluice's block in it, beside its own in f32 and diffusers.
set -eu
cd "$(dirname "$0")/.."
make -s build/release/libsluice.so
exec "${PYTHON:-python3}" bench/diffusers_block.py build/release/libsluice.so "${1:-$(nproc)}" ${2:+"$2"}
