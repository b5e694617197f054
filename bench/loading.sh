#!/bin/sh
# Measures how fast a model is loaded: the time to open the headers of 12 GB of weights, dd with the model's largest
# file through the page cache and with direct I/O, then `sluice bench load`. Argument: the model folder; by default a
# 2.7 GB Z-Image with random weights is written to build/ and removed afterwards.
set -eu
cd "$(dirname "$0")/.."
sluice=build/release/sluice
model=${1:-}
if [ -z "$model" ]; then
    model=build/loading_model
    trap 'rm -rf "$model"' EXIT
    rm -rf "$model"
    $sluice-dev checkpoint zimage "$model" --seed 3 --quiet \
        --dims heads=16,layers=16,hidden=1024,text_heads=8,text_key_heads=2,text_layers=6
fi
make -s dev build/release/headers
build/release/headers build
file=$(find -L "$model" -name '*.safetensors' -printf '%s %p\n' | sort -rn | head -n 1 | cut -d' ' -f2-)
cat "$file" >/dev/null
echo "dd bs=16M:                $(dd if="$file" of=/dev/null bs=16M 2>&1 | tail -n 1)"
echo "dd bs=16M iflag=direct:   $(dd if="$file" of=/dev/null bs=16M iflag=direct 2>&1 | tail -n 1)"
$sluice bench load -m "$model"
