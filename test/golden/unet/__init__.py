"""Scripts for the SD1, SD2 and SDXL fixtures, run by ../make.py, ../bf16.py and ../influence.py."""
