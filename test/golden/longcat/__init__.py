"""Scripts for the LongCat-Image fixtures, run by ../make.py; make.py in this folder documents their contents."""
