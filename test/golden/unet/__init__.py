"""Of SD1, SD2 and SDXL what is not as in the other families' scripts; ../make.py, ../bf16.py and ../influence.py are the programs."""
