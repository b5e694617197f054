#!/bin/sh
# The tables of models/README.md.
#   sh test/families.sh SLUICE
"$1" families --plans --json -q | awk -f "$(dirname "$0")/families.awk"
